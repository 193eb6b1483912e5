"""What grows with a conversation, and what must not: the compaction commit and the read after it.

Stores of every size, and stores with more and more compactions behind them, are made first. Then they
take turns: each reads its context, and in every further round the floor appends, and each store
appends, takes the lease and commits a compaction.
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
from bench.figures import Figure, at_most, compared
from bench.scale import Scale

BATCH = 2_000
KEPT = 20
SUMMARY = "What was said so far, in short. " * 60
MILLISECONDS = 1e3

STEPS = ("floor", "append", "acquire", "commit")
Steps = dict[str, float]


class Appending(Protocol):
    """A floor, of whichever database."""

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
    yield from _context_figures("context.past", _in_turns(scale, folder, "past", scale.pasts), "compactions behind")


# --- making stores -----------------------------------------------------------------------------------


def _grow(path: Path, size: int) -> None:
    with holdfast.SessionDB(path, durability="process-crash") as db:
        db.create_session("one", source="bench")
        for start in range(0, size, BATCH):
            numbers = range(start, min(start + BATCH, size))
            db.append_messages("one", [{"role": systems.ROLES[n & 1], "content": systems.text(n)} for n in numbers])
    # The rounds begin with a file at rest, not in the wake of what was just written.
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _compact_often(path: Path, size: int, times: int) -> None:
    """A store of this size with that many compactions in it."""
    _grow(path, size)
    with holdfast.SessionDB(path, durability="process-crash") as db:
        for number in range(times):
            _append(db, number)
            _compaction(db)


# --- taking turns ------------------------------------------------------------------------------------


def _in_turns(scale: Scale, folder: Path, label: str, stores: Sequence[int]) -> dict[int, Steps]:
    """The median of every step in each store, and of the floor's append in the same rounds."""
    with ExitStack() as stack:
        floor = stack.enter_context(closing(systems.Floor(folder / f"{label}-floor.db")))
        for number in range(scale.warm_up):
            floor.append("one", number)
        dbs = {store: stack.enter_context(holdfast.SessionDB(folder / f"{label}-{store}.db")) for store in stores}
        # Reads first: a round adds a compaction to every store.
        reads = timing.medians(timing.interleaved({str(s): _reader(db) for s, db in dbs.items()}, scale.history_rounds))
        rounds(dbs, floor, scale.history_rounds // 5)
        taken = rounds(dbs, floor, scale.history_rounds)
    return {
        store: {"context": reads[str(store)]} | {step: timing.median([r[step] for r in taken[store]]) for step in STEPS}
        for store in stores
    }


def rounds(dbs: Mapping[int, holdfast.SessionDB], floor: Appending, count: int) -> dict[int, list[Steps]]:
    taken: dict[int, list[Steps]] = {store: [] for store in dbs}
    for number in range(count):
        bare = timing.timed(partial(floor.append, "one", number))
        for store, db in dbs.items():
            append = timing.timed(partial(_append, db, number))
            taken[store].append({"floor": bare, "append": append, **_compaction(db)})
    return taken


def _reader(db: holdfast.SessionDB) -> timing.Operation:
    return lambda _: db.context("one")


def _append(db: holdfast.SessionDB, number: int) -> object:
    return db.append_message("one", role=systems.ROLES[number & 1], content=systems.text(number))


def _compaction(db: holdfast.SessionDB) -> Steps:
    """Seconds of each step of one compaction."""
    work: list[holdfast.types.Lease | holdfast.types.Snapshot] = []
    acquire = timing.timed(lambda: work.append(db.begin_compaction("one")))
    lease = work[0]
    assert isinstance(lease, holdfast.types.Lease)
    cut = max(0, lease.snapshot.last_seq - KEPT)
    # Ids made of the second and three bytes of chance may collide at a thousand compactions a second.
    child = uuid.uuid4().hex
    commit = timing.timed(lambda: db.commit_compaction(lease, summary=SUMMARY, cut_seq=cut, child_id=child))
    return {"acquire": acquire, "commit": commit}


# --- figures -----------------------------------------------------------------------------------------


def commit_figures(by_size: Mapping[int, Steps], prefix: str = "") -> Iterator[Figure]:
    for order, (size, taken) in enumerate(by_size.items()):
        steps = {step: seconds * MILLISECONDS for step, seconds in taken.items()}
        name, beside = f"compaction commit p50, {size:,} messages", ("one append", steps["append"])
        others = {"floor's append": steps["floor"], "acquire": steps["acquire"]}
        yield Figure(f"{prefix}compaction.commit.{order}", name, "ms", steps["commit"], beside, at_most(2), others)
    small, *_, large = by_size
    name, beside = f"compaction commit p50 at {large:,} messages", (f"at {small:,}", by_size[small]["commit"] * 1e3)
    yield Figure(f"{prefix}compaction.flat", name, "ms", by_size[large]["commit"] * 1e3, beside, at_most(1.25))


def _context_figures(key: str, measured: Mapping[int, Steps], what: str) -> Iterator[Figure]:
    first = next(iter(measured))
    for order, (count, steps) in enumerate(measured.items()):
        beside = (f"at {first:,}", measured[first]["context"] * MILLISECONDS) if order else None
        others = {"commit": steps["commit"] * MILLISECONDS}
        name, target = f"context p50, {what}: {count:,}", at_most(1.5) if order else None
        yield Figure(f"{key}.{order}", name, "ms", steps["context"] * MILLISECONDS, beside, target, others)


def _fsck(path: Path) -> Figure:
    with holdfast.SessionDB(path) as db:
        report = db.admin.fsck()
    if not report.ok:
        raise RuntimeError(f"the store is broken, so its figures mean nothing: {report.violations[:3]}")
    return Figure("fsck", "fsck, per million messages", "s", report.seconds / report.messages * 1e6)


def _opening(scale: Scale, folder: Path, large: Path) -> Iterator[Figure]:
    def ours(_: int) -> None:
        with holdfast.SessionDB(large) as db:
            db.get_session("one")

    def floor(_: int) -> None:
        with closing(systems.Floor(folder / "size-floor.db")):
            pass

    taken = timing.interleaved({"holdfast": ours, "floor": floor}, scale.opens)
    name = "opening, looking and closing, the largest store"
    yield compared("opening", name, "ms", timing.medians(taken), None, MILLISECONDS)
