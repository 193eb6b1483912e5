"""The line format of an export: one JSON object per line with sorted keys, so that equal stores export equal bytes.

A file is a header, conversations and an end line. The lines of a conversation are in the order in which they can be
written again: the conversation; each session, the compaction that opened it, and its messages; before the next
compaction (or the end) the hides, shows, undos and redos made in between; the routes; the attachments that messages
refer to; and a seal over all of them. The end line seals the seals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast import types
from holdfast.store.blobs import blobs

VERSION = 1

# Far below the largest integer of the database, so that an imported conversation can go on counting.
Counter = Annotated[int, Meta(ge=0, le=2**62)]
Seq = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Ordinal = Annotated[int, Meta(ge=1, le=2**32 - 1)]
Seal = Annotated[str, Meta(pattern="^[0-9a-f]{32}\\Z")]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}\\Z")]
MediaType = Annotated[str, Meta(max_length=200, pattern=rf"(?a)^{blobs.MEDIA_TYPE}\Z")]

# The body of a redacted message, which its line omits.
NO_BODY = msgspec.Raw()


class Header(msgspec.Struct, frozen=True, tag_field="holdfast", tag="export"):
    """The first line of a file."""

    version: int


class _Line(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind"
):
    """Any other line. Fields with their default value are omitted."""


class Conversation(_Line, frozen=True, kw_only=True, tag="conversation"):
    """The final state of a conversation. `origin` is an id, not a key."""

    id: str
    owner: str = ""
    source: str
    title: str | None = None
    created_at: float
    head: Ordinal
    live: bool
    epoch: Counter
    last_seq: Seq
    fence: Counter
    compaction_epoch: Counter | None = None
    redo_epoch: Counter | None = None
    forked_from: str | None = None
    forked_at: Seq | None = None
    forked_epoch: Counter | None = None
    origin: str | None = None
    folder: str | None = None
    metadata: dict[str, Any] = {}


class Session(_Line, frozen=True, kw_only=True, tag="session"):
    """The final state of a session. Its messages follow."""

    ordinal: Ordinal
    id: str
    source: str
    model: str | None = None
    started_at: float
    ended_at: float | None = None
    end_reason: str | None = None
    first_seq: Seq
    last_seq: Seq | None = None


class Message(_Line, frozen=True, kw_only=True, tag="message"):
    """A message with its body exactly as stored."""

    seq: Seq
    session: Ordinal
    uid: str
    role: types.Role
    at: float
    body: msgspec.Raw = NO_BODY
    redacted_at: float | None = None


class Compaction(_Line, frozen=True, kw_only=True, tag="compaction"):
    """The compaction that opened the session of the line before."""

    epoch: Counter
    base_epoch: Counter | None = None
    session: Ordinal
    cut_seq: Seq
    seen_seq: Seq
    token: Counter | None = None
    at: float
    body: msgspec.Raw
    redacted_at: float | None = None


class ActiveCompaction(_Line, frozen=True, kw_only=True, tag="stand"):
    """An undo or redo made this compaction the active one, or none."""

    compaction_epoch: Counter | None = None


class Hide(_Line, frozen=True, kw_only=True, tag="hide"):
    """A range of messages was hidden."""

    epoch: Counter
    from_seq: Seq
    to_seq: Seq


class Show(_Line, frozen=True, kw_only=True, tag="show"):
    """The range that was hidden at `epoch` was shown again."""

    epoch: Counter
    from_seq: Seq
    shown_epoch: Counter


class Route(_Line, frozen=True, kw_only=True, tag="route"):
    """A route bound to this conversation."""

    key: str
    version: Counter
    updated_at: float


class Blob(_Line, frozen=True, kw_only=True, tag="blob"):
    """An attachment that messages of this conversation refer to. Size and type are omitted where unknown."""

    digest: Digest
    size: Counter | None = None
    media_type: MediaType | None = None


class Sealed(_Line, frozen=True, kw_only=True, tag="sealed"):
    """The last line of a conversation: counts, and a digest of its other lines."""

    id: str
    sessions: Counter
    messages: Counter
    digest: Seal


class End(_Line, frozen=True, kw_only=True, tag="end"):
    """The last line of the file: the number of conversations and a digest of their digests."""

    conversations: Counter
    digest: Seal


Line = Conversation | Session | Message | Compaction | ActiveCompaction | Hide | Show | Route | Blob | Sealed | End

encode = msgspec.json.Encoder(order="sorted").encode
_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)
decode = _decoder.decode
decode_header = msgspec.json.Decoder(Header).decode


def order_lines(
    conversation: Conversation,
    sessions: Iterable[Session],
    next_compaction: Callable[[int], Compaction | None],
    view_changes: Callable[[int, int], Iterable[Sequence[Any]]],
    messages: Callable[[Session], Iterable[Message]],
) -> Iterator[Line]:
    """Yield the lines of a conversation up to its last message or change, in the order described above.

    `next_compaction` returns the first compaction after an epoch. `view_changes` returns the hides and shows between
    two epochs: the epoch, the range, and for a show the epoch of the hide that it ends.
    """
    active, since = None, 0
    coming = next_compaction(0)
    for session in sessions:
        opened = coming if coming and coming.session == session.ordinal else None
        if opened:
            yield from _order_changes(active, opened.base_epoch, view_changes(since, opened.epoch))
        yield session
        if opened:
            yield opened
            active = since = opened.epoch
            coming = next_compaction(since)
        yield from messages(session)
    yield from _order_changes(active, conversation.compaction_epoch, view_changes(since, conversation.epoch + 1))


def _order_changes(before: int | None, after: int | None, changes: Iterable[Sequence[Any]]) -> Iterator[Line]:
    """Yield the changes of the context between two compactions: undos and redos, hides and shows."""
    if before != after:
        yield ActiveCompaction(compaction_epoch=after)
    for at, from_seq, to_seq, hidden in changes:
        if hidden is None:
            yield Hide(epoch=at, from_seq=from_seq, to_seq=to_seq)
        else:
            yield Show(epoch=hidden, from_seq=from_seq, shown_epoch=at)


class SealBuilder:
    """Counts and digests the lines of one conversation."""

    def __init__(self, conversation_id: str) -> None:
        self.id = conversation_id
        self.sessions = 0
        self.messages = 0
        self._digest = blake2b(digest_size=16)

    def add(self, line: Line, data: bytes) -> None:
        self._digest.update(data + b"\n")
        if isinstance(line, Message):
            self.messages += 1
        elif isinstance(line, Session):
            self.sessions += 1

    def build(self) -> Sealed:
        digest = self._digest.hexdigest()
        return Sealed(id=self.id, sessions=self.sessions, messages=self.messages, digest=digest)


class EndBuilder:
    """Counts and digests the conversations of one file."""

    def __init__(self) -> None:
        self.conversations = 0
        self._digest = blake2b(digest_size=16)

    def add(self, sealed: Sealed) -> None:
        self.conversations += 1
        self._digest.update(sealed.digest.encode())

    def build(self) -> End:
        return End(conversations=self.conversations, digest=self._digest.hexdigest())
