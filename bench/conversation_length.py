"""Compaction commits and context reads by the length of a conversation, on which they must not depend.

Stores of each size, and stores with increasing numbers of compactions, are created first. Then they are measured
alternately: each reads its context, and in every further round the floor appends, and each store appends, acquires the
lease and commits a compaction.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Protocol

import apsw

import holdfast
from bench import systems, timing
from bench.figures import Figure, at_most, compare
from bench.scale import Scale

BATCH = 2_000
KEPT = 20
SUMMARY = "What was said so far, in short. " * 60
MILLISECONDS = 1e3

STEPS = ("floor", "append", "acquire", "commit")
Steps = dict[str, float]


class Appending(Protocol):
    """The floor of a database."""

    def append(self, conversation: str, number: int) -> object: ...


def figures(scale: Scale, folder: Path) -> Iterator[Figure]:
    largest = folder / f"size-{scale.sizes[-1]}.db"
    for size in scale.sizes:
        _compact_often(folder / f"size-{size}.db", size, 1)
    by_size = _in_turns(scale, folder, "size", scale.sizes)
    yield from commit_figures(by_size)
    yield from _context_figures("context.size", by_size, "messages before the cut")
    yield _fsck(largest)
    yield from _opening(scale, folder, largest)
    for past in scale.pasts:
        _compact_often(folder / f"past-{past}.db", scale.sizes[0], past)
    yield from _context_figures("context.past", _in_turns(scale, folder, "past", scale.pasts), "earlier compactions")


# --- stores ------------------------------------------------------------------------------------------


def _grow(path: Path, size: int) -> None:
    with holdfast.SessionDB(path, durability="process-crash") as db:
        db.create_session("one", source="bench")
        for start in range(0, size, BATCH):
            numbers = range(start, min(start + BATCH, size))
            db.append_messages("one", [{"role": systems.ROLES[n & 1], "content": systems.text(n)} for n in numbers])
    # A checkpoint during the rounds would be part of the figures.
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _compact_often(path: Path, size: int, times: int) -> None:
    """Create a store of this size with this number of compactions."""
    _grow(path, size)
    with holdfast.SessionDB(path, durability="process-crash") as db:
        for number in range(times):
            _append(db, number)
            _compaction(db)


# --- measurement -------------------------------------------------------------------------------------


def _in_turns(scale: Scale, folder: Path, label: str, stores: Sequence[int]) -> dict[int, Steps]:
    """Return the median of each step in each store, and of the floor's append in the same rounds."""
    with ExitStack() as stack:
        floor = stack.enter_context(closing(systems.Floor(folder / f"{label}-floor.db")))
        for number in range(scale.warm_up):
            floor.append("one", number)
        dbs = {store: stack.enter_context(holdfast.SessionDB(folder / f"{label}-{store}.db")) for store in stores}
        # Reads first: a round adds a compaction to every store.
        reads = timing.medians(timing.interleave({str(s): _reader(db) for s, db in dbs.items()}, scale.history_rounds))
        rounds(dbs, floor, scale.history_rounds // 5)
        taken = rounds(dbs, floor, scale.history_rounds)
    return {
        store: {"context": reads[str(store)]} | {step: timing.median([r[step] for r in taken[store]]) for step in STEPS}
        for store in stores
    }


def rounds(dbs: Mapping[int, holdfast.SessionDB], floor: Appending, count: int) -> dict[int, list[Steps]]:
    taken: dict[int, list[Steps]] = {store: [] for store in dbs}
    for number in range(count):
        bare = timing.measure_seconds(partial(floor.append, "one", number))
        for store, db in dbs.items():
            append = timing.measure_seconds(partial(_append, db, number))
            taken[store].append({"floor": bare, "append": append, **_compaction(db)})
    return taken


def _reader(db: holdfast.SessionDB) -> timing.Operation:
    return lambda _: db.context("one")


def _append(db: holdfast.SessionDB, number: int) -> object:
    return db.append_message("one", role=systems.ROLES[number & 1], content=systems.text(number))


def _compaction(db: holdfast.SessionDB) -> Steps:
    """Return the seconds of each step of one compaction."""
    work: list[holdfast.types.Lease | holdfast.types.Snapshot] = []
    acquire = timing.measure_seconds(lambda: work.append(db.begin_compaction("one")))
    lease = work[0]
    assert isinstance(lease, holdfast.types.Lease)
    cut = max(0, lease.snapshot.last_seq - KEPT)
    # Generated ids have three random bytes, which may collide at a thousand compactions per second.
    child = uuid.uuid4().hex
    commit = timing.measure_seconds(lambda: db.commit_compaction(lease, summary=SUMMARY, cut_seq=cut, child_id=child))
    return {"acquire": acquire, "commit": commit}


# --- figures -----------------------------------------------------------------------------------------


def commit_figures(by_size: Mapping[int, Steps], prefix: str = "") -> Iterator[Figure]:
    for order, (size, taken) in enumerate(by_size.items()):
        steps = {step: seconds * MILLISECONDS for step, seconds in taken.items()}
        name, baseline = f"compaction commit p50, {size:,} messages", ("one append", steps["append"])
        others = {"floor's append": steps["floor"], "acquire": steps["acquire"]}
        yield Figure(f"{prefix}compaction.commit.{order}", name, "ms", steps["commit"], baseline, at_most(2), others)
    small, *_, large = by_size
    name, baseline = f"compaction commit p50 at {large:,} messages", (f"at {small:,}", by_size[small]["commit"] * 1e3)
    yield Figure(f"{prefix}compaction.flat", name, "ms", by_size[large]["commit"] * 1e3, baseline, at_most(1.25))


def _context_figures(key: str, measured: Mapping[int, Steps], what: str) -> Iterator[Figure]:
    first = next(iter(measured))
    for order, (count, steps) in enumerate(measured.items()):
        baseline = (f"at {first:,}", measured[first]["context"] * MILLISECONDS) if order else None
        others = {"commit": steps["commit"] * MILLISECONDS}
        name, target = f"context p50, {what}: {count:,}", at_most(1.5) if order else None
        yield Figure(f"{key}.{order}", name, "ms", steps["context"] * MILLISECONDS, baseline, target, others)


def _fsck(path: Path) -> Figure:
    with holdfast.SessionDB(path) as db:
        report = db.admin.fsck()
    if not report.ok:
        raise RuntimeError(f"the store is damaged, so its figures are invalid: {report.violations[:3]}")
    return Figure("fsck", "fsck, per million messages", "s", report.seconds / report.messages * 1e6)


def _opening(scale: Scale, folder: Path, large: Path) -> Iterator[Figure]:
    def ours(_: int) -> None:
        with holdfast.SessionDB(large) as db:
            db.get_session("one")

    def floor(_: int) -> None:
        with closing(systems.Floor(folder / "size-floor.db")):
            pass

    taken = timing.interleave({"holdfast": ours, "floor": floor}, scale.opens)
    name = "open, read and close the largest store"
    yield compare("opening", name, "ms", timing.medians(taken), None, MILLISECONDS)
