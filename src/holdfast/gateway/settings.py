"""What settings say about the gateway: `[gateway]` of the user's file. Values, and what cannot be meant of them.

It loads nothing else of the gateway, so that whoever reads settings does not have to wait for that. No secret stands
here: tokens and keys are in the variables that are named.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Literal

import msgspec

from holdfast.gateway import reset_policy

EVERYBODY = "*"
"""In `allow`: whoever the platform lets in."""

Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=86_400)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
Senders = dict[str, list[str | int]]
"""By platform, the ids it gives to people; a number is the same as its digits. Names are not ids: anybody can choose
one."""
Wrong = tuple[tuple[str, ...], str]
"""The place of what cannot be meant, and a sentence."""
PLATFORM = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
"""How platforms and hooks are named."""
_HEADER = re.compile(r"[Xx]-[A-Za-z0-9-]{1,60}")
_HOST = re.compile(r"[a-z0-9_]([a-z0-9._-]*[a-z0-9])?|[0-9a-f:.]+", re.IGNORECASE)
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[a-z0-9._\[\]:-]+", re.IGNORECASE)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much comes in from one chat, and from one person. What is too much is not stored; whoever sent it is told,
    once in a while."""

    minute: Count = 20
    """Messages within a minute; not over HTTP, where the client chooses the chat."""
    day: Count = 1_000
    """Messages within a day."""
    person_minute: Count = 60
    """Messages of one person within a minute, in all their chats together. Who has a token chooses their chats."""
    person_day: Count = 5_000
    """Messages of one person within a day."""
    attachments: Count = 20_000
    """Kilobytes of the files of one message, together."""


