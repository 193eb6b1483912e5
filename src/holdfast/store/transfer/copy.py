"""Copy everything one store holds into another, on either database.

The source is read in one snapshot. The target is written in one transaction, with every constraint in force, then
compared with the snapshot conversation by conversation and row by row, and checked by fsck. Only then is the copy
marked as finished; finishing voids leases and advances counters, so that nothing begun on the source can commit on the
target. A store is marked as a copy before anything is written to it; `is_unfinished` is true until it is finished.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from functools import partial
from hashlib import blake2b

import msgspec

from holdfast import errors, fault_points, reports
from holdfast.store import fsck, store_meta
from holdfast.store.backup import schedule as backup_schedule
from holdfast.store.blobs import blobs
from holdfast.store.blobs import files as blob_files
from holdfast.store.driver import Driver, Progress, Tx
from holdfast.store.transfer import copy_tables, export, jsonl, replay

# The key of no conversation: it has no lines.
NO_KEY = 0


def copy(
    source: Driver, attachments: blob_files.BlobFiles, target: blobs.AdminFacet, progress: Progress | None = None
) -> reports.CopyReport:
    """Copy a database and its attachments into an empty store and verify the copy.

    The copy holds the state of the source when it began; later writes are not in it. If the copy was interrupted, the
    same call begins again. Raises CopyRefused when the target holds other data, CopyUnfinished when the two differ.
    """
    began = time.monotonic()
    finished, filled = _begin(source, target.driver)
    snapshot_copy = _SnapshotCopy(target.driver, progress)

    def step(snapshot: Tx) -> tuple[tuple[str, ...], list[str]]:
        lost: tuple[str, ...] = ()
        if not finished:
            # Before the rows that name them. A second run skips the contents that are in place.
            lost = blobs.copy_contents(target.blobs.files, attachments, blobs.read_digests(snapshot))
            fault_points.reach("copy", "attachments")
        if not filled:
            snapshot_copy.write(snapshot)
        return lost, snapshot_copy.find_differences(snapshot, finished=finished)

    lost, differing = source.read(step)
    if differing:
        raise errors.CopyUnfinished(differing, finished)
    if not finished:
        _finish(source, target)
    conversations, sessions, messages = target.driver.read(lambda tx: tx.one("fsck_counts")) or (0, 0, 0)
    return reports.CopyReport(
        source=source.path,
        target=target.driver.path,
        generation=target.driver.read(store_meta.get_generation),
        conversations=conversations,
        sessions=sessions,
        messages=messages,
        rows=snapshot_copy.rows,
        already_there=finished,
        lost_blobs=lost,
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
    """Return whether this store is a copy that was begun and not finished."""
    begun, finished = (tx.one("meta_get", key=key) for key in (store_meta.COPY_OF, store_meta.COPIED_AT))
    return begun is not None and finished is None


# --- begin and finish ----------------------------------------------------------------------------------


def _begin(source: Driver, target: Driver) -> tuple[bool, bool]:
    """Mark the target as a copy of this source. Return whether it is a finished copy, and whether it has data."""
    _refuse_same(source, target)
    # A source that is read-only cannot be given a store id.
    made = source.read(lambda tx: tx.one("meta_get", key=store_meta.MADE))
    mark = f"made at {made[0] if made else None} {source.read(store_meta.get_generation)}"

    def step(tx: Tx) -> tuple[bool, bool]:
        filled = has_data(tx)
        row = tx.one("meta_get", key=store_meta.COPY_OF)
        if row is not None and row[0] == mark:
            finished = tx.one("meta_get", key=store_meta.COPIED_AT) is not None
            return finished, filled or finished
        if filled:
            raise errors.CopyRefused(f"{target.path} holds data already. Copy into an empty store.")
        tx.run("meta_set", key=store_meta.COPY_OF, value=mark)
        tx.run("meta_delete", key=store_meta.COPIED_AT)
        return False, False

    return target.write("copy", step)


def has_data(tx: Tx) -> bool:
    (anything,) = tx.one("copy_anything") or (1,)
    return bool(anything)


def _refuse_same(source: Driver, target: Driver) -> None:
    if source is target or (source.path == target.path and source.path != ":memory:"):
        raise errors.CopyRefused("Both are the same store.")
    # Gives the target an id if it has none: two addresses of one empty store have nothing else in common.
    target_id = backup_schedule.identify_store(target).id
    if source.read(lambda tx: tx.one("meta_get", key=store_meta.STORE_ID)) == (target_id,):
        raise errors.CopyRefused("Both are the same store, or one is a copy of the other's files.")


def _finish(source: Driver, target: blobs.AdminFacet) -> None:
    fsck.raise_if_damaged(fsck.check(target.driver, schema=True), target.driver.path)
    fault_points.reach("copy", "checked")
    source_generation = source.read(store_meta.get_generation)
    now = target._clock()

    def step(tx: Tx) -> None:
        # The driver may run the step again after a commit whose outcome is unknown: advance the counters once.
        if tx.one("meta_get", key=store_meta.COPIED_AT) is None:
            store_meta.begin_generation(tx, max(source_generation, store_meta.get_generation(tx)) + 1)
            tx.run("meta_set", key=store_meta.COPIED_AT, value=repr(now))

    target.driver.write("copy", step)
    target.searcher.discard()


# --- write and verify ----------------------------------------------------------------------------------


class _SnapshotCopy:
    """Writes one snapshot into a database and compares the two."""

    def __init__(self, target: Driver, progress: Progress | None) -> None:
        self._target = target
        self._progress = progress
        self._written: dict[int, _LineDigest] = {}
        self.rows = 0
        self.digest = ""

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
        for table in copy_tables.COPY_TABLES:
            self.rows += table.insert(tx, table.rows(snapshot), keys)
        # Continue numbering after the highest id the source ever assigned, even to a row it has deleted since.
        for name, number in snapshot.all("copy_numbers"):
            tx.run("copy_number_first", name=name, number=number)
            tx.run("copy_number", name=name, number=number)
        for key, value in snapshot.all("copy_meta"):
            if store_meta.is_copied(key):
                tx.run("meta_set", key=key, value=value)

    def _write_conversation(self, tx: Tx, snapshot: Tx, key: int) -> None:
        self._written[key] = _LineDigest(snapshot, key)
        # Routes are copied as a table: some are not bound to any conversation.
        lines = (line for line in self._written[key] if not isinstance(line, jsonl.RouteLine))
        replay.Replay().run(tx, enumerate(lines, 1), 0)

    def find_differences(self, snapshot: Tx, *, finished: bool = False) -> list[str]:
        """Name the conversations and tables that differ. Ignore the counters that finishing the copy advanced."""
        return self._target.read(partial(self._compare, snapshot=snapshot, finished=finished))

    def _compare(self, tx: Tx, snapshot: Tx, finished: bool) -> list[str]:
        whole = blake2b(digest_size=16)
        differing = []
        target_keys = {id_: key for key, id_, _ in tx.all("export_all")}
        for key, id_, _ in snapshot.all("export_all"):
            ours = self._written.get(key) or _LineDigest(snapshot, key)
            theirs = _LineDigest(tx, target_keys.pop(id_, NO_KEY))
            same = ours.hexdigest() == theirs.hexdigest()
            if not same or (not finished and ours.counters != theirs.counters):
                differing.append(id_)
            whole.update(ours.hexdigest().encode())
        self.digest = whole.hexdigest()
        tables = (table.name for table in copy_tables.COPY_TABLES if table.differs(snapshot, tx, finished=finished))
        return [*differing, *target_keys, *tables]


class _LineDigest:
    """The lines of a conversation, and a digest of them without the counters that finishing a copy advances."""

    def __init__(self, tx: Tx, key: int) -> None:
        self._lines = export.read_lines(tx, key)
        self._digest = blake2b(digest_size=16)
        self.counters = (0, 0)

    def __iter__(self) -> Iterator[jsonl.Line]:
        """Read the lines, and digest each before it is yielded."""
        for line in self._lines:
            lasting: jsonl.Line = line
            if isinstance(line, jsonl.ConversationLine):
                self.counters = (line.epoch, line.fence)
                lasting = msgspec.structs.replace(line, epoch=0, fence=0)
            elif isinstance(line, jsonl.RouteLine):
                lasting = msgspec.structs.replace(line, version=0)
            self._digest.update(jsonl.encode(lasting) + b"\n")
            yield line

    def hexdigest(self) -> str:
        """Return the digest of all lines, reading those that were not read yet."""
        deque(self, maxlen=0)
        return self._digest.hexdigest()
