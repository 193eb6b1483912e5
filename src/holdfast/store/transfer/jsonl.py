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
SealDigest = Annotated[str, Meta(pattern="^[0-9a-f]{32}\\Z")]

# The body of a redacted message, which its line omits.
NO_BODY = msgspec.Raw()


class HeaderLine(msgspec.Struct, frozen=True, tag_field="holdfast", tag="export"):
    version: int


class _BaseLine(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind"
):
    """Any other line. Fields with their default value are omitted."""


class ConversationLine(_BaseLine, frozen=True, kw_only=True, tag="conversation"):
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


class SessionLine(_BaseLine, frozen=True, kw_only=True, tag="session"):
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


class MessageLine(_BaseLine, frozen=True, kw_only=True, tag="message"):
    """A message with its body exactly as stored."""

    seq: Seq
    session: Ordinal
    uid: str
    role: types.Role
    at: float
    body: msgspec.Raw = NO_BODY
    redacted_at: float | None = None


class CompactionLine(_BaseLine, frozen=True, kw_only=True, tag="compaction"):
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


class ActiveCompactionLine(_BaseLine, frozen=True, kw_only=True, tag="stand"):
    """An undo or redo made this compaction the active one, or none."""

    compaction_epoch: Counter | None = None


class HideLine(_BaseLine, frozen=True, kw_only=True, tag="hide"):
    epoch: Counter
    from_seq: Seq
    to_seq: Seq


class ShowLine(_BaseLine, frozen=True, kw_only=True, tag="show"):
    """The range that was hidden at `epoch` was shown again."""

    epoch: Counter
    from_seq: Seq
    shown_epoch: Counter


class RouteLine(_BaseLine, frozen=True, kw_only=True, tag="route"):
    key: str
    version: Counter
    updated_at: float


class BlobLine(_BaseLine, frozen=True, kw_only=True, tag="blob"):
    """An attachment that messages of this conversation refer to. Size and type are omitted where unknown."""

    digest: blobs.Digest
    size: Counter | None = None
    media_type: blobs.MediaType | None = None


class SealLine(_BaseLine, frozen=True, kw_only=True, tag="sealed"):
    """The last line of a conversation: counts, and a digest of its other lines."""

    id: str
    sessions: Counter
    messages: Counter
    digest: SealDigest


class EndLine(_BaseLine, frozen=True, kw_only=True, tag="end"):
    """The last line of the file: the number of conversations and a digest of their digests."""

    conversations: Counter
    digest: SealDigest


HistoryLine = SessionLine | MessageLine | CompactionLine | ActiveCompactionLine | HideLine | ShowLine
Line = ConversationLine | HistoryLine | RouteLine | BlobLine | SealLine | EndLine

encode = msgspec.json.Encoder(order="sorted").encode
_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)
decode = _decoder.decode
decode_header = msgspec.json.Decoder(HeaderLine).decode


def order_lines(
    conversation: ConversationLine,
    sessions: Iterable[SessionLine],
    next_compaction: Callable[[int], CompactionLine | None],
    view_changes: Callable[[int, int], Iterable[Sequence[Any]]],
    messages: Callable[[SessionLine], Iterable[MessageLine]],
) -> Iterator[HistoryLine]:
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


def _order_changes(before: int | None, after: int | None, changes: Iterable[Sequence[Any]]) -> Iterator[HistoryLine]:
    """Yield the changes of the context between two compactions: undos and redos, hides and shows."""
    if before != after:
        yield ActiveCompactionLine(compaction_epoch=after)
    for at, from_seq, to_seq, hidden in changes:
        if hidden is None:
            yield HideLine(epoch=at, from_seq=from_seq, to_seq=to_seq)
        else:
            yield ShowLine(epoch=hidden, from_seq=from_seq, shown_epoch=at)


class SealBuilder:
    """Counts and digests the lines of one conversation, of which the first has its id."""

    def __init__(self) -> None:
        self.id = ""
        self.sessions = self.messages = 0
        self._digest = blake2b(digest_size=16)

    def add(self, line: Line, data: bytes) -> None:
        self._digest.update(data + b"\n")
        if isinstance(line, MessageLine):
            self.messages += 1
        elif isinstance(line, SessionLine):
            self.sessions += 1
        elif isinstance(line, ConversationLine):
            self.id = line.id

    def build(self) -> SealLine:
        digest = self._digest.hexdigest()
        return SealLine(id=self.id, sessions=self.sessions, messages=self.messages, digest=digest)


class EndBuilder:
    """Counts and digests the conversations of one file."""

    def __init__(self) -> None:
        self.conversations = self.sessions = self.messages = 0
        self._digest = blake2b(digest_size=16)

    def add(self, sealed: SealLine) -> None:
        self.conversations += 1
        self.sessions += sealed.sessions
        self.messages += sealed.messages
        self._digest.update(sealed.digest.encode())

    def build(self) -> EndLine:
        return EndLine(conversations=self.conversations, digest=self._digest.hexdigest())
