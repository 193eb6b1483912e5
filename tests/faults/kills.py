"""Kills a process at every point of a step, many times, and looks at what it left.

The points of a step, and the state others see at each of them, are found by running it once. A kill at a
point must leave exactly that state. Kills differ in what else may matter: whether another process had
the store open (else the next one recovers the WAL), and whether the next message or the repeated step
comes first.
"""

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
from tests.faults import checker, copies, interleavings, steps, zygote
from tests.support import consistency


class Course(NamedTuple):
    """The points of a step, and the state every other process sees when it is there."""

    names: list[str]
    states: list[str]

    @property
    def done(self) -> str:
        return self.states[-1]


@functools.cache
def known_course(name: str) -> Course:
    """The same of a store in a file, which is the same each time."""
    with zygote.folder() as made:
        return course_of(name, f"{made}/store.db")


def course_of(name: str, path: Path | str, without_triggers: Sequence[str] = ()) -> Course:
    """Run the step once, watched by a second SessionDB."""
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
    """Points at which others see something else than a point before, though nothing was committed there."""
    pairs = zip(itertools.pairwise(course.states), course.names[1:], strict=True)
    return [point for (before, after), point in pairs if before != after and not point.endswith(".committed")]


@contextlib.contextmanager
def hooked(watch: object) -> Iterator[None]:
    fault_points.hook = watch  # type: ignore[assignment]
    try:
        yield
    finally:
        fault_points.hook = None


class _Spot(NamedTuple):
    """A point of a step, and all there is to kill somebody at it."""

    running: zygote.Zygote
    name: str
    course: Course
    number: int

    @property
    def undone(self) -> bool:
        """Nothing of it is there after a kill, so the next may be killed in the same conversation."""
        return self.course.states[self.number] == self.course.states[0] != self.course.done

    @property
    def where(self) -> str:
        return f"{self.name} killed at {self.course.names[self.number]}"

    def kill(self, path: Path | str, args: steps.Args, left: str = "") -> str:
        """The fingerprint of what was left in that folder."""
        operations = steps.STEPS[self.name].operations
        outcome = self.running.run(steps.perform, path, args, points=operations, at=self.number, left=left)
        assert outcome.state == "killed", f"{self.where}: {outcome}"
        return outcome.left

    def check(self, db: SessionDB, args: steps.Args, *, message_first: bool, fsck: bool, where: str) -> None:
        assert steps.observe(db, args["id"]) == self.course.states[self.number], where
        settle(db, self.name, args, self.course.done, message_first=message_first, fsck=fsck, where=where)


