"""Values of the mail queues: inbound and outbound messages, chat leases and contacts. `holdfast.types` exports them."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec

OutgoingKind = Literal["reply", "notice", "question"]
"""A reply to an inbound message, a notification, or a question that expects an answer."""
ContactRole = Literal["user", "admin", "denied"]


class NewInboundMessage(msgspec.Struct, frozen=True, kw_only=True):
    """An inbound message to store. `platform` and `key` identify it when a platform delivers it again."""

    platform: str
    key: str
    """The platform's id of the message."""
    route: str
    """The chat key. Messages of one route are processed in order."""
    chat: str
    """The chat that replies are sent to. Messages to one chat are sent in order."""
    sender: str
    address: dict[str, Any]
    """The data that the platform needs to send a reply to the chat."""
    text: str = ""
    parts: list[dict[str, Any]] = []
    """Content parts other than the text, as in a message. Attachments are named by their digests."""
    name: str = ""
    """The display name of the sender."""
    home: str | None = None
    """The platform that sends replies, if it is another one."""
    at: float | None = None


class InboundMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A stored inbound message and its outcome."""

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
    """The number of attempts to process it."""
    target: str | None = None
    """The session id of its turn, fixed before the turn begins."""
    joined: int | None = None
    """The inbound message that it was joined into."""
    outcome: str | None = None
    """None while it is open."""
    conversation_id: str | None = None
    seq: int | None = None
    """The message of the conversation that it became, if any."""
    settled_at: float | None = None
    linked_owner: str | None = None
    """The owner that the sender is linked to; None without a link, and in the result of `add_inbound`."""
    redacted: bool = False

    @property
    def open(self) -> bool:
        return self.outcome is None


class NewOutgoing(msgspec.Struct, frozen=True, kw_only=True):
    """An outbound message to queue. A long reply is several of these, in order."""

    platform: str
    chat: str
    address: dict[str, Any]
    text: str = ""
    attachments: list[str] = []
    """Digests of blobs."""
    file_names: dict[str, str] = {}
    """The file names of attachments that have one, by digest."""
    kind: OutgoingKind = "reply"
    seq: int | None = None
    """The message of the conversation that it quotes. Redacting that message redacts this one."""


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """A queued, delivered or failed outbound message."""

    id: int
    platform: str
    chat: str
    address: dict[str, Any]
    text: str
    attachments: list[str]
    kind: OutgoingKind
    at: float
    inbound_id: int | None = None
    """The inbound message that it answers, or that was being processed when it was posted."""
    inbox_entry_id: int | None = None
    """The inbox entry that it answers."""
    part: int | None = None
    """The index of the part of a reply; None for a message posted under `key`."""
    key: str | None = None
    conversation_id: str | None = None
    seq: int | None = None
    attempts: int = 0
    due_at: float = 0.0
    delivered_at: float | None = None
    external: str | None = None
    """The platform's id of the delivered message."""
    failed_at: float | None = None
    error: str | None = None
    redacted: bool = False
    behind: int = 0
    """How many undelivered messages of its chat come after it; only `due_outgoing` counts them."""
    file_names: dict[str, str] = {}

    @property
    def open(self) -> bool:
        return self.delivered_at is None and self.failed_at is None


class ChatLease(msgspec.Struct, frozen=True):
    """A lease on a key, such as a route or a chat."""

    key: str
    token: int
    holder: str
    ttl: float


class NextInbound(msgspec.Struct, frozen=True):
    """The chat lease of a route, its open messages, and the message whose turn begins."""

    lease: ChatLease | None
    waiting: list[InboundMessage]
    begun: InboundMessage | None = None
    inbox_empty: bool = False
    """Whether the inbox of the conversation has no open entries."""


class OpenInbox(msgspec.Struct, frozen=True):
    """A conversation with open inbox entries, and the route of its last inbound message."""

    conversation_id: str
    oldest: int
    """The id of the oldest open entry."""
    route: str


class ChatLeaseHeld(msgspec.Struct, frozen=True):
    """A chat lease as other processes see it."""

    key: str
    token: int
    holder: str
    expires_in: float
    state: Literal["held", "expired", "dead"]


class Home(NamedTuple):
    """A chat of a conversation, as its last inbound message describes it. Replies to notices are sent there."""

    platform: str
    chat: str
    address: dict[str, Any]
    route: str
    sender: str
    owner: str
    """The owner of the conversation."""
    linked_owner: str | None
    """The owner that the sender is linked to now; None without a link."""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """A sender who uses the conversations and notes of an owner."""

    platform: str
    sender: str
    owner: str
    """The owner: `platform:sender` of another identity of the same person, or empty for the terminal."""
    at: float


class Contact(msgspec.Struct, frozen=True, kw_only=True):
    """A contact: a user of a platform, and their role."""

    platform: str
    sender: str
    role: ContactRole
    name: str
    at: float
    by: str
