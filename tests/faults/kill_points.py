"""Kills processes at every point of a step and checks the states they leave."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from holdfast import errors, fault_points, types
from holdfast.store.db import SessionDB
from holdfast.store.driver import Row
from tests.faults import checker, interleavings, steps, zygote
from tests.support import consistency, memory_folders

Target = Path | str


class Course(NamedTuple):
    """The points of a step, and the state every other process sees when it is there."""

    names: list[str]
    states: list[str]

    @property
    def done(self) -> str:
        return self.states[-1]


@functools.cache
def known_course(name: str) -> Course:
    """The course of a step on a new SQLite store."""
    with memory_folders.folder() as made:
        return course_of(name, f"{made}/store.db")


def course_of(name: str, path: Target, without_triggers: Sequence[str] = ()) -> Course:
    with SessionDB(path) as db, SessionDB(path) as other:
        interleavings.drop_triggers(db, without_triggers)
        return _course(name, db, other, "watched")


def _course(name: str, db: SessionDB, other: SessionDB, c: str) -> Course:
    step, course = steps.STEPS[name], Course([], [])
    args = step.prepare(db, c)

    def watch(point: str) -> None:
        if point.startswith(tuple(f"{operation}." for operation in step.operations)):
            course.names.append(point)
            course.states.append(steps.observe(other, c))

    # On a server by a client that has just connected, like the clients that are killed.
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(SessionDB(db.driver.target)) if db.driver.name == "postgres" else db
        with hooked(watch):
            step.run(client, args)
    assert steps.observe(other, c) == course.done
    return course


def half_states(course: Course) -> list[str]:
    """The points at which others see a change though nothing was committed there."""
    pairs = zip(itertools.pairwise(course.states), course.names[1:], strict=True)
    return [point for (before, after), point in pairs if before != after and not point.endswith(".committed")]


@contextlib.contextmanager
def hooked(watch: Callable[[str], object]) -> Iterator[None]:
    fault_points.hook = watch  # type: ignore[assignment]
    try:
        yield
    finally:
        fault_points.hook = None


class _Spot(NamedTuple):
    """A point of a step at which processes are killed."""

    running: zygote.Zygote
    name: str
    course: Course
    number: int

    @property
    def undone(self) -> bool:
        """Nothing of the step is there after a kill, so the next may be killed in the same conversation."""
        return self.course.states[self.number] == self.course.states[0] != self.course.done

    @property
    def where(self) -> str:
        return f"{self.name} killed at {self.course.names[self.number]}"

    def kill(self, path: Target, args: steps.Args, folder: str = "") -> str:
        """Kill one child and return the fingerprint of the folder afterwards."""
        operations = steps.STEPS[self.name].operations
        outcome = self.running.run(
            steps.perform, path, {**args, "step": self.name}, points=operations, at=self.number, fingerprint=folder
        )
        assert outcome.state == "killed", f"{self.where}: {outcome}"
        return outcome.fingerprint


def kill_at_every_point(running: zygote.Zygote, folder: Path, name: str, kills: Callable[[str], int]) -> Counter[str]:
    """Kill so often at each point, half of them while another process has the store open; how many there were."""
    course, watched = known_course(name), folder / "watched.db"
    done: Counter[str] = Counter()
    with SessionDB(watched) as db:
        for number, point in enumerate(course.names):
            spot, some = _Spot(running, name, course, number), kills(point)
            alone = (some + number % 2) // 2
            _kill_watched(spot, db, watched, some - alone)
            _kill_alone(spot, folder / "alone", alone)
            done[point] += some
        assert checker.verify(db) == [], f"{name} killed at all of its points"
    remove(watched)
    return done


def kill_clients_at_every_point(running: zygote.Zygote, address: str, name: str, kills: int) -> int:
    """Kill clients of a server so often at each point. Any number of steps may share a store."""
    with SessionDB(address) as db, SessionDB(address) as other:
        course = _course(name, db, other, f"watched {name}")
        assert half_states(course) == []
        spots = [_Spot(running, name, course, number) for number in range(len(course.names))]
        if kills == 1:
            # One conversation for all that leave nothing: the next client needs all that the one before had locked.
            undone = [spot for spot in spots if spot.undone]
            _kill_in_one(undone, db, address, f"conversation {name}")
            spots = [spot for spot in spots if not spot.undone]
        for spot in spots:
            _kill_watched(spot, db, address, kills)
        assert checker.verify(db) == []
    return kills * len(course.names)


class _Look:
    """Compares the state others see. On a server a look asks some thirty questions, all rows are read by one: where
    no row has changed since a look, the next would see the same."""

    def __init__(self, db: SessionDB, c: str) -> None:
        self._db, self._c = db, c
        self._seen: tuple[str, list[Row]] | None = None

    def sees(self, state: str) -> bool:
        if self._db.driver.name != "postgres":
            return steps.observe(self._db, self._c) == state
        rows = consistency.rows(self._db)
        if self._seen != (state, rows):
            if steps.observe(self._db, self._c) != state:
                return False
            self._seen = (state, rows)
        return True


def _kill_in_one(spots: Sequence[_Spot], db: SessionDB, path: Target, c: str) -> None:
    args, look = steps.STEPS[spots[0].name].prepare(db, c), _Look(db, c)
    for spot in spots:
        spot.kill(path, args)
        assert look.sees(spot.course.states[spot.number]), spot.where
    last = spots[-1]
    settle(db, last.name, args, last.course.done, message_first=False, fsck=False, where=last.where)


def _kill_watched(spot: _Spot, db: SessionDB, path: Target, kills: int) -> None:
    """Another process has the store open. Where nothing is left, two conversations do for all kills: in one the next
    message comes first, in the other the repeated step."""
    conversations = min(kills, 2 if spot.undone else kills)
    for which in range(conversations):
        args = steps.STEPS[spot.name].prepare(db, f"{spot.name} {spot.number:02d}{which:04d}")
        where, look = f"{spot.where}, watched, conversation {which}", _Look(db, args["id"])
        for _ in range(which, kills, conversations):
            spot.kill(path, args)
            assert look.sees(spot.course.states[spot.number]), where
        if which < 2:
            first = (spot.number + which) % 2 == 1
            settle(db, spot.name, args, spot.course.done, message_first=first, fsck=False, where=where)


def _kill_alone(spot: _Spot, home: Path, kills: int) -> None:
    """No other process has the store open: the next one recovers it. Each distinct state that was left is checked
    once with the next message first and once with the repeated step first."""
    known = set[tuple[str, bool]]()
    if not kills:
        return
    home.mkdir(mode=0o700)
    # Prepared for each point: a lease in it lasts for thirty seconds, and all points may take longer.
    with SessionDB(home / "store.db") as db:
        args = steps.STEPS[spot.name].prepare(db, "conversation")
    original = memory_folders.SavedFolder(home)
    for round_ in range(kills):
        shutil.rmtree(home)
        path = original.lay_out(home) / "store.db"
        found = spot.kill(path, args, str(home)), (spot.number + round_) % 2 == 0
        if found not in known:
            where = f"{spot.where}, alone, round {round_}"
            with SessionDB(path) as db:
                assert steps.observe(db, args["id"]) == spot.course.states[spot.number], where
                settle(db, spot.name, args, spot.course.done, message_first=found[1], fsck=True, where=where)
            known.add(found)
    shutil.rmtree(home)


def settle(
    db: SessionDB, name: str, args: steps.Args, done: str, *, message_first: bool, fsck: bool, where: str
) -> None:
    """The next message is accepted, the step repeated by a client that never heard is done once, nothing is broken.

    Where many conversations share a store, fsck looks at all of them after the last.
    """
    step, c, history = steps.STEPS[name], args["id"], list[checker.Record]()
    was_done = steps.observe(db, c) == done
    if message_first:
        history += _next_message(db, c)
    if step.again or not was_done:
        try:
            step.run(db, args)
        except errors.ForkRefused:
            # The message that came first opened the continuation: there the caller goes on.
            assert name == "two_calls"
    if not message_first:
        assert steps.observe(db, c) == done, f"{where}: repeated, it is not done exactly once"
        history += _next_message(db, c)
    if steps.deleted(db, c):
        history.append(checker.Erased(c))
    assert checker.verify(db, history, also=[c], fsck=fsck) == [], where


def _next_message(db: SessionDB, c: str) -> list[checker.Record]:
    create = types.NewConversation(source="fault")
    try:
        receipt = db.append_message(c, role="user", content="next", uid=f"{c}:next", create=create)
    except errors.ConversationDeleted:
        return []
    return [checker.Sent("after", c, f"{c}:next", "next", receipt)]


def kill_at_every_write(running: zygote.Zygote, folder: Path, name: str) -> int:
    """Kill before each write, truncation and sync of SQLite, in commit and in close; how many kills there were."""
    count = 0
    while _kill_at_write(running, folder / "writes.db", name, count):
        count += 1
    assert count >= 3, f"{name} wrote next to nothing"
    return count


def _kill_at_write(running: zygote.Zygote, path: Path, name: str, number: int) -> bool:
    """False: the step was done before it came so far."""
    course, step, c = known_course(name), steps.STEPS[name], f"conversation{number:04d}"
    where = f"{name} killed at write {number}"
    with SessionDB(path) as db:
        args = {**step.prepare(db, c), "step": name, "disk": {"at": number, "how": "kill"}}
    outcome = running.run(steps.perform, path, args)
    last = outcome.state == "exited"
    with SessionDB(path) as db:
        state = steps.observe(db, c)
        assert state in ([course.done] if last else course.states), f"{where}: half done"
        assert not last or outcome.error is None, outcome
        settle(db, name, args, course.done, message_first=number % 2 == 1, fsck=last, where=where)
    return not last


def remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal", ".queue"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{path}{suffix}")


def kill_creation(running: zygote.Zygote, folder: Path, check: Callable[[Path], object], every: int = 1) -> int:
    """Kill the creation of a store before every n-th write; return the number of kills."""
    count, outcome = 0, None
    while outcome is None or outcome.state == "killed":
        path = folder / f"{count * every}.db"
        outcome = running.run(steps.open_only, path, {"disk": {"at": count * every, "how": "kill"}})
        check(path)
        remove(path)
        count += 1
    return count - 1
