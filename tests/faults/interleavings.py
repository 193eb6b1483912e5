"""Every order in which actors can take their steps, and a model that says what each step must answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from holdfast import errors, types
from holdfast.store.db import SessionDB
from tests.faults import checker
from tests.support import backends

TTL = 30.0
BATCH = 100


def schedules(*counts: int) -> Iterator[tuple[int, ...]]:
    """Yield all orders of actors that each take this many steps: actor numbers, a multiset permutation."""
    if not any(counts):
        yield ()
        return
    for actor, left in enumerate(counts):
        if left:
            for rest in schedules(*counts[:actor], left - 1, *counts[actor + 1 :]):
                yield (actor, *rest)


class Model:
    """The expected state of the conversation and the expected holder of its lease."""

    def __init__(self, stands: types.Conversation, now: float) -> None:
        self.now = now
        self.epoch = stands.epoch
        self.live = True
        self.redo = False
        self.holder: str | None = None
        self.expires = 0.0

    def acquire(self, name: str) -> str:
        if self.holder not in (None, name) and self.now < self.expires:
            return "Busy"
        self.holder, self.expires = name, self.now + TTL
        return "granted"

    def commit(self, name: str, epoch: int) -> str:
        if self.holder != name or self.now >= self.expires:
            return "LeaseLost"
        if epoch != self.epoch or not self.live:
            return "Superseded"
        self.epoch, self.holder, self.redo = self.epoch + 1, None, False
        return "done"

    def moves(self, *, live: bool | None = None, redo: bool | None = False) -> None:
        """Begin the next epoch. A change of the view voids a redo; an end or a resume leaves it as it is (None)."""
        self.epoch += 1
        self.live = self.live if live is None else live
        self.redo = self.redo if redo is None else redo


class World:
    """One schedule's conversation, model, record and what each compactor knows.

    Given the record of its beginning, the conversation is there already.
    """

    def __init__(self, db: SessionDB, clock: list[float], c: str, begun: Sequence[checker.Record] = ()) -> None:
        self.db, self.clock, self.c = db, clock, c
        self.history = list(begun)
        self.problems: list[str] = []
        self.leases: dict[str, types.Lease] = {}
        self.contexts: dict[str, types.Context] = {}
        self.sent = 0
        if not begun:
            self._begin()
        self.model = Model(db.conversation(c), clock[0])

    def _begin(self) -> None:
        db, c = self.db, self.c
        db.create_session(c, source="fault")
        for number in (1, 2, 3):
            self.send(f"{c}:{number}")
        self.history.append(checker.Bound(f"chat:{c}", c, db.bind_route(f"chat:{c}", c, version=0).version))
        work = db.snapshot(c)
        db.commit_compaction(work, summary=checker.summarize(db.context(c), 1), cut_seq=1, child_id=f"{c}-first")

    def send(self, uid: str) -> types.Receipt:
        receipt = self.db.append_message(self.c, role="user", content=uid, uid=uid)
        self.history.append(checker.Sent("appender", self.c, uid, uid, receipt))
        return receipt

    def expect(self, what: str, answer: str, should: str) -> None:
        if answer != should:
            self.problems.append(f"{what} answered {answer} and should have answered {should}")


Action = Callable[[World], None]


class Actor(NamedTuple):
    name: str
    actions: Sequence[Action]


def compactor(name: str) -> Actor:
    """Acquires, reads, commits; a compactor that finds the lease taken calls no summarizer and commits nothing."""

    def acquire(world: World) -> None:
        should = world.model.acquire(name)
        try:
            lease = world.db.acquire_lease(world.c, "compact", name, TTL)
        except errors.Busy:
            world.expect(f"acquire by {name}", "Busy", should)
            return
        world.expect(f"acquire by {name}", "granted", should)
        world.leases[name] = lease
        world.history.append(checker.Granted(name, lease, world.clock[0] + TTL))

    def read(world: World) -> None:
        if name in world.leases:
            world.contexts[name] = world.db.context(world.c, upto=world.leases[name].snapshot.last_seq)

    def commit(world: World) -> None:
        lease, context = world.leases.get(name), world.contexts.get(name)
        if lease is None or context is None:
            return
        _commit(world, name, lease, context)

    return Actor(name, (acquire, read, commit))


def _commit(world: World, name: str, lease: types.Lease, context: types.Context) -> None:
    seen = lease.snapshot
    cut, child = seen.last_seq, f"{world.c}-{name}"
    summary = checker.summarize(context, cut)
    should = world.model.commit(name, seen.epoch)
    record = checker.Committed(name, seen, child, cut, lease.token, at=world.clock[0])
    before = world.db.conversation(world.c)
    try:
        world.db.commit_compaction(lease, summary=summary, cut_seq=cut, child_id=child)
    except (errors.LeaseLost, errors.Superseded) as error:
        world.expect(f"commit by {name}", type(error).__name__, should)
        world.history.append(msgspec.structs.replace(record, refused=type(error).__name__))
        if world.db.conversation(world.c) != before:
            world.problems.append(f"the refused commit by {name} changed something")
        return
    world.expect(f"commit by {name}", "done", should)
    world.history.append(msgspec.structs.replace(record, done=True))
    if world.db.head(world.c).id != child or world.db.get_compression_lock_holder(world.c):
        world.problems.append(f"the commit by {name} left another head, or a lease")
    # A repeated commit is the same commit.
    if world.db.commit_compaction(lease, summary=summary, cut_seq=cut, child_id=child).id != child:
        world.problems.append(f"the commit by {name} repeated gave another session")


def appender(times: int) -> Actor:
    """Writes to the first session, however old it is by then."""

    def append(world: World) -> None:
        world.sent += 1
        uid, resumes = f"{world.c}:new{world.sent}", not world.model.live
        if resumes:
            world.model.moves(live=True, redo=None)
        receipt = world.send(uid)
        world.expect("append", f"resumed {receipt.resumed}", f"resumed {resumes}")
        if receipt.session_id != world.db.head(world.c).id:
            world.problems.append(f"message {receipt.seq} did not land at the head")

    return Actor("appender", (append,) * times)


def _end(world: World) -> None:
    head, was_live = world.db.head(world.c).id, world.model.live
    if was_live:
        world.model.moves(live=False, redo=None)
        world.history.append(checker.Ended("ender", head, "done"))
    world.expect("end", str(world.db.end_conversation(world.c, "done")), str(was_live))


def _resume(world: World) -> None:
    if not world.model.live:
        world.model.moves(live=True, redo=None)
    head = world.db.resume(world.c)
    world.expect("resume", str(head.live), "True")


def _undo(world: World) -> None:
    try:
        world.db.undo_compaction(world.c)
    except errors.NothingToUndo:
        world.problems.append("there was a compaction to undo")
    world.model.moves(redo=True)


def _hide(world: World) -> None:
    world.db.hide(world.c, 3, 3)
    world.model.moves()


def _show(world: World) -> None:
    """Expect a refusal exactly while the current compaction was made without the hidden messages."""
    hidden = [hide for hide in world.db.hides(world.c) if hide.shown_epoch is None]
    if not hidden:
        return
    covers = world.db.context(world.c).cut_seq >= 3
    try:
        world.db.show(world.c)
    except errors.ShowRefused:
        world.expect("show", "ShowRefused", "ShowRefused" if covers else "done")
        return
    world.expect("show", "done", "ShowRefused" if covers else "done")
    world.model.moves()


def _redo(world: World) -> None:
    should = "done" if world.model.redo else "NothingToUndo"
    try:
        world.db.redo_compaction(world.c)
    except errors.NothingToUndo:
        world.expect("redo", "NothingToUndo", should)
        return
    world.expect("redo", "done", should)
    world.model.moves()


def _redact(world: World) -> None:
    world.db.redact(world.c, 2)
    world.model.moves()
    world.history.append(checker.Erased(world.c, 2))
    if any(made.seen_seq >= 2 and made.summary for made in world.db.compactions(world.c)):
        world.problems.append("a summary made from the redacted message is still there")


def _time_passes(world: World) -> None:
    world.clock[0] += TTL
    world.model.now = world.clock[0]


ENDER = Actor("ender", (_end,))
RESUMER = Actor("ender and resumer", (_end, _resume))
UNDOER = Actor("undoer", (_undo,))
REDOER = Actor("undoer and redoer", (_undo, _redo))
HIDER = Actor("hider", (_hide,))
SHOWER = Actor("hider and shower", (_hide, _show))
UNDOING_SHOWER = Actor("hider, undoer, shower and redoer", (_hide, _undo, _show, _redo))
REDACTOR = Actor("redactor", (_redact,))
TIME = Actor("time", (_time_passes,))

ONE, TWO = compactor("one"), compactor("two")
GROUPS = {
    "end": [ONE, TWO, appender(1), ENDER],
    "end and resume": [ONE, TWO, RESUMER],
    "append, end and resume": [ONE, appender(2), RESUMER],
    "undo": [ONE, TWO, appender(1), UNDOER],
    "undo and redo": [ONE, TWO, REDOER],
    "hide": [ONE, TWO, appender(1), HIDER],
    "hide and show": [ONE, TWO, SHOWER],
    "hide, undo, show, redo": [ONE, appender(1), UNDOING_SHOWER],
    "redact": [ONE, TWO, appender(1), REDACTOR],
    "expiry": [ONE, TWO, appender(1), TIME],
    "expiry and end": [ONE, TWO, TIME, ENDER],
}
# Only the long fault runs have time for these.
LARGE = {
    "end": [ONE, TWO, appender(2), ENDER],
    "end and resume": [ONE, TWO, appender(1), RESUMER],
    "undo": [ONE, TWO, appender(2), UNDOER],
    "hide": [ONE, TWO, appender(2), HIDER],
}


def distinct_schedules(actors: Sequence[Actor]) -> Iterator[tuple[int, ...]]:
    """Yield all orders; the two compactors are alike, so of two orders that differ only in their names, one."""
    for order in schedules(*(len(actor.actions) for actor in actors)):
        if TWO not in actors or order.index(actors.index(ONE)) < order.index(actors.index(TWO)):
            yield order


class Result(NamedTuple):
    count: int
    problems: list[str]


def every_schedule(actors: Sequence[Actor], *, stop_at: int = 5, without_triggers: Sequence[str] = ()) -> Result:
    """All schedules of these actors; the first few that went wrong, each with its order."""
    count, found, store = 0, list[str](), _Store(without_triggers)
    try:
        for order in distinct_schedules(actors):
            found += store.play(actors, order)
            count += 1
            if len(found) >= stop_at:
                break
        found += store.check()
    finally:
        store.db.close()
    return Result(count, found)


def drop_triggers(db: SessionDB, names: Sequence[str]) -> None:
    """Drop triggers that would refuse the writes of a broken protocol."""
    for name in names:
        if db.driver.name == "sqlite":
            backends.raw(db, f"DROP TRIGGER {name}")
        else:
            ((table,),) = backends.raw(db, TABLE_OF, name)
            backends.raw(db, f"DROP TRIGGER {name} ON {table}")


TABLE_OF = """
SELECT c.relname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
 WHERE t.tgname = %s AND c.relnamespace = to_regnamespace(quote_ident(current_schema()))
