"""The environment a command is given: ours without what looks like a key, and with no pager to wait for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.tools.permissions import secret_names

# What the manager of services tells this program: a command that had it could speak for us.
_SERVICE = frozenset({"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"})
OURS = "HOLDFAST_"

# Nobody sits at a terminal: nothing should wait for one, or paint for one.
QUIET = {"PAGER": "cat", "GIT_PAGER": "cat", "TERM": "dumb", "GIT_TERMINAL_PROMPT": "0"}

GIT_SETTINGS = {"safe.bareRepository": "explicit"}
"""Settings of git for every command. Plain files called HEAD, config, objects/ and refs/ are a repository to git, whose
settings can run programs: only one in `.git`, or that a command names by --git-dir, is used. Git 2.38 and newer."""
MAX_GIT_SETTINGS = 1_000


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
    return {**_with_git_settings(kept), **QUIET, **more}


def _with_git_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Add our settings of git behind those of the environment. A pair whose key or value was withheld is left out."""
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
