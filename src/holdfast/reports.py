"""What long work on a store has to say when it is done: copies, exports, removals, rescues."""

from __future__ import annotations

from typing import Literal

import msgspec


class BackupReport(msgspec.Struct, frozen=True):
    """A copy that was made and passed every check. `lost_blobs` could not be copied: the store lacks them too."""

    path: str
    conversations: int
    sessions: int
    messages: int
    bytes: int
    blobs: int
    lost_blobs: tuple[str, ...]
    seconds: float


class RestoreReport(msgspec.Struct, frozen=True):
    """What the store holds since it was restored; `brought_back` are conversations that had been deleted."""

    path: str
    generation: int
    conversations: int
    sessions: int
    messages: int
    lost_blobs: tuple[str, ...]
    brought_back: tuple[str, ...]
    seconds: float


class CopyReport(msgspec.Struct, frozen=True):
    """A store that was copied into another, which has equal digests and passed every check.

    `rows` counts the rows besides conversations that were written. With `already_there` the copy was finished before,
    and was only compared. `digest` covers all conversations; `lost_blobs` are attachments that the source lacks too.
    """

    source: str
    target: str
    generation: int
    conversations: int
    sessions: int
    messages: int
    rows: int
    already_there: bool
    lost_blobs: tuple[str, ...]
    digest: str
    seconds: float


class ExportReport(msgspec.Struct, frozen=True):
    """What an export wrote; `origins` are conversations nobody named, which branches read from.

    `blobs` are the attachments its messages name, and `blob_bytes` their size. They are beside the export when
    it was given a path, but for `lost_blobs`: the store lacks those too.
    """

    conversations: int
    sessions: int
    messages: int
    origins: tuple[str, ...] = ()
    blobs: tuple[str, ...] = ()
    blob_bytes: int = 0
    lost_blobs: tuple[str, ...] = ()


class ImportOutcome(msgspec.Struct, frozen=True):
    """What became of one conversation of an export; without an id: of a part of it that names none.

    `line` is where it begins, or what is wrong. `kept_as` is its new id, where its own was deleted here;
    `title` its new title, where its own was taken; `routes` the keys that stay what they are here.
    """

    conversation_id: str | None
    outcome: Literal["imported", "already_there", "conflict", "refused"]
    line: int
    error: Exception | None = None
    kept_as: str | None = None
    title: str | None = None
    routes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return self.error is None


class ImportReport(msgspec.Struct, frozen=True):
    """What became of each conversation of an export, in its order, and how many messages came in.

    `blobs` attachments came in; `lost_blobs` are named by conversations that are here now, and are not here.
    """

    outcomes: tuple[ImportOutcome, ...]
    messages: int
    blobs: int = 0
    lost_blobs: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return all(outcome.ok for outcome in self.outcomes)

    def ids(self, outcome: str) -> list[str]:
        """The conversations of which this became."""
        return [one.conversation_id for one in self.outcomes if one.outcome == outcome and one.conversation_id]


class Prunable(msgspec.Struct, frozen=True):
    """A conversation that may go; or, with what it is needed for, one that may not."""

    conversation_id: str
    title: str | None
    messages: int
    bytes: int
    active_at: float
    needed: str | None = None


class PrunePlan(msgspec.Struct, frozen=True):
    """What a prune would remove, longest unused first, and what fits as well but is needed."""

    going: tuple[Prunable, ...]
    needed: tuple[Prunable, ...]
    total_bytes: int


class PruneReport(msgspec.Struct, frozen=True):
    """What went, after it was written to the archive; `kept` had changed, or had come to be needed, meanwhile.

    `lost_blobs` are attachments the archive lacks, since they are missing here, or damaged. A conversation that
    names a damaged one is among `kept`: what is left of that file would go with it.
    """

    archive: str | None
    removed: tuple[str, ...]
    kept: tuple[str, ...]
    bytes: int
    lost_blobs: tuple[str, ...] = ()


class Lost(msgspec.Struct, frozen=True):
    """Something a salvage could not bring over; without a conversation: of one whose name is lost, or of none."""

    what: str
    conversation_id: str | None = None
    first_seq: int | None = None
    last_seq: int | None = None


class SalvageReport(msgspec.Struct, frozen=True):
    """What a salvage brought over into a new store, which fsck finds sound, and exactly what it could not."""

    path: str
    conversations: int
    sessions: int
    messages: int
    lost: tuple[Lost, ...]
    seconds: float
