"""Moving house: everything one store holds, written into another, of whichever database.

Each conversation is read in one snapshot and written in one transaction, with every constraint in force; then all
that hangs on them. A copy that was killed goes on where it stopped, and what changed in the source meanwhile is
brought up to date. Only when both sides tell the same, conversation by conversation and row by row, and fsck finds
the target sound, is the copy finished: its leases are void, and its counters leap past all that were used before.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from holdfast import errors, reports
from holdfast.store import deletion, fault_points, fsck, schema_plan, store_meta
from holdfast.store.backup import schedule as backup_schedule
from holdfast.store.blobs import blobs
from holdfast.store.blobs import files as blob_files
from holdfast.store.driver import Driver, Progress, Readable, Row, Tx
from holdfast.store.search import indexer, search
from holdfast.store.transfer import copy_catchup, copy_tables, export, import_, replay
from holdfast.store.transfer import format as transfer_format

T = TypeVar("T")

ROUNDS = 3


class House(Protocol):
    """A store, as far as a copy needs one: a SessionDB is one."""

    driver: Driver
    searcher: search.Searcher

    @property
    def _shelf(self) -> blob_files.Shelf: ...

    @property
    def _clock(self) -> Callable[[], float]: ...


class Snapshot(NamedTuple):
    """One snapshot, to be read from as a database is."""

    tx: Tx

    def read(self, step: Callable[[Tx], T]) -> T:
        return step(self.tx)

    def complaints(self) -> list[str]:
        return []

    def faults(self) -> list[schema_plan.Fault]:
        return []

    def close(self) -> None:
        pass


class Choice(NamedTuple):
    """A conversation of the source."""

    key: int
    id: str
    messages: int


def copy(source: House, target: House, progress: Progress | None = None) -> reports.CopyReport:
    """Everything of the source in the target, which is empty or was begun by this very copy.

    Call it again after it was killed, or after CopyUnfinished, which names the conversations that changed while it
    ran. CopyRefused when the target holds something else. The source may be in use; the target may not.
    """
    return take(source.driver, source._shelf, target, progress)


def take(source: Driver, kept: blob_files.Shelf, target: House, progress: Progress | None = None) -> reports.CopyReport:
    """The same, from a database and the shelf its attachments are on."""
    began = time.monotonic()
    finished = _begun(source, target.driver)
    move = _Move(source, kept, target.driver, target._shelf, progress)
    if not finished:
        move.run()
    differing = move.differing(leapt=finished)
    if differing:
        raise errors.CopyUnfinished(differing, finished)
    if not finished:
        _finish(source, target)
    return _report(source.path, target.driver, move, finished, time.monotonic() - began)


def _report(source: str, target: Driver, move: _Move, finished: bool, seconds: float) -> reports.CopyReport:
    conversations, sessions, messages = target.read(lambda tx: tx.one("fsck_counts")) or (0, 0, 0)
    return reports.CopyReport(
        source=source,
        target=target.path,
        generation=target.read(store_meta.generation),
        conversations=conversations,
        sessions=sessions,
        messages=messages,
        copied=move.copied,
        rows=move.rows,
        already_there=finished,
        lost_blobs=move.lost,
        digest=move.digest,
        seconds=seconds,
    )


def pour(source: Driver, into: Driver, progress: Progress | None = None) -> None:
    """One snapshot of a database into an empty one, counters and all, but for what attachments hold."""

    def step(tx: Tx) -> None:
        move = _Move(Snapshot(tx), None, into, None, progress)
        move.run()
        if differing := move.differing():
            raise errors.CopyUnfinished(differing, False)
        # It goes on counting where the store does, and is known as a copy of it.
        keys = (store_meta.GENERATION, store_meta.STORE_ID)
        same = [(key, row[0]) for key in keys if (row := tx.one("meta_get", key=key))]
        into.write("copy", lambda there: [there.run("meta_set", key=key, value=value) for key, value in same])

    source.read(step)


def unfinished(tx: Tx) -> bool:
    """Whether this store is a copy that was begun and not finished."""
    return (
        tx.one("meta_get", key=store_meta.COPY_OF) is not None and tx.one("meta_get", key=store_meta.COPIED_AT) is None
    )


def counted(tx: Tx) -> tuple[int, int]:
    """How many conversations and messages there are, without reading any."""
    conversations, messages = tx.one("store_counts") or (0, 0)
    return conversations, messages


def may_begin(tx: Tx) -> bool:
    """Whether a copy could begin here, or go on: which of them may is seen when it does."""
    (anything,) = tx.one("copy_anything") or (1,)
    return not anything or unfinished(tx)


# --- whether it may begin, and how it ends -------------------------------------------------------------


def _begun(source: Driver, target: Driver) -> bool:
    """The target is marked as a copy of this source; whether it is a finished one."""
    _refuse_same(source, target)
    marks = [f"{name} {source.read(store_meta.generation)}" for name in _names(source)]

    def step(tx: Tx) -> bool:
        row = tx.one("meta_get", key=store_meta.COPY_OF)
        if row is not None and row[0] in marks:
            return tx.one("meta_get", key=store_meta.COPIED_AT) is not None
        (anything,) = tx.one("copy_anything") or (1,)
        if anything:
            raise errors.CopyRefused(f"{target.path} holds something already. A copy goes into an empty store.")
        tx.run("meta_set", key=store_meta.COPY_OF, value=marks[0])
        tx.run("meta_delete", key=store_meta.COPIED_AT)
        return False

    return target.write("copy", step)


def _names(source: Driver) -> list[str]:
    """What tells a store from others, the best first. One that was not named yet is not given a name for this: it may
    be one that can only be read. It goes by when it was made, also after it was named."""
    keys = (store_meta.STORE_ID, store_meta.BACKUP, store_meta.MADE)
    found = source.read(lambda tx: [(key, row[0]) for key in keys if (row := tx.one("meta_get", key=key))])
    return [value if key != store_meta.MADE else f"made at {value}" for key, value in found]


def _refuse_same(source: Driver, target: Driver) -> None:
    if source is target or (source.path == target.path and source.path != ":memory:"):
        raise errors.CopyRefused("Both are the same store.")
    # The target is given a name, if it has none: an empty store shows by nothing else that two addresses lead to it.
    name = backup_schedule.known(target)[0].id
    if source.read(lambda tx: tx.one("meta_get", key=store_meta.STORE_ID)) == (name,):
        raise errors.CopyRefused("Both are the same store, or one is a copy of the other's files.")


def _finish(source: Driver, target: House) -> None:
    report = fsck.check(target.driver, schema=True)
    if not report.ok:
        raise errors.CopyDamaged(target.driver.path, [f"{bad.promise} {bad.detail}" for bad in report.violations])
    fault_points.reach("copy", "checked")
    before = source.read(store_meta.generation)
    now = target._clock()

    def step(tx: Tx) -> None:
        # A step that runs again does not leap twice.
        if tx.one("meta_get", key=store_meta.COPIED_AT) is None:
            store_meta.begin_generation(tx, max(before, store_meta.generation(tx)) + 1)
            tx.run("meta_set", key=store_meta.COPIED_AT, value=repr(now))

    target.driver.write("copy", step)
    target.searcher.close()
    target.driver.discard_side(indexer.NAME)


# --- going over ----------------------------------------------------------------------------------------


class _Move:
    """One store on its way into another."""

    def __init__(
        self,
        source: Readable,
        kept: blob_files.Shelf | None,
        target: Driver,
        into: blob_files.Shelf | None,
        progress: Progress | None,
    ) -> None:
        self._source = source
        self._kept = kept
        self._target = target
        self._into = into
        self._progress = progress
        self._done = 0
        self._total = 0
        self.copied = 0
        self.rows = 0
        self.lost: tuple[str, ...] = ()
        self.digest = ""

    def run(self) -> None:
        """As often as the source changes meanwhile, within reason."""
        for _ in range(ROUNDS):
            chosen = self._chosen()
            self._total, self._done = sum(choice.messages for choice in chosen), 0
            self._deleted({choice.id for choice in chosen})
            changed = sum(self._conversation(choice) for choice in chosen)
            fault_points.reach("copy", "conversations")
            changed += self._belongings()
            fault_points.reach("copy", "belongings")
            if not changed:  # the first round of a copy always finds something, and the last nothing
                return

    def _chosen(self) -> list[Choice]:
        return self._source.read(lambda tx: [Choice(*row) for row in tx.all("copy_conversations")])

    def _conversation(self, choice: Choice) -> bool:
        """All of it as it is now, if it is not there as it is now; whether it was not."""
        here = self._target.read(lambda tx: _line(tx, choice.id))
        changed = here is None or here != self._source.read(lambda tx: _line(tx, choice.id))
        part = self._source.read(lambda tx: _gathered(tx, choice.key)) if changed else None
        if part is not None:
            with part:
                self._written(part)
            self.copied += 1
        self._done += choice.messages
        if self._progress:
            self._progress(self._done, max(self._total, self._done))
        return part is not None

    def _written(self, part: import_.Part) -> None:
        if part.problem:
            raise part.problem
        told = part.conversation
        assert told is not None  # it was gathered from its own line on

        def step(tx: Tx) -> None:
            there = tx.one("conversation_key", id=told.id)
            writing = (copy_catchup.Catchup if there else replay.Replay)(told, replay.Names())
            writing.run(tx, part.lines(), part.count)

        self._target.write("copy", step)

    def _deleted(self, there: set[str]) -> None:
        """What was deleted in the source goes, branches first; what was never there is nobody's to remove."""
        for row in reversed(self._target.read(lambda tx: tx.all("copy_conversations"))):
            if row[1] not in there:
                self._target.write("copy", partial(self._removed, gone=Choice(*row)))

    def _removed(self, tx: Tx, gone: Choice) -> None:
        deleted = self._source.read(lambda source: source.one("copy_deleted", id=gone.id))
        if deleted is not None:
            deletion.delete(tx, gone.id, deleted[0])
        elif not gone.messages:
            deletion.remove(tx, gone.key)

    def _belongings(self) -> int:
        self._attachments()
        changed = sum(copy_tables.bring(self._source, self._target, table) for table in self._tables())
        copy_tables.numbers(self._source, self._target)
        self._notes()
        self.rows += changed
        return changed

    def _attachments(self) -> None:
        """Before anything says that they are there; what is there and sound is left alone."""
        if self._kept is not None and self._into is not None:
            wanted = [row[0] for row in copy_tables.rows(self._source, copy_tables.blobs(self._into))]
            self.lost = blobs.copied(self._into, self._kept, wanted) if wanted else ()

    def _tables(self) -> tuple[copy_tables.Table, ...]:
        return (*copy_tables.TABLES, copy_tables.blobs(self._into))

    def _notes(self) -> None:
        noted = self._source.read(_notes)
        there = self._target.read(_notes)
        missing = [note for note in noted.items() if there.get(note[0]) != note[1]]

        def step(tx: Tx) -> None:
            for key, value in missing:
                tx.run("meta_set", key=key, value=value)

        if missing:
            self._target.write("copy", step)

    # --- whether it is the same ------------------------------------------------------------------------

    def differing(self, *, leapt: bool = False) -> list[str]:
        """Conversations, and tables, that are not the same on both sides; after a leap, but for what leapt."""
        ending = transfer_format.Ending()
        found = []
        here = {row[1]: row[0] for row in self._target.read(lambda tx: tx.all("copy_conversations"))}
        for choice in self._chosen():
            ours = self._source.read(partial(_sealed, key=choice.key, counters=not leapt))
            key = here.pop(choice.id, None)
            theirs = None if key is None else self._target.read(partial(_sealed, key=key, counters=not leapt))
            if ours != theirs:
                found.append(choice.id)
            elif ours is not None:
                ending.add(ours.seal)
        self.digest = ending.end().digest
        found += here
        for table in self._tables():
            if next(copy_tables.changes(self._source, self._target, table, leapt=leapt), None) is not None:
                found.append(table.name)
        return found


