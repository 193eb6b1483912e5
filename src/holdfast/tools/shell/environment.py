"""The environment of commands: that of this process without secrets, and without pagers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from holdfast.tools.permissions import secret_names

# Set by the service manager: with them a command could impersonate this program.
_SERVICE = frozenset({"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"})
OURS = "HOLDFAST_"

# There is no terminal: programs should not wait for input or write escape sequences.
QUIET = {"PAGER": "cat", "GIT_PAGER": "cat", "TERM": "dumb", "GIT_TERMINAL_PROMPT": "0"}

GIT_SETTINGS = {"safe.bareRepository": "explicit"}
"""Git settings for every command. Git takes any folder with HEAD, objects/ and refs/ for a repository, whose settings
can run programs: only `.git`, or a folder that a command names by --git-dir, is used. Git 2.38 and newer."""
MAX_GIT_SETTINGS = 1_000


def is_ours(name: str) -> bool:
    """Return whether a variable is for this program only."""
    return name.startswith(OURS) or name in _SERVICE


def inherit() -> dict[str, str]:
    """Return the environment of this process for commands, without secrets."""
    return of_commands(os.environ)


def of_commands(
    environ: Mapping[str, str], passed: Iterable[str] = (), withheld: Iterable[str] = (), **more: str
) -> dict[str, str]:
    """Return the environment for commands: `environ` without secrets except `passed`, and `more`.

    `withheld` are variables that settings name as secrets. Variables of this program itself are withheld, too: they
    may contain the address of its store with a password.
    """
    allowed, hidden = frozenset(passed), frozenset(withheld)
    secret = {
        name
        for name, value in environ.items()
        if name in hidden or is_ours(name) or secret_names.is_secret_variable(name, value)
    }
    kept = {name: value for name, value in environ.items() if name in allowed or name not in secret}
    return {**_with_git_settings(kept), **QUIET, **more}


def _with_git_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Append our git settings to those of the environment. A pair whose key or value was withheld is dropped."""
    pairs, count = list[tuple[str, str]](), environ.get("GIT_CONFIG_COUNT", "")
    for at in range(min(int(count), MAX_GIT_SETTINGS) if count.isascii() and count.isdigit() else 0):
        key, value = (environ.get(f"GIT_CONFIG_{part}_{at}") for part in ("KEY", "VALUE"))
        pairs += [(key, value)] if key is not None and value is not None else []
    pairs += GIT_SETTINGS.items()
    numbered = {
        f"GIT_CONFIG_{part}_{at}": text
        for at, pair in enumerate(pairs)
        for part, text in zip(("KEY", "VALUE"), pair, strict=True)
    }
    rest = {
        name: value for name, value in environ.items() if not name.startswith(("GIT_CONFIG_KEY_", "GIT_CONFIG_VALUE_"))
    }
    return {**rest, **numbered, "GIT_CONFIG_COUNT": str(len(pairs))}
