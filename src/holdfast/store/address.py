"""Store addresses: a path names a SQLite file, `postgresql://…` a PostgreSQL database."""

from __future__ import annotations

from urllib import parse

SCHEMES = ("postgresql://", "postgres://")
_SECRETS = {"password", "passfile", "sslpassword", "sslkey", "oauth_client_secret", "scram_client_key"}


def is_postgres(target: str) -> bool:
    return target.startswith(SCHEMES)


def hide_password(target: str) -> str:
    """Return a URL of any scheme without its secrets; a path is returned unchanged."""
    if "://" not in target:
        return target
    scheme, _, rest = target.partition("://")
    # Like libpq, look for the user before the first slash, even if a password contains a question mark.
    authority, slash, path = rest.partition("/")
    login, at, host = authority.rpartition("@")
    location, mark, query = f"{host}{slash}{path}".partition("?")
    location = location.rpartition("@")[2]  # a password with an unescaped slash, which libpq cannot parse either
    kept = [(name, value) for name, value in parse.parse_qsl(query) if name not in _SECRETS]
    user = login.partition(":")[0]
    return f"{scheme}://{user}{at}{location}" + (mark + parse.urlencode(kept, quote_via=parse.quote) if kept else "")
