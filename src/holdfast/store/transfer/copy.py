"""Copy everything one store holds into another, on either database.

The source is read in one snapshot. The target is written in one transaction, with every constraint in force, and is
then compared with the snapshot conversation by conversation and row by row, and checked by fsck. Only then is the
copy marked as finished; finishing voids leases and advances counters, so that nothing begun on the source can commit
on the target.

A store is marked as a copy before anything is written to it. Until the copy is finished, `unfinished` is true of it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, Protocol

import msgspec

from holdfast import errors, reports
from holdfast.store import fault_points, fsck, store_meta
from holdfast.store.backup import schedule as backup_schedule
from holdfast.store.blobs import blobs
from holdfast.store.blobs import files as blob_files
from holdfast.store.driver import Driver, Progress, Tx
from holdfast.store.search import search
from holdfast.store.transfer import copy_tables, export, replay
from holdfast.store.transfer import format as transfer_format


class Store(Protocol):
    """The parts of a SessionDB that a copy uses."""

    driver: Driver
    searcher: search.Searcher

    @property
    def _blob_files(self) -> blob_files.BlobFiles: ...

    @property
    def _clock(self) -> Callable[[], float]: ...


class ConversationDigest(NamedTuple):
    """A conversation in short. Finishing a copy advances the counters, and leaves the seal as it is."""

    seal: transfer_format.Sealed
    counters: tuple[int, int]


def copy(source: Store, target: Store, progress: Progress | None = None) -> reports.CopyReport:
    """Copy the source into an empty target and verify the copy.

    The copy holds the state of the source when it began; later writes are not in it. If the copy was interrupted, the
    same call begins again. Raises CopyRefused when the target holds other data, CopyUnfinished when the two differ.
    """
    return copy_from(source.driver, source._blob_files, target, progress)


def copy_from(
    source: Driver, attachments: blob_files.BlobFiles, target: Store, progress: Progress | None = None
) -> reports.CopyReport:
    """Do the same from a database and a folder of attachments."""
    began = time.monotonic()
    finished, filled = _begin(source, target.driver)
    snapshot_copy = _SnapshotCopy(target.driver, progress)

    def step(snapshot: Tx) -> list[str]:
        if not finished:
            snapshot_copy.copy_attachments(snapshot, attachments, target._blob_files)
        if not filled:
            snapshot_copy.write(snapshot)
        return snapshot_copy.find_differences(snapshot, finished=finished)

    if differing := source.read(step):
        raise errors.CopyUnfinished(differing, finished)
    if not finished:
        _finish(source, target)
    conversations, sessions, messages = target.driver.read(lambda tx: tx.one("fsck_counts")) or (0, 0, 0)
    return reports.CopyReport(
        source=source.path,
        target=target.driver.path,
        generation=target.driver.read(store_meta.generation),
        conversations=conversations,
        sessions=sessions,
        messages=messages,
        rows=snapshot_copy.rows,
        already_there=finished,
        lost_blobs=snapshot_copy.lost,
        digest=snapshot_copy.digest,
        seconds=time.monotonic() - began,
    )


def copy_to_file(source: Driver, target: Driver, progress: Progress | None = None) -> None:
    """Copy a snapshot into an empty database for a backup: with its counters and identity, without attachments."""

    def step(snapshot: Tx) -> None:
        snapshot_copy = _SnapshotCopy(target, progress)
        snapshot_copy.write(snapshot)
        if differing := snapshot_copy.find_differences(snapshot):
            raise errors.CopyUnfinished(differing, False)
        keys = (store_meta.GENERATION, store_meta.STORE_ID)
        same = [(key, row[0]) for key in keys if (row := snapshot.one("meta_get", key=key))]
        target.write("copy", lambda tx: [tx.run("meta_set", key=key, value=value) for key, value in same])

    source.read(step)


def is_unfinished(tx: Tx) -> bool:
    """Tell whether this store is a copy that was begun and not finished."""
    begun, finished = (tx.one("meta_get", key=key) for key in (store_meta.COPY_OF, store_meta.COPIED_AT))
    return begun is not None and finished is None


def count_messages(tx: Tx) -> tuple[int, int]:
    """Count conversations and messages without reading the messages."""
    conversations, messages = tx.one("store_counts") or (0, 0)
    return conversations, messages


def can_copy_into(tx: Tx) -> bool:
    """Tell whether the store is empty or an unfinished copy."""
    return not _has_data(tx) or is_unfinished(tx)


def discard_index(store: Store) -> None:
    """Discard the search index, which may hold words of removed messages. The next search rebuilds it."""
    store.searcher.close()
    store.driver.drop_search_index()


# --- begin and finish ----------------------------------------------------------------------------------


def _begin(source: Driver, target: Driver) -> tuple[bool, bool]:
    """Mark the target as a copy of this source. Return whether it is a finished copy, and whether it has data."""
    _refuse_same(source, target)
    marks = [f"{name} {source.read(store_meta.generation)}" for name in _identities(source)]

    def step(tx: Tx) -> tuple[bool, bool]:
        filled = _has_data(tx)
        row = tx.one("meta_get", key=store_meta.COPY_OF)
        if row is not None and row[0] in marks:
            finished = tx.one("meta_get", key=store_meta.COPIED_AT) is not None
            return finished, filled or finished
        if filled:
            raise errors.CopyRefused(f"{target.path} holds data already. Copy into an empty store.")
        tx.run("meta_set", key=store_meta.COPY_OF, value=marks[0])
        tx.run("meta_delete", key=store_meta.COPIED_AT)
        return False, False

    return target.write("copy", step)


def _has_data(tx: Tx) -> bool:
    (anything,) = tx.one("copy_anything") or (1,)
    return bool(anything)


def _identities(source: Driver) -> list[str]:
    """Return what identifies the source, best first.

    A source without a store id is not given one, because it may be read-only. It is identified by its creation time,
    also after it got an id.
    """
    keys = (store_meta.STORE_ID, store_meta.BACKUP, store_meta.MADE)
    found = source.read(lambda tx: [(key, row[0]) for key in keys if (row := tx.one("meta_get", key=key))])
    return [value if key != store_meta.MADE else f"made at {value}" for key, value in found]


def _refuse_same(source: Driver, target: Driver) -> None:
    if source is target or (source.path == target.path and source.path != ":memory:"):
        raise errors.CopyRefused("Both are the same store.")
    # Gives the target an id if it has none: two addresses of one empty store have nothing else in common.
    target_id = backup_schedule.identify(target)[0].id
    if source.read(lambda tx: tx.one("meta_get", key=store_meta.STORE_ID)) == (target_id,):
        raise errors.CopyRefused("Both are the same store, or one is a copy of the other's files.")


def _finish(source: Driver, target: Store) -> None:
    fsck.require_sound(fsck.check(target.driver, schema=True), target.driver.path)
    fault_points.reach("copy", "checked")
    source_generation = source.read(store_meta.generation)
    now = target._clock()

    def step(tx: Tx) -> None:
        # The driver may run the step again after a commit whose outcome is unknown: advance the counters once.
        if tx.one("meta_get", key=store_meta.COPIED_AT) is None:
            store_meta.begin_generation(tx, max(source_generation, store_meta.generation(tx)) + 1)
            tx.run("meta_set", key=store_meta.COPIED_AT, value=repr(now))

    target.driver.write("copy", step)
    discard_index(target)


# --- write and verify ----------------------------------------------------------------------------------


class _SnapshotCopy:
    """Writes one snapshot into a database and compares the two."""

    def __init__(self, target: Driver, progress: Progress | None) -> None:
        self._target = target
        self._progress = progress
        self._written: dict[int, ConversationDigest] = {}
        self.rows = 0
        self.lost: tuple[str, ...] = ()
        self.digest = ""

    def copy_attachments(self, snapshot: Tx, source: blob_files.BlobFiles, target: blob_files.BlobFiles) -> None:
        """Copy contents before the rows that name them. A second run skips the contents that are in place."""
        wanted = blobs.read_digests(snapshot)
        self.lost = blobs.copy_contents(target, source, wanted) if wanted else ()
        fault_points.reach("copy", "attachments")

    def write(self, snapshot: Tx) -> None:
        """Write the whole snapshot in one transaction."""
        self._target.write("copy", partial(self._write, snapshot=snapshot))
        fault_points.reach("copy", "written")

    def _write(self, tx: Tx, snapshot: Tx) -> None:
        conversations = snapshot.all("export_all")
        total = sum(messages for _, _, messages in conversations)
        done = self.rows = 0
        for key, _, messages in conversations:
            self._write_conversation(tx, snapshot, key)
            done += messages
            if self._progress:
                self._progress(done, total)
        keys = {id_: key for key, id_, _ in tx.all("export_all")}
        for table in copy_tables.TABLES:
            self.rows += table.insert(tx, table.rows(snapshot), keys)
        copy_tables.copy_sequences(snapshot, tx)
        for key, value in snapshot.all("copy_meta"):
            if store_meta.goes_over(key):
                tx.run("meta_set", key=key, value=value)

    def _write_conversation(self, tx: Tx, snapshot: Tx, key: int) -> None:
        digest = _DigestedLines(export.read_lines(snapshot, key))
        # Routes are copied as a table: some are not bound to any conversation.
        lines = (line for line in digest if not isinstance(line, transfer_format.Route))
        replay.Replay(digest.conversation).run(tx, enumerate(lines, 1), 0)
        self._written[key] = digest.digest()

    def find_differences(self, snapshot: Tx, *, finished: bool = False) -> list[str]:
        """Name the conversations and tables that differ. Ignore the counters that finishing the copy advanced."""
        return self._target.read(partial(self._compare, snapshot=snapshot, finished=finished))

    def _compare(self, tx: Tx, snapshot: Tx, finished: bool) -> list[str]:
        end = transfer_format.EndBuilder()
        differing = []
        target_keys = {id_: key for key, id_, _ in tx.all("export_all")}
        for key, id_, _ in snapshot.all("export_all"):
            ours = self._written.get(key) or _digest_conversation(snapshot, key)
            target_key = target_keys.pop(id_, None)
            theirs = None if target_key is None else _digest_conversation(tx, target_key)
            if theirs is None or ours.seal != theirs.seal or (not finished and ours.counters != theirs.counters):
                differing.append(id_)
            end.add(ours.seal)
        self.digest = end.build().digest
        tables = (table.name for table in copy_tables.TABLES if table.differs(snapshot, tx, finished=finished))
        return [*differing, *target_keys, *tables]


def _digest_conversation(tx: Tx, key: int) -> ConversationDigest:
    lines = _DigestedLines(export.read_lines(tx, key))
    for _ in lines:
        pass
    return lines.digest()


class _DigestedLines:
    """The lines of a conversation, digested as they pass. Counters that finishing a copy advances are left out."""

    def __init__(self, lines: Iterator[transfer_format.Line]) -> None:
        first = next(lines)
        assert isinstance(first, transfer_format.Conversation)
        self.conversation = first
        self._lines = itertools.chain((first,), lines)
        self._seal = transfer_format.SealBuilder(first.id)

    def __iter__(self) -> Iterator[transfer_format.Line]:
        for line in self._lines:
            sealed = line
            if isinstance(line, transfer_format.Conversation):
                sealed = msgspec.structs.replace(line, epoch=0, fence=0)
            elif isinstance(line, transfer_format.Route):
                sealed = msgspec.structs.replace(line, version=0)
            self._seal.add(sealed, transfer_format.encode(sealed))
            yield line

    def digest(self) -> ConversationDigest:
        return ConversationDigest(self._seal.build(), (self.conversation.epoch, self.conversation.fence))
