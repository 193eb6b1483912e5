"""The settings of an MCP server, and the same with variables of the environment substituted."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Literal

import msgspec

Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class ServerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One server in a settings file: a command to start, or the URL of a running server.

    In `args`, `env`, `url` and `headers`, ${NAME} stands for a variable of the environment, and ${NAME:-text} for
    `text` if the variable is not set.
    """

    command: str | None = None
    """The program to start. It communicates on its standard input and output."""
    args: list[str] = []
    env: dict[str, str] = {}
    """Variables for the program. Of ours it gets only HOME, LOGNAME, PATH, SHELL, TERM and USER."""
    cwd: str | None = None
    """The folder in which it is started; by default the folder in which the agent works."""
    url: str | None = None
    """The URL of a server with streamable HTTP."""
    headers: dict[str, str] = {}
    """HTTP headers of every request to the URL."""
    type: Literal["stdio", "http"] | None = None
    """The transport. It follows from `command` or `url`, and need not be given."""
    enabled: bool = True
    tools: list[str] | None = None
    """The only tools to use, by the names that the server uses; all by default."""
    timeout: Seconds = 60.0
    """Seconds that a call may take without a sign of life."""

    def __post_init__(self) -> None:
        if (self.command is None) == (self.url is None):
            raise ValueError("give either `command` or `url`")
        if self.url is not None and not re.match(r"https?://.|\$\{", self.url):
            raise ValueError("`url` must begin with http:// or https://")
        if self.type is not None and (self.type == "http") != (self.url is not None):
            raise ValueError(f"`type` is {self.type}, which contradicts `command` or `url`")


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A server to connect to. Its representation hides values that may be secret."""

    name: str
    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str | None = None
    sse: bool = False
    """Whether the URL uses the older SSE transport, as servers that an editor provides may."""
    headers: dict[str, str] = {}
    tools: frozenset[str] | None = None
    timeout: float = 60.0
    missing: tuple[str, ...] = ()
    """Variables that are not set. Without them the server is not started."""
    given: tuple[tuple[str, str], ...] = ()
    """All values passed to the server, with the names of their variables or headers, for redaction."""

    def __repr__(self) -> str:
        return f"ServerConfig({self.name!r})"


def resolve(
    name: str, given: ServerSettings, environ: Mapping[str, str], cwd: Callable[[str], str | None]
) -> ServerConfig:
    """Return a server with variables substituted. `cwd` resolves a path of the settings file."""
    missing: dict[str, None] = {}
    used: list[tuple[str, str]] = []

    def value(found: re.Match[str]) -> str:
        put = environ.get(found[1]) or found[2]
        if put is None:
            missing[found[1]] = None
            return ""
        used.append((found[1], put))
        return put

    def substitute(text: str) -> str:
        return _VARIABLE.sub(value, text)

    env = {key: substitute(text) for key, text in given.env.items()}
    headers = {key: substitute(text) for key, text in given.headers.items()}
    return ServerConfig(
        name=name,
        command=given.command,
        args=tuple(map(substitute, given.args)),
        env=env,
        cwd=cwd(given.cwd) if given.cwd else None,
        url=substitute(given.url) if given.url else None,
        headers=headers,
        tools=None if given.tools is None else frozenset(given.tools),
        timeout=given.timeout,
        missing=tuple(missing),
        given=(*env.items(), *headers.items(), *used),
    )
