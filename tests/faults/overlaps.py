"""Every order in which calls can come to a server that lets many write at once, each while others are not done.

Where interleavings.py plays one call after the other, here a call comes while up to `crowd` others are inside of their
transactions: the first has the conversation locked and stops before it commits, the others wait for the lock, and
that they do wait is looked at. Who gets the lock next is the server's choice; the model follows it, and says what
each call must answer that was let in after the ones before it.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from holdfast import errors, types
from holdfast.store import compactions, leases, log, sessions
from holdfast.store.db import SessionDB
from holdfast.store.driver import Tx
from tests.faults import checker, interleavings
from tests.support import postgres

TTL = interleavings.TTL
PATIENCE = 60.0
_BLOCKED = "SELECT cardinality(pg_blocking_pids(%s)) > 0"


class Scene:
    """One conversation, what its callers know of it, and what must come of what they do."""

    def __init__(self, db: SessionDB, clock: list[float], c: str) -> None:
        world = interleavings.World(db, clock, c)
        self.c, self.clock, self.model = c, clock, world.model
        self.history, self.problems = world.history, world.problems
        self.held: dict[str, types.Lease] = {}
        self.contexts: dict[str, types.Context] = {}


class Call(NamedTuple):
    """One call: its step, what the model says to it, and what is remembered of its result. None: a mere reader."""

    operation: str
    step: Callable[[SessionDB, Scene], Callable[[Tx], Any] | None]
    should: Callable[[Scene], str]
    done: Callable[[Scene, Any], None]


class Actor(NamedTuple):
    name: str
    calls: Sequence[Call]


# --- what actors do -------------------------------------------------------------------------------------------


def compactor(name: str) -> Actor:
    """Acquires, and commits what it read in between; whoever got no lease commits nothing."""

    def acquire(_: SessionDB, scene: Scene) -> Callable[[Tx], Any]:
        holder = leases.current_holder(name)
        return lambda tx: leases.acquire(tx, scene.c, "compact", holder, TTL)

    def granted(scene: Scene, lease: types.Lease) -> None:
        scene.held[name] = lease
        scene.history.append(checker.Granted(name, lease, scene.clock[0] + TTL))

    def commit(db: SessionDB, scene: Scene) -> Callable[[Tx], Any] | None:
        lease = scene.held.get(name)
        if lease is None:
            return None
        # Nobody is kept from reading by those who write.
        context, cut = db.context(scene.c, upto=lease.snapshot.last_seq), lease.snapshot.last_seq
        draft = compactions.make_draft(cut, cut, checker.summarize(context, cut), (), None, None)
        return lambda tx: compactions.commit(tx, lease, f"{scene.c}-{name}", draft, 1.0)

    def committed(scene: Scene, _: Any) -> None:
        lease = scene.held[name]
        cut, child = lease.snapshot.last_seq, f"{scene.c}-{name}"
        scene.history.append(
            checker.Committed(name, lease.snapshot, child, cut, lease.token, done=True, at=scene.clock[0])
        )

    return Actor(
        name,
        (
            Call("acquire", acquire, lambda scene: scene.model.acquire(name), granted),
            Call("commit", commit, lambda scene: scene.model.commit(name, scene.held[name].snapshot.epoch), committed),
        ),
    )


def _append_step(db: SessionDB, scene: Scene) -> Callable[[Tx], Any]:
    uid = f"{scene.c}:new"
    step = log.AppendRequest(scene.c, [types.NewMessage(role="user", content=uid, uid=uid)], 1.0)
    return lambda tx: step(tx)[0]


def _append_should(scene: Scene) -> str:
    if not scene.model.live:
        scene.model.moves(live=True, redo=None)
        return "resumed"
    return "done"


def _appended(scene: Scene, receipt: types.Receipt) -> None:
    scene.history.append(checker.Sent("appender", scene.c, receipt.uid, receipt.uid, receipt))


def _end_should(scene: Scene) -> str:
    if scene.model.live:
        scene.model.moves(live=False, redo=None)
        return "done"
    return "False"


APPENDER = Actor("appender", (Call("append", _append_step, _append_should, _appended),))
ENDER = Actor(
    "ender",
    (
        Call(
            "end",
            lambda _, scene: lambda tx: sessions.end(tx, scene.c, "done", 1.0, whole=True),
            _end_should,
            lambda *_: None,
        ),
    ),
)
CAST = (compactor("one"), compactor("two"), APPENDER, ENDER)


def _answer(result: Any) -> str:
    match result:
        case types.Lease():
            return "granted"
        case types.Receipt():
            return "resumed" if result.resumed else "done"
        case False:
            return "False"
        case _:
            return "done"


# --- a thread for each ----------------------------------------------------------------------------------------


class _Player:
    """An actor's own process, as far as the server can tell: a store of its own, in a thread of its own."""

    def __init__(self, actor: Actor, db: SessionDB, events: queue.Queue[tuple[str, _Player]]) -> None:
        self.actor, self.db, self._events = actor, db, events
        (self.pid,) = db.driver.read(lambda tx: tx.execute("SELECT pg_backend_pid()").fetchone())  # type: ignore[attr-defined]
        self._go = threading.Semaphore(0)
        self.answer, self.refused, self.call = "", "", actor.calls[0]
        self._thread: threading.Thread | None = None
        self.result: Any = None

    def begin(self, call: Call, step: Callable[[Tx], Any]) -> None:
        self.call, self.answer, self.refused, self.result = call, "", "", None
        self._thread = threading.Thread(target=self._run, args=(step,), daemon=True)
        self._thread.start()

    def _run(self, step: Callable[[Tx], Any]) -> None:
        def stopping(tx: Tx) -> Any:
            tx.shared = True  # The step does not end the transaction.
            try:
                self.result = step(tx)
                self.answer = _answer(self.result)
            except errors.HoldfastError as error:
                self.answer = type(error).__name__
                raise
            finally:
                # The lock is held here, whatever came of it, until somebody says go.
                self._events.put(("inside", self))
                self._go.acquire(timeout=PATIENCE)
            return self.result

        try:
            self.db.driver.write(self.call.operation, stopping)
        except errors.HoldfastError as error:
            # A refusal by the step is known by now; one by the commit is not.
            self.answer = self.refused = type(error).__name__
        self._events.put(("over", self))

    def leave(self) -> None:
        """Whatever it is at, it is to come to an end; refused by the database, it comes in a second time."""
        self._go.release(100)

    def close(self) -> None:
        if self._thread is not None:
            self._thread.join(PATIENCE)
        self.db.close()

    def go(self) -> None:
        self._go.release()


