"""Reports of long operations on a store: backup, restore, copy, export, import, prune and salvage."""

from __future__ import annotations

from typing import Literal

import msgspec


class BackupReport(msgspec.Struct, frozen=True):
    """A backup that passed every check. `lost_blobs` are attachments that the store lacks."""

    path: str
    conversations: int
    sessions: int
    messages: int
    bytes: int
    blobs: int
    lost_blobs: tuple[str, ...]
    seconds: float


class RestoreReport(msgspec.Struct, frozen=True):
    """The content of a restored store. `brought_back` are conversations that had been deleted."""

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
    """The content of an export. `origins` are conversations included because branches read from them.

    `blobs` are the attachments that its messages name, and `blob_bytes` their size. An export to a path stores them
    next to it, except `lost_blobs`, which the store lacks.
    """

    conversations: int
    sessions: int
    messages: int
    origins: tuple[str, ...] = ()
    blobs: tuple[str, ...] = ()
    blob_bytes: int = 0
    lost_blobs: tuple[str, ...] = ()


class ImportOutcome(msgspec.Struct, frozen=True):
    """The outcome of one conversation of an export; without an id, of a part that names no conversation.

    `line` is its first line, or the line with the error. `kept_as` is its new id if its own was deleted here, `title`
    its new title if its own was taken, and `routes` the keys that were bound here already and are left unchanged.
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
    """The outcome of each conversation of an export, in order, and the number of imported messages.

    `blobs` is the number of imported attachments; `lost_blobs` are named by imported conversations and missing.
    """

    outcomes: tuple[ImportOutcome, ...]
    messages: int
    blobs: int = 0
    lost_blobs: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return all(outcome.ok for outcome in self.outcomes)

    def ids(self, outcome: str) -> list[str]:
        """Return the ids of the conversations with this outcome."""
        return [one.conversation_id for one in self.outcomes if one.outcome == outcome and one.conversation_id]


class Prunable(msgspec.Struct, frozen=True):
    """A conversation that matches a prune. `needed` states why it is kept, if it is."""

    conversation_id: str
    title: str | None
    messages: int
    bytes: int
    active_at: float
    needed: str | None = None


class PrunePlan(msgspec.Struct, frozen=True):
    """The conversations that a prune would remove, least recently used first, and those it would keep."""

    going: tuple[Prunable, ...]
    needed: tuple[Prunable, ...]
    total_bytes: int


class PruneReport(msgspec.Struct, frozen=True):
    """The conversations that a prune removed after archiving them. `kept` had changed, or are needed now.

    `lost_blobs` are attachments that the archive lacks because they are missing or damaged in the store. A conversation
    that names a damaged one is kept, because its removal would remove the rest of that file.
    """

    archive: str | None
    removed: tuple[str, ...]
    kept: tuple[str, ...]
    bytes: int
    lost_blobs: tuple[str, ...] = ()


class Lost(msgspec.Struct, frozen=True):
    """Data that a salvage could not recover. Without an id, the conversation is unknown, or there is none."""

    what: str
    conversation_id: str | None = None
    first_seq: int | None = None
    last_seq: int | None = None


class SalvageReport(msgspec.Struct, frozen=True):
    """The data that a salvage recovered into a new store, which passed fsck, and the data it could not recover."""

    path: str
    conversations: int
    sessions: int
    messages: int
    lost: tuple[Lost, ...]
    seconds: float