"""


class _Store:
    """A store in memory for some schedules; a new one now and then, as fsck looks at all of it.

    All conversations begin alike. Where there are many schedules, a store of begun ones is kept and filled in again.
    """

    def __init__(self, without_triggers: Sequence[str]) -> None:
        self.clock = [1_000.0]
        self.played = 0
        self.without_triggers = without_triggers
        self.db = self._new()
        self._begun: list[list[checker.Record]] = [[]] * BATCH
        self._content = b""

    def _new(self) -> SessionDB:
        db = SessionDB(":memory:", clock=lambda: self.clock[0])
        drop_triggers(db, self.without_triggers)
        return db

    def _renew(self) -> None:
        self.db.close()
        if not self._content:
            with self._new() as db:
                self._begun = [World(db, self.clock, f"c{number}").history for number in range(BATCH)]
                self._content = db.driver._writer.serialize("main")  # type: ignore[attr-defined]
        self.db, self.played = SessionDB(":memory:", clock=lambda: self.clock[0]), 0
        self.db.driver._writer.deserialize("main", self._content)  # type: ignore[attr-defined]

    def check(self) -> list[str]:
        missing = tuple(f"the trigger {name} is missing" for name in self.without_triggers)
        return [str(bad) for bad in self.db.admin.fsck().violations if bad.detail not in missing]

    def play(self, actors: Sequence[Actor], order: Sequence[int]) -> list[str]:
        found: list[str] = []
        if self.played == BATCH:
            found = self.check()
            self._renew()
        world = World(self.db, self.clock, f"c{self.played}", self._begun[self.played])
        self.played += 1
        taken = [0] * len(actors)
        for actor in order:
            try:
                actors[actor].actions[taken[actor]](world)
            except errors.HoldfastError as error:
                world.problems.append(f"{actors[actor].name} was refused: {type(error).__name__} {error}")
                break
            taken[actor] += 1
        found += world.problems + checker.verify(self.db, world.history, complete=True, fsck=False)
        names = " ".join(actors[actor].name for actor in order)
        return [f"{names}: {problem}" for problem in found]
