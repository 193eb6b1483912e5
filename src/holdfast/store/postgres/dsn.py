"""How a PostgreSQL server is reached: its address, what people may see of it, and how long anybody waits for it.

Everything libpq understands may stand in an address, and what stands there wins over what is set here. A password
is never shown: not in an error, a log or a fact.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib import parse

SCHEMES = ("postgresql://", "postgres://")
MALFORMED = "The address of the PostgreSQL server is malformed; one looks like postgresql://user@host:5432/database."
_SECRETS = {"password", "passfile", "sslpassword", "sslkey", "oauth_client_secret", "scram_client_key"}
# A server that is gone without a word (a power cut, a cable) is noticed after so many seconds.
_SILENT = 15


def is_address(target: str) -> bool:
    return target.startswith(SCHEMES)


def settings(given: Mapping[str, Any], patience: float, around: Mapping[str, str] | None = None) -> dict[str, Any]:
    """An address as libpq takes it, with what keeps a call from waiting for ever, unless that is set around us."""
    around = around or {}
    hosts = max(str(given.get(name) or around.get(name, "")).count(",") + 1 for name in ("host", "hostaddr"))
    ours = {
        "application_name": "holdfast",
        "client_encoding": "utf8",
        # libpq tries one host after the other: the first may be frozen while the last one takes writes.
        "connect_timeout": str(max(2, round(min(10, patience) / hosts))),
        "keepalives_idle": str(_SILENT),
        "keepalives_interval": "5",
        "keepalives_count": "3",
        "tcp_user_timeout": str(_SILENT * 1000),
    }
    if hosts > 1:
        # Of several servers one takes writes. Whoever came upon another would read what is old, and never write.
        ours["target_session_attrs"] = "read-write"
    # What libpq would do by itself ("any") stands among what is set, too.
    set_around = {name: value for name, value in around.items() if name in ours and value != "any"}
    return {**ours, **set_around, **given, "client_encoding": "utf8"}


def shown(target: str) -> str:
    """The address without what is secret in it, also where it is none of ours; a path as it is."""
    if "://" not in target:
        return target
    scheme, _, rest = target.partition("://")
    # As libpq does: who logs in stands before the first slash, even where a password has a question mark in it.
    front, slash, path = rest.partition("/")
    login, at, host = front.rpartition("@")
    place, mark, query = f"{host}{slash}{path}".partition("?")
    place = place.rpartition("@")[2]  # of a password with a slash in it, which libpq does not understand either
    kept = [(name, value) for name, value in parse.parse_qsl(query) if name not in _SECRETS]
    user = login.partition(":")[0]
    return f"{scheme}://{user}{at}{place}" + (mark + parse.urlencode(kept, quote_via=parse.quote) if kept else "")


def place(settings: Mapping[str, Any]) -> str:
    """Where that is, in a few words."""
    host, port = settings.get("host") or settings.get("hostaddr"), settings.get("port") or 5432
    if not host:
        return f"the service {settings['service']}" if settings.get("service") else f"this machine, port {port}"
    return f"the socket in {host}, port {port}" if str(host).startswith("/") else f"{host}, port {port}"


_FACTS = """
SELECT current_setting('server_version'), current_schema()::text, current_database()::text,
       current_setting('synchronous_commit'), current_setting('fsync'),
       (SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c
         WHERE c.relnamespace = to_regnamespace(quote_ident(current_schema())) AND c.relkind = 'r'),
       (SELECT value FROM meta WHERE key = 'schema_format')
"""
_NAMES = ("version", "schema", "database", "synchronous_commit", "fsync", "bytes", "format")


def facts(execute: Callable[..., Any]) -> dict[str, Any]:
    """What the server says of itself and of this store."""
    found = dict(zip(_NAMES, execute(_FACTS).fetchone(), strict=True))
    return {"engine": "PostgreSQL", **found, "format": int(found["format"] or 0)}


class Said(NamedTuple):
    """Why a connection failed, in one line; whether it may work in a moment; and what to do where it will not."""

    why: str
    soon: bool
    remedy: str = ""


# A word of the server: how grave it is (in its own language), a colon and two spaces.
_WORD = re.compile(r"[^\W\d_]+ ?:  +(.+)")
# What no server changes its mind about. Of one that speaks another language nobody knows, so that is waited for too.
_FINAL = re.compile(
    r"authentication failed|authentication rejected|does not exist|no pg_hba\.conf entry|rejects connection|"
    r"not permitted to|permission denied|password|configuration parameter|value for parameter|command-line argument|"
    r"unsupported frontend protocol|no such (?:database|user)"
)
# What no waiting cures: something was asked for on this side that is not to be had.
_ASKED = (
    (re.compile(r"no password supplied"), "Put it into ~/.pgpass or PGPASSWORD."),
    (
        re.compile(r"definition of service|service file"),
        "PGSERVICEFILE or ~/.pg_service.conf has the services.",
    ),
    (
        re.compile(
            r"certificate|private key|SSL was required|sslmode|unknown ca|protocol version|wrong version number"
        ),
        "What is asked for is said by sslmode and sslrootcert in the address, or by PGSSLMODE and PGSSLROOTCERT.",
    ),
)


def said(text: str) -> Said:
    """What libpq tells of a connection that could not be made, or was lost."""
    found = _WORD.findall(text)
    if found:
        return Said(found[-1].strip(), not _FINAL.search(found[-1]))
    last = [line.strip() for line in text.splitlines() if line.strip()] or ["no answer"]
    why = re.sub(r".* failed: ", "", last[0])
    remedy = next((remedy for words, remedy in _ASKED if words.search(why)), "")
    return Said(why, not remedy, remedy)
