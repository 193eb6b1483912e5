"""What a platform is to the gateway: it brings what came in, and sends what goes out. Values and ports.

A new platform is one file that has a `Platform` in it. It never answers by itself: what it brings is stored before
anybody is told that it came, and what it sends was stored before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import msgspec

from holdfast import events, types
from holdfast.agent import commands
from holdfast.model import base as models

Kind = Literal["dm", "group", "thread"]
"""One person and the agent; several people; a thread within either."""


class Attachment(msgspec.Struct, frozen=True):
    """A file that came with a message."""

    data: bytes
    media_type: str = "application/octet-stream"
    name: str = ""


class Terms(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="terms"):
    """The conditions a client sets for the answer to one message. They are kept with the arrival, not in the log."""

    instructions: str = ""
    """Part of the system prompt."""
    max_output: int | None = None
    """The longest reply in tokens."""
    conversation_id: str | None = None
    """The conversation it belongs to, existing or new; None: the one that the chat is in."""


def terms_of(arrival: types.InboundMessage) -> Terms:
    """Return the terms of an arrival; the default ones where its client set none."""
    found = [part for part in arrival.parts if part.get("type") == "terms"]
    return msgspec.convert(found[0], Terms) if found else Terms()


class Came(msgspec.Struct, frozen=True, kw_only=True):
    """Something that came in, as the platform tells it. All of it but the ids is whatever somebody typed."""

    platform: str
    key: str
    """The platform's own id of the message: who delivers it again delivers the same key."""
    kind: Kind = "dm"
    chat: tuple[str, ...]
    """The ids of the chat, the widest first: a group, or a group and its thread."""
    sender: str
    """The platform's own id of the person, never a name that can be chosen."""
    name: str = ""
    text: str = ""
    attachments: tuple[Attachment, ...] = ()
    address: dict[str, Any] = {}
    """Where replies go, in the platform's own terms; it comes back as it was given. JSON."""
    home: str | None = None
    """The platform replies go out by, where that is another one; then `to` names the chat there."""
    to: str = ""
    terms: Terms = Terms()
    mentioned: bool = True
    """Whether the agent is meant: in a group, what people say to each other is none of its business."""


Why = Literal["person", "limit", "size", "empty"]
"""Why something is not taken: whoever sent it may not, it is too much at once, too large, or nothing at all."""


class Verdict(msgspec.Struct, frozen=True):
    """Whether what came in is taken, and what is said where it is not; silence where that is empty."""

    allowed: bool
    admin: bool = False
    say: str = ""
    pairs: bool = False
    """Whether what is said has a place for a code, which is made when it is sent."""
    why: Why = "person"
    retry_after: float = 0.0
    """Seconds after which it may be sent again; 0: nobody can say."""


class NotTaken(msgspec.Struct, frozen=True):
    """Something that came in and is not kept, for whoever has to answer it at once."""

    why: Why
    say: str = ""
    retry_after: float = 0.0


class Guard(Protocol):
    """Asked of everything that comes in, before it is stored: who may speak, and how often."""

    async def __call__(self, came: Came, route: str) -> Verdict: ...


IsAdmin = Callable[[str, str], Awaitable[bool]]
"""Whether a sender of a platform may give the commands that are for admins."""


class Door(Protocol):
    """Where platforms bring what came in."""

    async def came(self, came: Came) -> types.InboundMessage | None:
        """Store it; once this returns, the platform may acknowledge. None: it was not taken, for good.

        Raises StoreError where it could not be stored: then nothing is acknowledged, and it is brought again.
        """

    async def answered(self, came: Came) -> types.InboundMessage | NotTaken:
        """The same for a platform that answers at once: it is told why something was not taken, and nobody else is."""

    async def ask(self, came: Came, request: models.Request) -> models.Reply | NotTaken:
        """Have the model answer a request outside any conversation. Nothing is stored."""

    def withdraw(self, arrival: types.InboundMessage) -> None:
        """Stop the turn of a message whose client has gone, or never begin it."""

    async def refused(self, came: Came) -> NotTaken | None:
        """Why this would not be taken, for a platform that has to write something before it comes; None: it would."""


class Platform(Protocol):
    """A place that people or programs talk to the agent from."""

    @property
    def name(self) -> str:
        """Of letters, digits and dashes; it is a part of every route."""

    @property
    def limit(self) -> int:
        """How many characters one message may have."""

    async def run(self, door: Door) -> None:
        """Receive until cancelled. What raises is logged, and run again after a while."""

    async def send(self, outgoing: types.Outgoing) -> str:
        """Send one message; the platform's id of it. SendRefused: never try again; SendFailed: later.

        It may be called again with the same `outgoing.id` where nobody knows whether it was sent: a platform that can
        tell sends it once.
        """


# What some platforms can do besides. The gateway asks with isinstance, so that no platform has to say that it cannot.


@runtime_checkable
class Listens(Protocol):
    """Knows when it receives: until then a gateway is not ready."""

    async def listening(self) -> None:
        """Until what comes in is taken."""


@runtime_checkable
class Types(Protocol):
    """Shows that an answer is being written."""

    async def typing(self, address: dict[str, Any]) -> None: ...


@runtime_checkable
class Watches(Protocol):
    """Shows a turn as it goes: streams it, or edits a draft. The reply comes by `send` all the same."""

    def heard(self, arrival: types.InboundMessage, event: events.AnyEvent) -> None:
        """Called with each event of the turn of an arrival, in order. It must not wait, and whatever it raises is
        logged and changes nothing."""


@runtime_checkable
class Owns(Protocol):
    """Has connections that only the process can answer that holds them."""

    @property
    def alone(self) -> bool:
        """Whether no other process says the same of a message, as long as this one lives."""

    def owns(self, outgoing: types.Outgoing) -> bool:
        """Whether it is for this process to send it."""


@runtime_checkable
class Commands(Protocol):
    """Shows commands natively."""

    async def commands(self, listed: Sequence[commands.CommandInfo]) -> None: ...


@runtime_checkable
class Mute(Protocol):
    """Nobody there can be asked anything in the middle of a turn: what would be asked is denied at once."""

    @property
    def mute(self) -> bool: ...


def measured(platform: Platform | None) -> int:
    """How long a message to it may be, also where it is not there at the moment."""
    return platform.limit if platform is not None else 4_000


class Abilities(NamedTuple):
    """What a platform can do besides receiving and sending."""

    shows: Watches | None = None
    types: Types | None = None
    mute: Mute | None = None


def abilities(platform: Platform) -> Abilities:
    """To be found out once for a platform: it takes long."""
    return Abilities(
        platform if isinstance(platform, Watches) else None,
        platform if isinstance(platform, Types) else None,
        platform if isinstance(platform, Mute) else None,
    )
