"""The lines of an export: one JSON object each, with its keys sorted, so that equal stores give equal bytes.

A conversation is told in the order in which it can be written again: its own line; each session with its
messages; the compaction that opened a session right after that session; hides, shows and what the
context stood on before the compaction (or the end) that came after them; its routes; the attachments its
messages name; and a last line that seals all of them. The file begins with a header and ends with a line
that seals the seals.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast import types

VERSION = 1

# Far below what the database can count to, so that what is imported can go on counting.
Counter = Annotated[int, Meta(ge=0, le=2**62)]
Seq = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Ordinal = Annotated[int, Meta(ge=1, le=2**32 - 1)]
Seal = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]

# The body of a redacted message: none. Left out of its line.
NOTHING = msgspec.Raw()


class Header(msgspec.Struct, frozen=True, tag_field="holdfast", tag="export"):
    """The first line."""

    version: int


class Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind"):
    """Any other line; what is not there is left out."""


class Conversation(Line, frozen=True, kw_only=True, tag="conversation"):
    """Where a conversation stands in the end. Its origin is named by its id."""

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


class Session(Line, frozen=True, kw_only=True, tag="session"):
    """A session as it is in the end; its messages follow."""

    ordinal: Ordinal
    id: str
    source: str
    model: str | None = None
    started_at: float
    ended_at: float | None = None
    end_reason: str | None = None
    first_seq: Seq
    last_seq: Seq | None = None


class Message(Line, frozen=True, kw_only=True, tag="message"):
    """A message, its body exactly as stored."""

    seq: Seq
    session: Ordinal
    uid: str
    role: types.Role
    at: float
    body: msgspec.Raw = NOTHING
    redacted_at: float | None = None


class Compaction(Line, frozen=True, kw_only=True, tag="compaction"):
    """The compaction that opened the session told just before."""

    epoch: Counter
    base_epoch: Counter | None = None
    session: Ordinal
    cut_seq: Seq
    seen_seq: Seq
    token: Counter | None = None
    at: float
    body: msgspec.Raw
    redacted_at: float | None = None


class Stand(Line, frozen=True, kw_only=True, tag="stand"):
    """From here on the context stands on this compaction (an undo or a redo; None: on none)."""

    compaction_epoch: Counter | None = None


class Hide(Line, frozen=True, kw_only=True, tag="hide"):
    """A range leaves the context."""

    epoch: Counter
    from_seq: Seq
    to_seq: Seq


class Show(Line, frozen=True, kw_only=True, tag="show"):
    """A range that was hidden at an epoch comes back."""

    epoch: Counter
    from_seq: Seq
    shown_epoch: Counter


class Route(Line, frozen=True, kw_only=True, tag="route"):
    """A chat key that names this conversation."""

    key: str
    version: Counter
    updated_at: float


class Blob(Line, frozen=True, kw_only=True, tag="blob"):
    """An attachment that messages told before name; only its digest, when the store knew no more of it."""

    digest: Digest
    size: Counter | None = None
    media_type: str | None = None


class Sealed(Line, frozen=True, kw_only=True, tag="sealed"):
    """The last line of a conversation: how much was told, and a digest of all its lines before this one."""

    id: str
    sessions: Counter
    messages: Counter
    digest: Seal


class End(Line, frozen=True, kw_only=True, tag="end"):
    """The last line of the file: how many conversations, and a digest of their digests."""

    conversations: Counter
    digest: Seal


Any = Conversation | Session | Message | Compaction | Stand | Hide | Show | Route | Blob | Sealed | End

encode = msgspec.json.Encoder(order="sorted").encode
_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Any)
decode = _decoder.decode
decode_header = msgspec.json.Decoder(Header).decode


class Sealing:
    """Counts and digests the lines of one conversation, on their way out or in."""

    def __init__(self, conversation_id: str) -> None:
        self.id = conversation_id
        self.sessions = 0
        self.messages = 0
        self._digest = blake2b(digest_size=16)

    def add(self, line: Any, data: bytes) -> None:
        self._digest.update(data + b"\n")
        if isinstance(line, Message):
            self.messages += 1
        elif isinstance(line, Session):
            self.sessions += 1

    def sealed(self) -> Sealed:
        digest = self._digest.hexdigest()
        return Sealed(id=self.id, sessions=self.sessions, messages=self.messages, digest=digest)


class Ending:
    """The same for the conversations of a file."""

    def __init__(self) -> None:
        self.conversations = 0
        self._digest = blake2b(digest_size=16)

    def add(self, sealed: Sealed) -> None:
        self.conversations += 1
        self._digest.update(sealed.digest.encode())

    def end(self) -> End:
        return End(conversations=self.conversations, digest=self._digest.hexdigest())
