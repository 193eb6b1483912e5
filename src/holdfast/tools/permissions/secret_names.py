"""The names of variables, headers and files that hold keys or passwords.

Command environments, file tools, risk hints and MCP servers use this table. Case is ignored. A secret under another
name is not recognised.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

VARIABLES = """
    *APIKEY* *API_KEY* *API_KEYS *TOKEN* *_TOK *SECRET* *PASSWORD* *PASSWD* *PASSPHRASE* *PRIVATEKEY* *PRIVATE_KEY*
    *ACCESSKEY* *ACCESS_KEY* *CREDENTIAL* *JWT* *COOKIE* *CONNECTION_STRING* *CONNECTIONSTRING* *AUTHORIZATION*
    *_AUTH_CONFIG *WEBHOOK_URL* *_KEY *_PASS *_PWD *_AUTH *_PAT *_DSN *DATABASE_URL *DATABASE_URI KEY PASS PAT DSN AUTH
"""
"""Globs. A hyphen counts as an underscore, so that headers are found too."""

# These are switches or file names.
HARMLESS_VARIABLES = "TOKENIZERS_PARALLELISM GOOGLE_APPLICATION_CREDENTIALS AWS_SHARED_CREDENTIALS_FILE"

FILES = """
    .env .envrc .env.* .env-* *.env
    *.pem *.key *.p8 *.p12 *.pfx *.jks *.keystore *.kdbx *.asc *.gpg *.ppk *.ovpn
    id_rsa id_rsa_sk id_dsa id_ecdsa id_ecdsa_sk id_ed25519 id_ed25519_sk id_xmss id_*.bak id_*.old ssh_host_*_key
    .netrc _netrc .pgpass .npmrc .pypirc .git-credentials .htpasswd .my.cnf .s3cfg .boto
    .vault-pass .vault-password .vault-token
    credentials *credentials.json credentials.db
    credentials.yaml credentials.yml credentials.toml credentials.ini credentials.txt
    secret secret.json secret.yaml secret.yml secret.toml secret.ini secret.txt
    secrets secrets.json secrets.yaml secrets.yml secrets.toml secrets.ini secrets.txt
    client_secret*.json *serviceaccount* *service_account*.json *service-account*.json token.json
    *.tfstate *.tfstate.backup *.tfvars *.tfvars.json kubeconfig wallet.dat
    .*_history .histfile shadow shadow- gshadow gshadow- sudoers sudoers- master.passwd master.passwd-
    cookies cookies.sqlite login?data holdfast.db*
    *.git/config *.git/config.* gh/hosts.yml
"""
"""Globs of names, or of a folder and a name. A file anywhere below `.git` counts as being in it."""

HARMLESS_FILES = """
    *.example *.sample *.template *.dist *.pub *.example.env *.sample.env *.template.env
    .env-example .env-sample .env-template
    *serviceaccount*.py *serviceaccount*.pyi *serviceaccount*.[jt]s *serviceaccount*.[jt]sx *serviceaccount*.go
    *serviceaccount*.java *serviceaccount*.kt *serviceaccount*.rb *serviceaccount*.rs *serviceaccount*.cs
    *serviceaccount*.md *serviceaccount*.html *serviceaccount*.css *serviceaccount*.proto
"""

FOLDERS = frozenset({".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".password-store", "keychains"})
"""Every file below one of these counts."""

# A password in a URL or in a connection string: scheme://user:password@host, https://token@host (a name is
# shorter), …?api_key=…, host=… password=…, …;Pwd=…
_PASSWORD = re.compile(
    r"://[^\s/?#]{0,256}:[^\s/?#]{1,4096}@|https?://[^\s/?#@]{16,4096}@|(?:^|\s)(?:passw(?:or)?d|pwd)=[^\s&;]"
    r"|[?&;][\w.-]{0,32}(?:passw(?:or)?d|pwd|token|key|secret|sig|signature)=[^\s&;]",
    re.IGNORECASE,
)


def is_secret_variable(name: str, value: str = "") -> bool:
    """Return whether a variable holds a secret: by its name, or by a password in a URL as its value."""
    plain = name.replace("-", "_")
    if _matches(HARMLESS_VARIABLES, plain):
        return False
    return _matches(VARIABLES, plain) or _PASSWORD.search(value) is not None


def is_secret_file(parts: Sequence[str]) -> bool:
    """Return whether a file usually holds keys or passwords, by the components of its path."""
    *folders, name = [part.casefold() for part in parts] or [""]
    if _matches(HARMLESS_FILES, name):
        return False
    folder = ".git" if ".git" in folders else folders[-1] if folders else ""
    return _matches(FILES, name) or _matches(FILES, f"{folder}/{name}") or not FOLDERS.isdisjoint(folders)


def _matches(globs: str, name: str) -> bool:
    return _compiled(globs).fullmatch(name) is not None


@cache
def _compiled(globs: str) -> re.Pattern[str]:
    """Compile all globs into one expression. `*` and `?` match within one path component."""
    signs = {"*": "[^/]*", "?": "[^/]"}
    return re.compile(
        "|".join(
            "".join(signs.get(piece, piece if piece[:1] == "[" else re.escape(piece)) for piece in pieces)
            for pieces in (re.split(r"(\*|\?|\[\w+\])", glob) for glob in globs.split())
        ),
        re.IGNORECASE,
    )