class Http(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The HTTP server: the OpenAI-compatible interface, webhooks, /health and /metrics."""

    enabled: bool | None = None
    """Whether there is one; nothing said: where no other platform is set up, or tokens or hooks are."""
    host: str = "127.0.0.1"
    """The address it listens at. One that others reach is refused without a token."""
    port: Port = 8642
    """0 takes any that is free."""
    share: bool = False
    """Whether another gateway may listen at the same port: for a restart without a gap. Both have to say so."""
    tokens: dict[str, str] = {}
    """Whose token is in which variable: `ann = "ANN_TOKEN"`. Each has conversations of their own."""
    body: Count | None = None
    """Kilobytes a request may have; by default 1,024, and for a chat 8,192 and the attachments of one message."""
    conversation_header: str = "X-Conversation-Id"
    """The header that names the conversation in the request and in the response."""
    hosts: list[str] = []
    """Further names it is reached by, as through a reverse proxy. They need a token."""
    origins: list[str] = []
    """Origins whose web pages may use it (CORS), such as `https://chat.example.com`."""
    side_requests: list[str] = []
    """How the requests begin that a client makes for itself, besides those of Open WebUI and LibreChat."""

    def body_bytes(self, attachments: int) -> tuple[int, int]:
        """Return the largest request in bytes: in general, and of a chat with so many kilobytes of attachments."""
        if self.body is not None:
            return self.body * 1_024, self.body * 1_024
        return 1_024 * 1_024, 8_192 * 1_024 + attachments * 1_000 * 4 // 3


class Loopback(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """JSON lines on a Unix socket, for scripts of the user the gateway runs as."""

    socket: str = "gateway.sock"
    """Its path, from where the file is that names it."""


class Hook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A webhook at /hooks/NAME: what is posted there is a message."""

    secret_env: str
    """The variable with the secret that deliveries are signed with."""
    scheme: Literal["holdfast", "github"] = "holdfast"
    """How they are signed: X-Holdfast-Signature, or X-Hub-Signature-256."""
    to: str | None = None
    """Where the reply goes: `platform:chat`, or an https address it is posted to; else it is kept to be fetched."""
    allow_private: bool = False
    """Whether that address may be one of a private network."""
    prompt: str = ""
    """What is said before what was posted."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a gateway works, and who may talk to it. Nobody may who is not named here or was let in."""

    profile: str = "main"
    """The first part of every chat's key. A store has one: a gateway with another profile is refused there."""
    allow: Senders = {}
    """Who may talk to the agent."""
    deny: Senders = {}
    """Who may not, whatever else is said of them."""
    admins: Senders = {}
    """Who may also give the commands that are for admins."""
    strangers: Literal["pair", "tell", "silence"] = "pair"
    """What others are told, in a chat of their own: a code to be let in by, that they are not known, or nothing."""
    shared: Senders = {}
    """The groups that are one conversation for all in it; in others each person has their own."""
    busy: Literal["queue", "steer", "collect", "interrupt"] = "queue"
    """What becomes of a message that comes during a turn of its chat."""
    reset: reset_policy.Policy = reset_policy.Policy()
    """When a chat begins anew by itself."""
    shell: bool | Senders = False
    """Whose agents may run commands on this machine, still asking each time; nobody's by default."""
    tools: bool | Senders = False
    """Whose agents have the tools of other packages and of servers (`mcpServers`); nobody's by default."""
    folder: str | None = None
    """Where each person has a folder for files; else `gateway` in the home."""
    grace: Seconds = 20.0
    """Seconds that what runs may take to end when the gateway is asked to stop."""
    answer_within: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 600.0
    """Seconds a question waits for /approve or /deny; after them the answer is no."""
    chats: Count = 200
    """How many chats are worked on at once."""
    remember: Annotated[float, msgspec.Meta(ge=1, le=36_500)] = 30.0
    """Days that what came in is known, so that it is one message however late it is delivered again."""
    limits: Limits = Limits()
    http: Http = Http()
    loopback: Loopback | None = None
    hooks: dict[str, Hook] = {}

    @property
    def has_http(self) -> bool:
        """Whether there is an HTTP server: as it says, else where something needs it, or nothing else is there."""
        if self.http.enabled is not None:
            return self.http.enabled
        return self.loopback is None or bool(self.hooks) or self.http != Http()

    @property
    def variables(self) -> list[str]:
        """The variables that have its secrets."""
        return sorted({*self.http.tokens.values(), *(hook.secret_env for hook in self.hooks.values())})

    def placed(self, path: Callable[[str | None], str | None]) -> Settings:
        """The same with paths that are whole."""
        loopback = self.loopback and msgspec.structs.replace(self.loopback, socket=path(self.loopback.socket))
        return msgspec.structs.replace(self, folder=path(self.folder), loopback=loopback)

    def wrong(self) -> Wrong | None:
        """What has the right form and cannot be meant."""
        if not self.profile or not self.profile.isprintable() or len(self.profile) > 60:
            return ("profile",), "a profile has 1 to 60 characters that can be printed."
        if not 0 <= self.reset.hour <= 23 or not 0 < self.reset.hours < 1e6:
            return ("reset",), "`hour` is 0 to 23, and `hours` is more than 0."
        if self.http.enabled is False and self.hooks:
            return ("http", "enabled"), "hooks need the HTTP server. Take out `enabled = false`, or the hooks."
        if not _HEADER.fullmatch(self.http.conversation_header):
            return ("http", "conversation_header"), "must be the name of a header that begins with `X-`."
        for host in self.http.hosts:
            if not _HOST.fullmatch(host):
                return ("http", "hosts"), f'{host!r} is not a host name such as "chat.example.com", without a port.'
        for origin in self.http.origins:
            if not _ORIGIN.fullmatch(origin):
                return ("http", "origins"), f'{origin!r} is not an origin. Write it like "https://chat.example.com".'
        if not all(each.strip() for each in self.http.side_requests):
            return ("http", "side_requests"), "an empty text would match every request."
        return self._wrong_lists() or self._wrong_names()

    def _wrong_lists(self) -> Wrong | None:
        for name in ("allow", "deny", "admins", "shared", "shell", "tools"):
            said = getattr(self, name)
            for platform, senders in said.items() if isinstance(said, dict) else ():
                if (found := _wrong_list(name, platform, senders)) is not None:
                    return (name, platform), found
        return None

    def _wrong_names(self) -> Wrong | None:
        for owner, variable in self.http.tokens.items():
            if not _is_name(owner) or not _VARIABLE.fullmatch(variable):
                return ("http", "tokens", owner), 'a name, and the variable that has the token: ann = "ANN_TOKEN".'
        for name, hook in self.hooks.items():
            if not PLATFORM.fullmatch(name):
                return ("hooks", name), "a hook is named by small letters, digits and dashes."
            if not _VARIABLE.fullmatch(hook.secret_env):
                return ("hooks", name, "secret_env"), "the name of a variable, not the secret itself."
        return None


def ids(senders: Senders) -> dict[str, frozenset[str]]:
    """The ids of a list as platforms give them."""
    return {platform: frozenset(map(str, each)) for platform, each in senders.items()}


def _wrong_list(name: str, platform: str, senders: list[str | int]) -> str | None:
    if not PLATFORM.fullmatch(platform):
        return "a platform is named by small letters, digits and dashes."
    for each in map(str, senders):
        if each == EVERYBODY and name != "allow":
            return f"`{EVERYBODY}` stands in `allow` only; here ids are named."
        if not each or not each.isprintable() or each != each.strip():
            return f"{each!r} is no id of a person."
    return None


def _is_name(owner: str) -> bool:
    return bool(owner) and owner.isprintable() and owner == owner.strip() and len(owner) <= 60