class Stage:
    """A store on the server, and a player for each actor; many scenes are played on it, one after the other."""

    def __init__(self, cast: Sequence[Actor] = CAST) -> None:
        self.clock = [1_000.0]
        self.address = postgres.fresh()
        self._events: queue.Queue[tuple[str, _Player]] = queue.Queue()
        self.db = self._open()
        self.players = [_Player(actor, self._open(), self._events) for actor in cast]
        self._played = 0
        self._early: list[_Player] = []

    def _open(self) -> SessionDB:
        return SessionDB(self.address, clock=lambda: self.clock[0], durability="process-crash")

    def close(self) -> None:
        for player in self.players:
            player.leave()
        for player in self.players:
            player.close()
        self.db.close()

    def play(self, order: Sequence[int], crowd: int) -> list[str]:
        """What was wrong when calls came in this order, each as soon as no more than `crowd` others were there."""
        scene = Scene(self.db, self.clock, f"c{self._played}")
        self._played += 1
        coming, taken, inside = list(order), [0] * len(self.players), list[_Player]()
        while (coming or inside) and not scene.problems:
            while coming and not scene.problems and len(inside) <= crowd and self.players[coming[0]] not in inside:
                which = coming.pop(0)
                self._come(scene, self.players[which], taken[which], inside)
                taken[which] += 1
            if inside and not scene.problems:
                self._let_out(scene, inside)
        found = scene.problems + checker.verify(self.db, scene.history, complete=True, fsck=False)
        names = " ".join(self.players[which].actor.name for which in order)
        return [f"{names}, {crowd} at once: {problem}" for problem in found]

    def _come(self, scene: Scene, player: _Player, number: int, inside: list[_Player]) -> None:
        """The first is let in; whoever comes later has to wait."""
        call = player.actor.calls[number]
        step = call.step(player.db, scene)
        if step is None:
            return
        player.begin(call, step)
        inside.append(player)
        if len(inside) == 1:
            self._let_in(scene)
            return
        while postgres.admin().execute(_BLOCKED, (player.pid,)).fetchone() != (True,):
            if player.answer:
                scene.problems.append(f"{player.actor.name} did not wait for whoever was there before")
                return

    def _let_in(self, scene: Scene) -> None:
        """The next one who has the lock, and whether it answers as the model does."""
        player = self._early.pop(0) if self._early else self._events.get(timeout=PATIENCE)[1]
        should, answer = player.call.should(scene), player.answer
        if answer != should:
            who = f"{player.call.operation} by {player.actor.name}"
            scene.problems.append(f"{who} answered {answer} and should have answered {should}")
        if player.result is not None or answer == "done":
            player.call.done(scene, player.result)
        self._has_it = player

    def _let_out(self, scene: Scene, inside: list[_Player]) -> None:
        player, answer = self._has_it, self._has_it.answer
        player.go()
        while (event := self._events.get(timeout=PATIENCE)) != ("over", player):
            # The next one was let in before this one could say that it was over.
            self._early.append(event[1])
        if player.refused and player.refused != answer:
            scene.problems.append(f"the commit of {player.actor.name} was refused with {player.refused}")
        inside.remove(player)
        if inside and not scene.problems:
            self._let_in(scene)


@contextlib.contextmanager
def stage(cast: Sequence[Actor] = CAST) -> Iterator[Stage]:
    made = Stage(cast)
    try:
        yield made
    finally:
        made.close()


def orders(cast: Sequence[Actor] = CAST) -> list[tuple[int, ...]]:
    return list(interleavings.schedules(*(len(actor.calls) for actor in cast)))
