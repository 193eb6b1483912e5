"""The settings of the gateway: `[gateway]` of the user's file, and their validation.

This module loads nothing else of the gateway, so that reading settings stays fast. Secrets are not part of the
settings: they are in the environment variables that the settings name.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

import msgspec

EVERYBODY = "*"
"""In `allow`: every sender of the platform."""
PLUGIN_GROUP = "holdfast.platforms"
"""The entry point group of platforms of other packages."""

Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=86_400)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
Senders = dict[str, list[str | int]]
"""Sender ids by platform; a number is the same as its digits. Display names are not ids."""
Problem = tuple[tuple[str, ...], str]
"""The path of an invalid setting, and a sentence about it."""
PLATFORM = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
"""The names of platforms and hooks."""
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""The names of environment variables."""
_HEADER = re.compile(r"[Xx]-[A-Za-z0-9-]{1,60}")
_HOST = re.compile(r"[a-z0-9_]([a-z0-9._-]*[a-z0-9])?|[0-9a-f:.]+", re.IGNORECASE)
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[a-z0-9._\[\]:-]+", re.IGNORECASE)


class ResetPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When the next message of a chat begins a new conversation. Nothing is deleted: /resume returns to the old one."""

    when: Literal["none", "idle", "daily"] = "none"
    hours: float = 24.0
    """With `idle`: after this many hours without a message."""
    hour: int = 4
    """With `daily`: at this hour of the local time."""


class GatewayLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rate limits per chat and per person. Messages over a limit are not stored; their sender is notified."""

    minute: Count = 20
    """Messages per minute in one chat; not over HTTP, where the client chooses the chat."""
    day: Count = 1_000
    """Messages per day in one chat."""
    person_minute: Count = 60
    """Messages of one person per minute, in all chats together."""
    person_day: Count = 5_000
    """Messages of one person per day."""
    attachments: Count = 20_000
    """Kilobytes of all files of one message."""


