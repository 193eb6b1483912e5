"""The environment a command is given: ours without what looks like a key, and with no pager to wait for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.tools import secret_names

# What the manager of services tells this program: a command that had it could speak for us.
_SERVICE = frozenset({"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"})
OURS = "HOLDFAST_"

# Nobody sits at a terminal: nothing should wait for one, or paint for one.
QUIET = {"PAGER": "cat", "GIT_PAGER": "cat", "TERM": "dumb", "GIT_TERMINAL_PROMPT": "0"}


def is_ours(name: str) -> bool:
    """Whether it is for this program alone."""
    return name.startswith(OURS) or name in _SERVICE


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
        if name in hidden or is_ours(name) or secret_names.is_secret_variable(name, value)
    }
    kept = {name: value for name, value in environ.items() if name in allowed or name not in secret}
    return {**kept, **QUIET, **more}