def _gathered(tx: Tx, key: int) -> import_.Part | None:
    """The lines of a conversation as it is now; None when it was deleted meanwhile."""
    told = (line for line in export.told(tx, key) if not isinstance(line, transfer_format.Route))
    first = next(told, None)
    if first is None:
        return None
    assert isinstance(first, transfer_format.Conversation)  # it begins with its own line
    part = import_.Part(1, first)
    try:
        for number, line in enumerate(itertools.chain((first,), told), 1):
            part.add(number, line, transfer_format.encode(line))
    except BaseException:
        part.__exit__()
        raise
    return part


def _line(tx: Tx, conversation_id: str) -> Row | None:
    """What changes whenever anything of a conversation does."""
    found = tx.one("conversation_key", id=conversation_id)
    return tx.one("export_conversation", key=found[0]) if found else None


class Told(NamedTuple):
    """A conversation in short: a seal that is the same before and after a leap, and its counters where they count."""

    seal: transfer_format.Sealed
    counters: tuple[int, int] | None


def _sealed(tx: Tx, key: int, counters: bool) -> Told | None:
    told = export.told(tx, key)
    first = next(told, None)
    if first is None:
        return None
    assert isinstance(first, transfer_format.Conversation)  # it begins with its own line
    sealing = transfer_format.Sealing(first.id)
    for line in map(_without_counters, itertools.chain((first,), told)):
        sealing.add(line, transfer_format.encode(line))
    return Told(sealing.sealed(), (first.epoch, first.fence) if counters else None)


def _without_counters(line: transfer_format.Any) -> transfer_format.Any:
    if isinstance(line, transfer_format.Conversation):
        return msgspec.structs.replace(line, epoch=0, fence=0)
    return msgspec.structs.replace(line, version=0) if isinstance(line, transfer_format.Route) else line


def _notes(tx: Tx) -> dict[str, str]:
    """What people noted of a store, and what it noted itself that is as true of a copy."""
    return {key: value for key, value in tx.all("copy_meta") if store_meta.goes_over(key)}