def kill_at_every_point(running: zygote.Zygote, folder: Path, name: str, kills: Callable[[str], int]) -> Counter[str]:
    """How many kills there were at each point; `kills` says how many there are to be.

    Raises AssertionError with what was wrong at the first that did harm.
    """
    course, home, watched = known_course(name), folder / "alone", folder / "watched.db"
    done: Counter[str] = Counter()
    with SessionDB(watched) as db:
        for number, point in enumerate(course.names):
            spot, some = _Spot(running, name, course, number), kills(point)
            done[point] += _kill_many(spot, db, watched, some // 2, "watched")
            done[point] += _kill_alone(spot, home, some - some // 2)
        assert checker.verify(db) == [], f"{name} killed at all of its points"
    remove(watched)
    return done


class Watched(NamedTuple):
    """A store on a server, and two SessionDBs that have it open while clients are killed: one works, one looks."""

    address: str
    db: SessionDB
    other: SessionDB


@contextlib.contextmanager
def watching(address: str) -> Iterator[Watched]:
    with SessionDB(address) as db, SessionDB(address) as other:
        yield Watched(address, db, other)


def kill_clients_at_every_point(running: zygote.Zygote, store: Watched, name: str, kills: int) -> int:
    """The same of clients of a server, which undoes what the dead left. Any number of steps may share a store."""
    db, address = store.db, store.address
    course = _course(name, db, store.other, f"watched {name}")
    spots = [_Spot(running, name, course, number) for number in range(len(course.names))]
    if kills == 1:
        # All that leave nothing in one conversation: who comes next needs whatever the one before had locked.
        undone = [spot for spot in spots if spot.undone]
        _kill_in_one(undone, db, address, f"conversation {name}")
        spots = [spot for spot in spots if not spot.undone]
    for spot in spots:
        _kill_many(spot, db, address, kills, "by a client")
    assert checker.verify(db) == []
    return kills * len(course.names)


class _Look:
    """Whether others see what they should. On a server each look asks some thirty questions; all rows are told by
    one, and where none has changed since a look, the next would see the same."""

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


def _kill_in_one(spots: Sequence[_Spot], db: SessionDB, path: Path | str, c: str) -> None:
    args, look = steps.STEPS[spots[0].name].prepare(db, c), _Look(db, c)
    for spot in spots:
        spot.kill(path, {**args, "step": spot.name})
        assert look.sees(spot.course.states[spot.number]), spot.where
    last = spots[-1]
    settle(db, last.name, args, last.course.done, message_first=False, fsck=False, where=last.where)


def _kill_many(spot: _Spot, db: SessionDB, path: Path | str, kills: int, by: str) -> int:
    """Others have the store open all along. Where nothing is left, two conversations do for all kills: in one the
    next message comes first, in the other the repeated step."""
    conversations = min(kills, 2 if spot.undone else kills)
    for which in range(conversations):
        args = steps.STEPS[spot.name].prepare(db, f"{spot.name} {spot.number:02d}{which:04d}")
        where, look = f"{spot.where}, {by}, conversation {which}", _Look(db, args["id"])
        for _ in range(which, kills, conversations):
            spot.kill(path, {**args, "step": spot.name})
            assert look.sees(spot.course.states[spot.number]), where
        if which < 2:
            first = (spot.number + which) % 2 == 1
            settle(db, spot.name, args, spot.course.done, message_first=first, fsck=False, where=where)
    return kills


def _kill_alone(spot: _Spot, home: Path, kills: int) -> int:
    """Nobody else has it open: the next one recovers what was left. What differs is looked at, each way once."""
    known = set[tuple[str, bool]]()
    home.mkdir(mode=0o700)
    # Prepared for each point: a lease in it lasts for thirty seconds, and all points may take longer.
    with SessionDB(home / "store.db") as db:
        args = {**steps.STEPS[spot.name].prepare(db, "conversation"), "step": spot.name}
    original = copies.Folder(home)
    for round_ in range(kills):
        shutil.rmtree(home)
        path = original.lay_out(home) / "store.db"
        found = spot.kill(path, args, str(home)), (spot.number + round_) % 2 == 0
        if found not in known:
            with SessionDB(path) as db:
                where = f"{spot.where}, alone, round {round_}"
                spot.check(db, args, message_first=found[1], fsck=True, where=where)
            known.add(found)
    shutil.rmtree(home)
    return kills


def settle(
    db: SessionDB, name: str, args: steps.Args, done: str, *, message_first: bool, fsck: bool, where: str
) -> None:
    """The next message is accepted, the step repeated by whoever never heard is done once, nothing is broken.

    Where many conversations share a store, all of it is looked at after the last: nothing is removed between them.
    """
    step, c, history = steps.STEPS[name], args["id"], list[checker.Record]()
    was_done = steps.observe(db, c) == done
    if message_first:
        history += _next_message(db, c)
    if step.again or not was_done:
        _repeat(db, name, args)
    if not message_first:
        assert steps.observe(db, c) == done, f"{where}: repeated, it is not done exactly once"
        history += _next_message(db, c)
    if steps.deleted(db, c):
        history.append(checker.Erased(c))
    assert checker.verify(db, history, also=[c], fsck=fsck) == [], where


def _repeat(db: SessionDB, name: str, args: steps.Args) -> None:
    try:
        steps.STEPS[name].run(db, args)
    except errors.ForkRefused:
        # The message that came first opened the continuation: there the caller goes on.
        assert name == "two_calls"


def _next_message(db: SessionDB, c: str) -> list[checker.Record]:
    try:
        receipt = db.append_message(
            c, role="user", content="next", uid=f"{c}:next", create=types.NewConversation(source="fault")
        )
    except errors.ConversationDeleted:
        return []
    return [checker.Sent("after", c, f"{c}:next", "next", receipt)]


# --- kills inside of a commit, between two writes to the disk ------------------------------------------


def kill_at_every_write(running: zygote.Zygote, folder: Path, name: str, every: int = 1) -> int:
    """SQLite writes, truncates and syncs; the process dies before each of them, or before every so many-th, in commit
    and in close. How many kills there were."""
    course, count = known_course(name), 0
    while _killed_at_write(running, folder / "writes.db", name, course, count * every):
        count += 1
    assert count * every >= 3, f"{name} wrote next to nothing"
    return count


def _killed_at_write(running: zygote.Zygote, path: Path, name: str, course: Course, number: int) -> bool:
    """False: it was done before it came so far."""
    step, c, where = steps.STEPS[name], f"conversation{number:04d}", f"{name} killed at write {number}"
    with SessionDB(path) as db:
        args = {**step.prepare(db, c), "step": name, "disk": {"at": number, "how": "kill"}}
    outcome = running.run(steps.perform, path, args)
    with SessionDB(path) as db:
        state = steps.observe(db, c)
        assert state in course.states, f"{where}: half done"
        if outcome.state == "exited":
            assert (state, outcome.error) == (course.done, None), where
        # All share a store, and nothing is removed: after the last all of it is looked at.
        last = outcome.state == "exited"
        settle(db, name, args, course.done, message_first=number % 2 == 1, fsck=last, where=where)
    return outcome.state == "killed"


def remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal", ".queue"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{path}{suffix}")


def kill_creation(running: zygote.Zygote, folder: Path, works: Callable[[Path], object], every: int = 1) -> int:
    """The same of a store's first creation; `works` opens what was left. How many kills there were."""
    count, outcome = 0, None
    while outcome is None or outcome.state == "killed":
        path = folder / f"{count * every}.db"
        outcome = running.run(steps.open_only, path, {"disk": {"at": count * every, "how": "kill"}})
        works(path)
        remove(path)
        count += 1
    return count - 1
