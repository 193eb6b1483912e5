"""Frozen values that all packages share. They depend on neither storage nor providers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, overload

import msgspec

from holdfast import errors, mail_types

Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[Role, ...] = ("system", "user", "assistant", "tool")

NewInboundMessage = mail_types.NewInboundMessage
InboundMessage = mail_types.InboundMessage
Home = mail_types.Home
NewOutgoing = mail_types.NewOutgoing
Outgoing = mail_types.Outgoing
OutgoingKind = mail_types.OutgoingKind
ChatLease = mail_types.ChatLease
NextInbound = mail_types.NextInbound
Link = mail_types.Link
OpenInbox = mail_types.OpenInbox
ChatLeaseHeld = mail_types.ChatLeaseHeld
Contact = mail_types.Contact
ContactRole = mail_types.ContactRole

Content = str | list[dict[str, Any]]
Purpose = Literal["compact", "turn"]


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool call of the model. Arguments are stored as the model sent them, valid JSON or not.

    `extra` holds other fields of the provider, which are sent back with the call.
    """

    id: str
    name: str = ""
    arguments: str | dict[str, Any] = ""
    extra: dict[str, Any] = {}

    @property
    def arguments_text(self) -> str:
        """The arguments as JSON text."""
        return self.arguments if isinstance(self.arguments, str) else msgspec.json.encode(self.arguments).decode()


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Token usage of a model call. `input` includes tokens read from and written to the provider's cache.

    `cost` is in US dollars, None if the price is unknown.
    """

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0
    cost: float | None = None

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cache_read + other.cache_read,
            self.cache_write + other.cache_write,
            self.reasoning + other.reasoning,
            None if self.cost is None and other.cost is None else (self.cost or 0.0) + (other.cost or 0.0),
        )


class Body(msgspec.Struct, frozen=True, omit_defaults=True):
    """The JSON body of a stored message. Unknown keys are ignored.

    Tool calls come first, so that a reader can tell from the first characters whether there are any.
    """

    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    content: Content = ""
    model: str | None = None
    usage: Usage | None = None
    metadata: dict[str, Any] = {}


_decode = msgspec.json.Decoder(Body).decode


class Message(msgspec.Struct, frozen=True, dict=True):
    """A message of the log. Its body is decoded on first access."""

    seq: int
    uid: str
    session_id: str
    role: Role
    at: float
    body: str

    @cached_property
    def _decoded(self) -> Body:
        try:
            return _decode(self.body) if self.body else Body()
        except msgspec.DecodeError:
            raise errors.StoreCorrupt(
                f"Message {self.seq} of {self.session_id} is damaged and cannot be read. Run `holdfast doctor`."
            ) from None

    @property
    def content(self) -> Content:
        return self._decoded.content

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return self._decoded.tool_calls

    @property
    def tool_call_id(self) -> str | None:
        return self._decoded.tool_call_id

    @property
    def model(self) -> str | None:
        """The model that wrote the message, if known."""
        return self._decoded.model

    @property
    def usage(self) -> Usage | None:
        """The usage of the model call that produced the message."""
        return self._decoded.usage

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the embedding program, which a model never sees; empty after a redaction."""
        return self._decoded.metadata

    @property
    def redacted(self) -> bool:
        return not self.body


class ToolSpec(msgspec.Struct, frozen=True):
    """The description of a tool for a model. `parameters` is the JSON Schema of an object."""

    name: str
    description: str
    parameters: dict[str, Any]


class NewMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message to append."""

    role: Role
    content: Content = ""
    uid: str | None = None
    tool_calls: Sequence[ToolCall | Mapping[str, Any]] = ()
    tool_call_id: str | None = None
    at: float | None = None
    model: str | None = None
    usage: Usage | None = None
    metadata: Mapping[str, Any] | None = None


class NewConversation(msgspec.Struct, frozen=True, kw_only=True):
    """The values of a conversation that is created together with its first message."""

    source: str
    model: str | None = None
    title: str | None = None
    owner: str = ""
    route: str | None = None
    folder: str | None = None
    """The working directory, an absolute path; `list_sessions` filters by it."""
    metadata: Mapping[str, Any] | None = None


class Receipt(msgspec.Struct, frozen=True):
    """An acknowledged append: the message is durable in the log at this seq."""

    seq: int
    uid: str
    session_id: str
    conversation_id: str
    epoch: int
    moved_from: str | None = None
    duplicate: bool = False
    resumed: bool = False


class Session(msgspec.Struct, frozen=True):
    """One segment of a conversation."""

    id: str
    conversation_id: str
    ordinal: int
    parent_session_id: str | None
    owner: str
    source: str
    model: str | None
    title: str | None
    started_at: float
    ended_at: float | None
    end_reason: str | None
    first_seq: int
    last_seq: int
    active_at: float
    folder: str | None = None
    metadata: dict[str, Any] = {}
    """Owner, title, folder and metadata are those of the conversation."""

    @property
    def live(self) -> bool:
        return self.ended_at is None

    @property
    def message_count(self) -> int:
        return self.last_seq - self.first_seq + 1


class Conversation(msgspec.Struct, frozen=True):
    """The current state of a conversation."""

    id: str
    owner: str
    source: str
    title: str | None
    created_at: float
    head_id: str
    live: bool
    epoch: int
    last_seq: int
    compaction_epoch: int | None
    redo_epoch: int | None
    forked_from: str | None
    forked_at: int | None
    folder: str | None = None
    metadata: dict[str, Any] = {}


class Snapshot(msgspec.Struct, frozen=True):
    """The state of a conversation when slow work on it began. The commit compares against it."""

    conversation_id: str
    head_id: str
    epoch: int
    last_seq: int


class Lease(msgspec.Struct, frozen=True):
    """The right to do slow work on a conversation, with the snapshot from when it was acquired."""

    snapshot: Snapshot
    purpose: Purpose
    token: int
    holder: str
    ttl: float

    @property
    def conversation_id(self) -> str:
        return self.snapshot.conversation_id


class LeaseHeld(msgspec.Struct, frozen=True):
    """A lease as other processes see it."""

    conversation_id: str
    purpose: Purpose
    token: int
    holder: str
    host: str
    pid: int
    expires_in: float
    state: Literal["held", "expired", "dead"]
    snap_seq: int
    thread: int = 0
    agent: str = ""
    acquired_at: float | None = None
    """Unix time; None for a lease acquired by an older version."""


class Compaction(msgspec.Struct, frozen=True):
    """A summary and pinned messages that replace everything up to cut_seq in the context."""

    epoch: int
    base_epoch: int | None
    session_id: str
    cut_seq: int
    seen_seq: int
    token: int | None
    at: float
    summary: str
    pinned: tuple[int, ...] = ()
    ledger: dict[str, Any] = {}


class Hide(msgspec.Struct, frozen=True):
    """A range of messages that /undo removed from the context; it can be shown again."""

    epoch: int
    from_seq: int
    to_seq: int
    shown_epoch: int | None


class Pin(msgspec.Struct, frozen=True):
    """A message that stays in the context verbatim."""

    seq: int
    at: float


class Route(msgspec.Struct, frozen=True):
    """A chat key and the conversation it names (None: the next message starts a new one)."""

    key: str
    conversation_id: str | None
    version: int
    owner: str = ""
    """The owner of the conversation."""


class Context(Sequence[Message]):
    """The model's view: pinned messages, summary, and all messages after the cut. Computed, never stored."""

    __slots__ = ("compaction", "conversation_id", "cut_seq", "epoch", "last_seq", "messages", "running", "session_id")

    def __init__(
        self,
        messages: Sequence[Message],
        *,
        conversation_id: str,
        session_id: str,
        epoch: int,
        last_seq: int,
        cut_seq: int = 0,
        compaction: Compaction | None = None,
        running: frozenset[str] = frozenset(),
    ) -> None:
        self.messages = tuple(messages)
        self.conversation_id = conversation_id
        self.session_id = session_id
        self.epoch = epoch
        self.last_seq = last_seq
        self.cut_seq = cut_seq
        self.compaction = compaction
        self.running = running

    @property
    def summary(self) -> str | None:
        return self.compaction.summary if self.compaction else None

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        return self.messages[index]

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __repr__(self) -> str:
        return (
            f"<Context of {self.conversation_id}: {len(self)} messages, epoch {self.epoch}, last_seq {self.last_seq}>"
        )


class Hit(msgspec.Struct, frozen=True):
    """A search result: the message, its best matching snippet, and a score."""

    session_id: str
    seq: int
    role: Role
    content: str
    snippet: str
    score: float
    conversation_id: str
    at: float
    before: tuple[Message, ...] = ()
    after: tuple[Message, ...] = ()


class Violation(msgspec.Struct, frozen=True):
    """A broken promise, found by fsck."""

    promise: str
    conversation_id: str
    detail: str


class Report(msgspec.Struct, frozen=True):
    """The result of fsck."""

    conversations: int
    sessions: int
    messages: int
    violations: tuple[Violation, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        return not self.violations


class Blob(msgspec.Struct, frozen=True):
    """An attachment. Its id is the digest of its content."""

    digest: str
    size: int
    media_type: str
    at: float


class Collected(msgspec.Struct, frozen=True):
    """The number and size of attachments that garbage collection removed."""

    blobs: int
    bytes: int


# --- records of agents ---------------------------------------------------------------------------------

ProcessState = Literal["running", "exited", "killed", "gone"]
"""Running, exited by itself, killed, or gone with an unknown exit code."""


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A background process that an agent started."""

    id: str
    conversation_id: str
    command: str
    folder: str
    started_at: float
    place: str
    """How to find the process again: JSON written by the tool that started it."""
    state: ProcessState = "running"
    ended_at: float | None = None
    exit_code: int | None = None


class InboxEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An inbox entry of a conversation. It is answered once."""

    id: int
    key: str
    """The idempotency key: an entry sent again with the same key is stored once."""
    conversation_id: str
    text: str
    kind: str
    at: float
    outcome: str | None = None
    """None while it waits."""
    seq: int | None = None
    """The message that it became, if any."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """A fact about an owner, available in all conversations of that owner."""

    id: int
    owner: str
    text: str
    at: float
    updated_at: float
    source: str | None = None
    """The conversation in which it was recorded."""


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """A permission that was granted permanently."""

    id: int
    owner: str
    rule: str
    conversation_id: str | None
    """The conversation it applies to; None for all conversations of the owner."""
    at: float
    by: str


class Audited(msgspec.Struct, frozen=True, kw_only=True):
    """An audited tool call and its decision."""

    id: int
    conversation_id: str
    call_id: str
    tool: str
    summary: str
    allowed: bool
    by: str
    """The decider: a rule, a grant, a user of a client, or the lack of a client that could ask."""
    at: float
    ended_at: float | None = None
    ok: bool | None = None
    """Whether the call succeeded; None while it runs, and if its process died."""
