"""What comes in from outside and what goes out again: frozen values, known to others by the names of `types`."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec

OutgoingKind = Literal["reply", "notice", "question"]
"""What answers; what tells of something; what asks the person for a word."""
PersonRole = Literal["user", "admin", "denied"]


class NewArrival(msgspec.Struct, frozen=True, kw_only=True):
    """Something that has just come in. `platform` and `key` say what it is, however often it is sent."""

    platform: str
    key: str
    """The platform's own id of it."""
    route: str
    """The chat key: what comes in on one route is worked in order."""
    chat: str
    """The place replies go to; what goes there is sent in order."""
    sender: str
    address: dict[str, Any]
    """All that the platform needs to send a reply to that place."""
    text: str = ""
    parts: list[dict[str, Any]] = []
    """Content besides the text, as messages have it; attachments are named by their digests."""
    name: str = ""
    """What the sender goes by there."""
    home: str | None = None
    """The platform that replies go out by, where that is another one."""
    at: float | None = None


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """Something that came in, and what became of it."""

    id: int
    platform: str
    key: str
    route: str
    home: str
    chat: str
    sender: str
    address: dict[str, Any]
    text: str
    parts: list[dict[str, Any]]
    name: str
    at: float
    attempts: int = 0
    """How often somebody began to work on it."""
    target: str | None = None
    """The session id its turn uses: fixed before the turn begins, and never another."""
    joined: int | None = None
    """The arrival it was collected into."""
    outcome: str | None = None
    """What became of it; None while it is open."""
    conversation_id: str | None = None
    seq: int | None = None
    """The message it became, where it became one."""
    settled_at: float | None = None
    redacted: bool = False

    @property
    def open(self) -> bool:
        return self.outcome is None


class NewOutgoing(msgspec.Struct, frozen=True, kw_only=True):
    """Something to be sent. In a reply of several parts each is one of these, in order."""

    platform: str
    chat: str
    address: dict[str, Any]
    text: str = ""
    attachments: list[str] = []
    """Digests of blobs."""
    kind: OutgoingKind = "reply"
    seq: int | None = None
    """The message of the conversation whose words these are: when that is redacted, so is this."""


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """Something on its way out, or out."""

    id: int
    platform: str
    chat: str
    address: dict[str, Any]
    text: str
    attachments: list[str]
    kind: OutgoingKind
    at: float
    arrival: int | None = None
    """What it answers, or what was being answered when it was posted."""
    inbound: int | None = None
    """The notice in the inbox that it answers."""
    part: int | None = None
    """Which part of the reply, from 0 on; None: posted by itself, under `key`."""
    key: str | None = None
    conversation_id: str | None = None
    seq: int | None = None
    attempts: int = 0
    due_at: float = 0.0
    delivered_at: float | None = None
    external: str | None = None
    """The platform's own id of what was sent."""
    failed_at: float | None = None
    error: str | None = None
    redacted: bool = False

    @property
    def open(self) -> bool:
        return self.delivered_at is None and self.failed_at is None


class Claim(msgspec.Struct, frozen=True):
    """The right to work on something that has a key, until somebody else takes it."""

    key: str
    token: int
    holder: str
    ttl: float


class TakenUp(msgspec.Struct, frozen=True):
    """A route that was taken up: what waits there, and which of it was begun."""

    claim: Claim | None
    waiting: list[Arrival]
    begun: Arrival | None = None
    inbox_empty: bool = False
    """Whether nothing waited in the inbox of the conversation that it was begun in."""


class Awaited(msgspec.Struct, frozen=True):
    """A conversation in whose inbox something waits, and the route it was last spoken to from."""

    conversation_id: str
    oldest: int
    """The inbound that waits longest."""
    route: str


class ClaimHeld(msgspec.Struct, frozen=True):
    """A claim as others see it."""

    key: str
    token: int
    holder: str
    expires_in: float
    state: Literal["held", "expired", "dead"]


class Home(NamedTuple):
    """Where a conversation was last spoken to from: replies to its notices go there."""

    platform: str
    chat: str
    address: dict[str, Any]
    route: str


class Person(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody on a platform, and what they may do here."""

    platform: str
    sender: str
    role: PersonRole
    name: str
    at: float
    by: str
