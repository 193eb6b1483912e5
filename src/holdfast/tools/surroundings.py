"""The environment a command is given: ours without what looks like a key, and with no pager to wait for. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

# Names more than values: what a value is can seldom be told, what a name says can.
_SECRET = re.compile(
    r"(?i).*(?:api_?key|token|secret|passw(?:or)?d|passphrase|private_?key|access_?key).*|.*_(?:pass|pwd|auth|key)"
)
# Where something is reached, which often says with which password.
_PLACE = re.compile(r"(?i)(?:.*_)?ur[li]")
_PASSWORD = re.compile(r"://[^/?#]*:[^/?#]*@|(?i:[?&;]passw(?:or)?d=)")
_DATABASE = re.compile(r"(?i)(?:.*_)?database_ur[li]|(?:.*_)?dsn")
# What the manager of services tells this program: a command that had it could speak for us.
_SERVICE = frozenset({"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"})
# Named like a secret, and none; programs behave otherwise without it.
_HARMLESS = frozenset({"TOKENIZERS_PARALLELISM"})

OURS = "HOLDFAST_"

# Nobody sits at a terminal: nothing should wait for one, or paint for one.
QUIET = {"PAGER": "cat", "GIT_PAGER": "cat", "TERM": "dumb", "GIT_TERMINAL_PROMPT": "0"}


def is_secret(name: str) -> bool:
    """Whether the name of a variable says that its value is a key, a token or a password."""
    return name not in _HARMLESS and _SECRET.fullmatch(name) is not None


def is_ours(name: str) -> bool:
    """Whether it is for this program alone."""
    return name.startswith(OURS) or name in _SERVICE


def has_password(name: str, value: str) -> bool:
    """Whether it says where a database is, or where something else is and with which password."""
    if _DATABASE.fullmatch(name):
        return True
    return _PLACE.fullmatch(name) is not None and _PASSWORD.search(value) is not None


def of_commands(
    environ: Mapping[str, str], passed: Iterable[str] = (), withheld: Iterable[str] = (), **more: str
) -> dict[str, str]:
    """What commands are given of this environment, those secrets that may pass, and what is given besides.

    Withheld are those that settings name as a secret, whatever they are called, and what this program itself is told:
    where its store is, and perhaps with which password.
    """
    allowed, hidden = frozenset(passed), frozenset(withheld)
    secret = {
        name
        for name, value in environ.items()
        if name in hidden or is_ours(name) or is_secret(name) or has_password(name, value)
    }
    kept = {name: value for name, value in environ.items() if name in allowed or name not in secret}
    return {**kept, **QUIET, **more}