class Http(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The HTTP server: the OpenAI-compatible interface, webhooks, /health and /metrics."""

    enabled: bool | None = None
    """Whether the server runs; by default if no other platform is configured, or if it has settings or hooks."""
    host: str = "127.0.0.1"
    """The address to listen at. One that other machines reach requires a token."""
    port: Port = 8642
    """The port to listen at; 0 takes any free port."""
    share: bool = False
    """Whether another gateway may listen at the same port, for a restart without a gap. Both need this setting."""
    tokens: dict[str, str] = {}
    """The environment variable with the token of each owner: `ann = "ANN_TOKEN"`."""
    body: Count | None = None
    """The largest request in kilobytes; by default 1,024, and for a chat 8,192 plus the attachments of one message."""
    conversation_header: str = "X-Conversation-Id"
    """The header that names the conversation in the request and in the response."""
    hosts: list[str] = []
    """Further host names, for example of a reverse proxy. They require a token."""
    origins: list[str] = []
    """Origins whose web pages may use the server (CORS), such as `https://chat.example.com`."""
    side_requests: list[str] = []
    """Prefixes of requests that a client sends for its own purposes, besides those of Open WebUI and LibreChat."""

    def problems(self) -> Iterator[Problem]:
        if not _HEADER.fullmatch(self.conversation_header):
            yield ("http", "conversation_header"), "must be the name of a header that begins with `X-`."
        for host in self.hosts:
            if not _HOST.fullmatch(host):
                yield ("http", "hosts"), f'{host!r} is not a host name such as "chat.example.com", without a port.'
        for origin in self.origins:
            if not _ORIGIN.fullmatch(origin):
                yield ("http", "origins"), f'{origin!r} is not an origin such as "https://chat.example.com".'
        if not all(each.strip() for each in self.side_requests):
            yield ("http", "side_requests"), "an empty prefix would match every request."
        for owner, variable in self.tokens.items():
            if not _is_name(owner) or not VARIABLE.fullmatch(variable):
                yield ("http", "tokens", owner), 'must be a name and an environment variable: ann = "ANN_TOKEN".'

    def body_bytes(self, attachments: int) -> tuple[int, int]:
        """Return the largest request in bytes: in general, and of a chat with `attachments` kilobytes of files."""
        if self.body is not None:
            return self.body * 1_024, self.body * 1_024
        return 1_024 * 1_024, 8_192 * 1_024 + attachments * 1_000 * 4 // 3


class LoopbackSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """JSON lines on a Unix socket, for scripts of the gateway's user."""

    socket: str = "gateway.sock"
    """The path of the socket, relative to the settings file."""


class Hook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A webhook at /hooks/NAME: each delivery is a message."""

    secret_env: str
    """The environment variable with the secret that deliveries are signed with."""
    scheme: Literal["standard", "github"] = "standard"
    """The signature: Standard Webhooks (`webhook-signature`), or GitHub's (`x-hub-signature-256`)."""
    to: str | None = None
    """The destination of the reply: `platform:chat`, or an https address; else it is kept to be fetched."""
    allow_private: bool = False
    """Whether the https address may be in a private network."""
    prompt: str = ""
    """Text that precedes the delivery in the message."""


class GatewaySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a gateway works, and who has access to the agent: only the senders listed here or allowed by an operator."""

    profile: str = "main"
    """The first part of every route. A store has one: a gateway with another profile refuses to start."""
    allow: Senders = {}
    """Senders who may use the agent."""
    deny: Senders = {}
    """Senders who may not, whatever other lists say."""
    admins: Senders = {}
    """Senders who may also use the commands for admins."""
    strangers: Literal["pair", "tell", "silence"] = "pair"
    """The answer to other senders in a direct chat: a pairing code, that they have no access, or none."""
    shared: Senders = {}
    """Groups with one conversation for all members; in other groups each member has a separate one."""
    busy: Literal["queue", "steer", "collect", "interrupt"] = "queue"
    """The handling of a message that arrives during a turn of its chat."""
    reset: ResetPolicy = ResetPolicy()
    """When a chat begins a new conversation by itself."""
    shell: bool | Senders = False
    """Whose agents may run commands on this machine, with approval each time; none by default."""
    tools: bool | Senders = False
    """Whose agents have the tools of plug-ins and MCP servers; none by default."""
    folder: str | None = None
    """The folder that contains the working folder of each owner; by default `gateway` in the data folder."""
    grace: Seconds = 20.0
    """Seconds that running turns may take to end when the gateway stops."""
    poll: Annotated[float, msgspec.Meta(gt=0, le=60)] = 1.0
    """Seconds between two checks of the store for work that other processes left."""
    retry: Annotated[float, msgspec.Meta(gt=0, le=60)] = 1.0
    """Seconds before a chat or a reply that failed is tried again, doubled each time."""
    answer_within: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 600.0
    """Seconds that a question waits for an answer; after that it is denied."""
    chats: Count = 200
    """How many chats are processed concurrently."""
    remember: Annotated[float, msgspec.Meta(ge=1, le=36_500)] = 30.0
    """Days that inbound messages are remembered, to recognise repeated deliveries."""
    limits: GatewayLimits = GatewayLimits()
    http: Http = Http()
    loopback: LoopbackSettings | None = None
    hooks: dict[str, Hook] = {}
    platforms: dict[str, dict[str, Any]] = {}
    """The settings of platforms of other packages, from the tables `[gateway.NAME]`."""

    @property
    def has_http(self) -> bool:
        """Whether the HTTP server runs."""
        if self.http.enabled is not None:
            return self.http.enabled
        return (self.loopback is None and not self.platforms) or bool(self.hooks) or self.http != Http()

    @property
    def tables(self) -> dict[str, dict[str, Any]]:
        """The tables of the platforms that run; those of the built-in ones have no setting but the tokens."""
        built_in = {"http": self.has_http, "loopback": self.loopback is not None}
        tokens = {"tokens": self.http.tokens}
        return {
            name: tokens if name == "http" else {} for name, is_used in built_in.items() if is_used
        } | self.platforms

    @property
    def variables(self) -> list[str]:
        """The environment variables that contain secrets. In tables of platforms they are the settings `*_env`."""
        named = [value for table in self.platforms.values() for key, value in table.items() if key.endswith("_env")]
        hooks = [hook.secret_env for hook in self.hooks.values()]
        return sorted({*self.http.tokens.values(), *hooks, *(value for value in named if isinstance(value, str))})

    def resolve_paths(self, resolve: Callable[[str | None], str | None]) -> GatewaySettings:
        """Return the settings with absolute paths."""
        loopback = self.loopback and msgspec.structs.replace(self.loopback, socket=resolve(self.loopback.socket))
        return msgspec.structs.replace(self, folder=resolve(self.folder), loopback=loopback)

    def find_problem(self) -> Problem | None:
        """Return the first setting that has the right type and is invalid all the same."""
        return next(self._problems(), None)

    def _problems(self) -> Iterator[Problem]:
        if not _is_name(self.profile):
            yield ("profile",), "must have 1 to 60 printable characters."
        if not 0 <= self.reset.hour <= 23 or not 0 < self.reset.hours < 1e6:
            yield ("reset",), "`hour` must be 0 to 23, and `hours` must be more than 0."
        if self.http.enabled is False and self.hooks:
            yield ("http", "enabled"), "hooks need the HTTP server. Remove `enabled = false`, or the hooks."
        yield from self.http.problems()
        for name in ("allow", "deny", "admins", "shared", "shell", "tools"):
            yield from _list_problems(name, getattr(self, name))
        for name, hook in self.hooks.items():
            if not PLATFORM.fullmatch(name):
                yield ("hooks", name), "the name of a hook must be lower-case letters, digits and hyphens."
            if not VARIABLE.fullmatch(hook.secret_env):
                yield ("hooks", name, "secret_env"), "must be the name of an environment variable, not the secret."


def collect_platforms(table: dict[str, Any]) -> dict[str, Any]:
    """Move the tables of installed platform plug-ins in `[gateway]` to its field `platforms`."""
    unknown = [
        name
        for name, value in table.items()
        if isinstance(value, dict) and name not in GatewaySettings.__struct_fields__
    ]
    # Installed packages are only searched if there is a reason to: it takes some milliseconds.
    if not unknown:
        return table
    installed = importlib.import_module("importlib.metadata").entry_points(group=PLUGIN_GROUP).names
    found = {name: table[name] for name in unknown if name in installed and PLATFORM.fullmatch(name)}
    rest = {name: value for name, value in table.items() if name not in found}
    return {**rest, "platforms": found} if found else table


def ids(senders: Senders) -> dict[str, frozenset[str]]:
    """Return the sender ids of a list as text."""
    return {platform: frozenset(map(str, each)) for platform, each in senders.items()}


def _list_problems(name: str, value: bool | Senders) -> Iterator[Problem]:
    for platform, senders in value.items() if isinstance(value, dict) else ():
        if not PLATFORM.fullmatch(platform):
            yield (name, platform), "the name of a platform must be lower-case letters, digits and hyphens."
        for each in map(str, senders):
            if each == EVERYBODY and name != "allow":
                yield (name, platform), f"`{EVERYBODY}` is only valid in `allow`; list the ids here."
            if not each or not each.isprintable() or each != each.strip():
                yield (name, platform), f"{each!r} is not a sender id."


def _is_name(text: str) -> bool:
    return text.isprintable() and text == text.strip() and 0 < len(text) <= 60
