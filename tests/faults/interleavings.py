"""Every order in which actors can take their steps, compared with a model of the store after each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from holdfast import errors, types
from holdfast.store.db import SessionDB
from tests.faults import checker
from tests.support import store_model

TTL = 30.0


def schedules(*counts: int) -> Iterator[tuple[int, ...]]:
    """Yield all orders of actors that each take this many steps: actor numbers, a multiset permutation."""
    if not any(counts):
        yield ()
        return
    for actor, left in enumerate(counts):
        if left:
            for rest in schedules(*counts[:actor], left - 1, *counts[actor + 1 :]):
                yield (actor, *rest)


class World:
    """One schedule's conversation, its model, its record, and the leases and contexts of the compactors."""

    def __init__(self, db: SessionDB, clock: list[float], c: str) -> None:
        self.db, self.clock, self.c = db, clock, c
        self.history: list[checker.Record] = []
        self.talk = store_model.Talk(c)
        self.held: dict[str, store_model.Held] = {}
        self.contexts: dict[str, types.Context] = {}
        db.create_session(c, source="fault")
        for number in (1, 2, 3):
            self.send(f"{c}:{number}")
        self.route = db.bind_route(f"chat:{c}", c, version=0)
        work = store_model.Held(self.talk, "compact", 0, "", 0.0, c, 1, 3)
        summary = checker.summarize(db.context(c), 1)
        self.talk.commit(work, 1, summary, [], f"{c}-first", clock[0])
        db.commit_compaction(db.snapshot(c), summary=summary, cut_seq=1, child_id=f"{c}-first")

    def send(self, uid: str) -> None:
        """Append to the first session, however old it is by then."""
        was_live = self.talk.live
        self.talk.append(self.c, [(uid, uid)], strict=False, lease=None, now=self.clock[0])
        receipt = self.db.append_message(self.c, role="user", content=uid, uid=uid)
        self.history.append(checker.Sent("appender", self.c, uid, uid, receipt))
        store_model.learn_head(self.db, self.talk)
        assert (receipt.resumed, receipt.session_id) == (not was_live, self.talk.head.id), f"append of {uid}"


Action = Callable[[World], object]


class Actor(NamedTuple):
    name: str
    actions: Sequence[Action]


def compactor(name: str) -> Actor:
    """Acquires, reads, commits; a compactor that finds the lease taken calls no summarizer and commits nothing."""

    def acquire(world: World) -> None:
        granted = store_model.do_both(
            lambda: world.talk.acquire("compact", name, TTL, world.clock[0]),
            lambda: world.db.acquire_lease(world.c, "compact", name, TTL),
        )
        if granted:
            held, held.real = granted
            world.held[name] = held
            world.history.append(checker.Granted(name, held.real))

    def read(world: World) -> None:
        if name in world.held:
            world.contexts[name] = world.db.context(world.c, upto=world.held[name].last_seq)

    def commit(world: World) -> None:
        if name in world.contexts:
            _commit(world, name, world.held[name])

    return Actor(name, (acquire, read, commit))


def _commit(world: World, name: str, held: store_model.Held) -> None:
    db, cut, child, now = world.db, held.last_seq, f"{world.c}-{name}", world.clock[0]
    summary = checker.summarize(world.contexts[name], cut)
    commit = partial(db.commit_compaction, held.real, summary=summary, cut_seq=cut, child_id=child)
    before = db.conversation(world.c)
    done = store_model.do_both(lambda: world.talk.commit(held, cut, summary, [], child, now), commit)
    refused = None if done else "refused"
    seen = held.real.snapshot
    world.history.append(checker.Committed(name, seen, child, cut, held.token, bool(done), refused))
    if done:
        assert db.get_compression_lock_holder(world.c) is None, f"the commit by {name} left a lease"
        assert commit().id == child, f"the repeated commit by {name} returned another session"
    else:
        assert db.conversation(world.c) == before, f"the refused commit by {name} changed something"


def appender(times: int) -> Actor:
    return Actor("appender", (lambda world: world.send(f"{world.c}:{world.talk.last_seq + 1}"),) * times)


def _end(world: World) -> None:
    was_live = world.talk.live
    if was_live:
        world.talk.end("done")
    assert world.db.end_conversation(world.c, "done") == was_live, "end"


def _resume(world: World) -> None:
    if not world.talk.live:
        world.talk.go_on("?")
    head = world.db.resume(world.c)
    store_model.learn_head(world.db, world.talk)
    assert (head.live, head.id) == (True, world.talk.head.id), "resume"


def _both(step: Callable[..., Any], call: Callable[..., Any], *args: int) -> Action:
    return lambda world: store_model.do_both(lambda: step(world.talk, *args), lambda: call(world.db, world.c, *args))


_undo = _both(store_model.Talk.undo, SessionDB.undo_compaction)
_redo = _both(store_model.Talk.redone, SessionDB.redo_compaction)
_hide = _both(store_model.Talk.hide, SessionDB.hide, 3, 3)
_show = _both(store_model.Talk.show, SessionDB.show)


def _redact(world: World) -> None:
    world.talk.redact(2, [world.talk])
    world.db.redact(world.c, 2)
    world.history.append(checker.Erased(world.c, 2))


def _time_passes(world: World) -> None:
    world.clock[0] += TTL


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


def every_schedule(actors: Sequence[Actor], *, stop_at: int = 5) -> tuple[int, list[str]]:
    """Play all schedules of these actors in one store; return their number and the first few problems."""
    count, found, clock = 0, list[str](), [1_000.0]
    with SessionDB(":memory:", clock=lambda: clock[0]) as db:
        for order in distinct_schedules(actors):
            found += play(World(db, clock, f"c{count}"), actors, order)
            count += 1
            if len(found) >= stop_at:
                break
        found += [str(bad) for bad in db.admin.fsck().violations]
    return count, found


def play(world: World, actors: Sequence[Actor], order: Sequence[int]) -> list[str]:
    """Return the problems of one schedule, each with its order."""
    found, actions = list[str](), [iter(actor.actions) for actor in actors]
    try:
        for actor in order:
            next(actions[actor])(world)
        store_model.compare(world.db, world.talk)
        assert world.db.route(world.route.key) == world.route
    except (errors.HoldfastError, AssertionError) as error:
        found.append(f"{type(error).__name__} {error}")
    found += checker.verify(world.db, world.history, fsck=False)
    names = " ".join(actors[actor].name for actor in order)
    return [f"{names}: {problem}" for problem in found]
