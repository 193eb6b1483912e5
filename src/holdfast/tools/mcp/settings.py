"""What settings say about a server of tools, and the same with the environment filled in."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Literal

import msgspec

Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class Server(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One server, as a settings file has it: a command to start, or the address of one that runs.

    In `args`, `env`, `url` and `headers`, ${NAME} stands for a variable of the environment, and
    ${NAME:-text} for `text` where it is not set.
    """

    command: str | None = None
    """The program to start; it is spoken to on its standard input and output."""
    args: list[str] = []
    env: dict[str, str] = {}
    """Variables for it. Of ours it gets only HOME, LOGNAME, PATH, SHELL, TERM and USER."""
    cwd: str | None = None
    """The folder it is started in; without one, the folder the agent works in."""
    url: str | None = None
    """The address of a server that speaks streamable HTTP."""
    headers: dict[str, str] = {}
    """What is sent along with every request to that address."""
    type: Literal["stdio", "http"] | None = None
    """Which of the two it is; nothing needs it, as the command or the address says so."""
    enabled: bool = True
    tools: list[str] | None = None
    """The only tools to take from it, by the names it gives them; without it, all."""
    timeout: Seconds = 60.0
    """How long a call may go without a sign of life."""

    def __post_init__(self) -> None:
        if (self.command is None) == (self.url is None):
            raise ValueError("give either `command` or `url`")
        if self.url is not None and not re.match(r"https?://.|\$\{", self.url):
            raise ValueError("`url` is not an address that begins with http:// or https://")
        if self.type is not None and (self.type == "http") != (self.url is not None):
            raise ValueError(f"`type` is {self.type}, which does not go with what else is said")


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A server to be had, with nothing left to look up. What may be secret is not shown where this is."""

    name: str
    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str | None = None
    sse: bool = False
    """Whether that address speaks the older way, a stream of events beside the requests. No settings say so."""
    headers: dict[str, str] = {}
    tools: frozenset[str] | None = None
    timeout: float = 60.0
    missing: tuple[str, ...] = ()
    """Variables it needs that are not set: it is not started."""
    given: tuple[tuple[str, str], ...] = ()
    """All that was put in, by its name, be it a variable or a header: what of it may be told is not decided here."""

    def __repr__(self) -> str:
        return f"Wanted({self.name!r})"


def wanted(name: str, said: Server, environ: Mapping[str, str], cwd: Callable[[str], str | None]) -> Wanted:
    """The server with variables put in; `cwd` says what a path in the file means."""
    missing: dict[str, None] = {}
    used: list[tuple[str, str]] = []

    def value(found: re.Match[str]) -> str:
        put = environ.get(found[1]) or found[2]
        if put is None:
            missing[found[1]] = None
            return ""
        used.append((found[1], put))
        return put

    def filled(text: str) -> str:
        return _VARIABLE.sub(value, text)

    env = {key: filled(text) for key, text in said.env.items()}
    headers = {key: filled(text) for key, text in said.headers.items()}
    return Wanted(
        name=name,
        command=said.command,
        args=tuple(map(filled, said.args)),
        env=env,
        cwd=cwd(said.cwd) if said.cwd else None,
        url=filled(said.url) if said.url else None,
        headers=headers,
        tools=None if said.tools is None else frozenset(said.tools),
        timeout=said.timeout,
        missing=tuple(missing),
        given=(*env.items(), *headers.items(), *used),
    )
