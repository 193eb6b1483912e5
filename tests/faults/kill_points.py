"""Kills processes at every point of a step and checks the states they leave."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from holdfast import errors, fault_points, types
from holdfast.store.db import SessionDB
from tests.faults import checker, steps, zygote
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


def course_of(name: str, path: Target) -> Course:
    with SessionDB(path) as db, SessionDB(path) as other:
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


def kill_at_every_point(running: zygote.Zygote, folder: Path, name: str, kills: Callable[[str], int]) -> None:
    """Kill so often at each point, half of them while another process has the store open."""
    course, watched = known_course(name), folder / "watched.db"
    spots = [_Spot(running, name, course, number) for number in range(len(course.names))]
    alone = [(kills(point) + number % 2) // 2 for number, point in enumerate(course.names)]
    for spot, some in zip(spots, alone, strict=True):
        _kill_alone(spot, folder / "alone", some)
    with SessionDB(watched) as db:
        _kill_watched(
            [spot for spot in spots for _ in range(kills(course.names[spot.number]) - alone[spot.number])], db, watched
        )
        assert checker.verify(db) == [], f"{name} killed at all of its points"
    remove(watched)


def kill_clients_at_every_point(running: zygote.Zygote, address: str, name: str, kills: int) -> Course:
    """Kill clients of a server so often at each point. Any number of steps may share a store."""
    with SessionDB(address) as db, SessionDB(address) as other:
        course = _course(name, db, other, f"watched {name}")
        assert half_states(course) == []
        spots = [_Spot(running, name, course, number) for number in range(len(course.names)) for _ in range(kills)]
        _kill_watched(spots, db, address)
        assert checker.verify(db) == []
    return course


def _kill_watched(spots: Sequence[_Spot], db: SessionDB, path: Target) -> None:
    """Another process has the store open. Kills that leave nothing share two conversations, so that each process needs
    all that the one before had locked: in one the next message comes first afterwards, in the other the repeated step.
    """
    undone, others = ([spot for spot in spots if spot.undone == is_undone] for is_undone in (True, False))
    for first, some in enumerate((undone[::2], undone[1::2])):
        if some:
            args = steps.STEPS[some[0].name].prepare(db, f"undone {first} {some[0].name}")
            before = consistency.rows(db)
            for spot in some:
                spot.kill(path, args)
                assert consistency.rows(db) == before, f"{spot.where} left something"
            _settle_watched(some[-1], db, args, first)
    for number, spot in enumerate(others):
        args = steps.STEPS[spot.name].prepare(db, f"{number:04d} {spot.name}")
        spot.kill(path, args)
        assert steps.observe(db, args["id"]) == spot.course.states[spot.number], spot.where
        if (count := others[:number].count(spot)) < 2:
            _settle_watched(spot, db, args, count)


def _settle_watched(spot: _Spot, db: SessionDB, args: steps.Args, number: int) -> None:
    settle(db, spot.name, args, spot.course.done, message_first=number % 2 == 1, fsck=False, where=spot.where)


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
    """Kill before each write, truncation and sync of SQLite, in commit and in close; return the number of kills."""
    course, step, path = known_course(name), steps.STEPS[name], folder / "writes.db"
    number, last = -1, False
    while not last:
        number += 1
        where = f"{name} killed at write {number}"
        with SessionDB(path) as db:
            args = {**step.prepare(db, f"conversation{number:04d}"), "disk": {"at": number, "how": "kill"}}
        outcome = running.run(steps.perform, path, {**args, "step": name})
        last = outcome.state == "exited"
        with SessionDB(path) as db:
            state = steps.observe(db, args["id"])
            assert state in ([course.done] if last else course.states), f"{where}: half done"
            assert not last or outcome.error is None, outcome
            settle(db, name, args, course.done, message_first=number % 2 == 1, fsck=last, where=where)
    return number


def remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal", ".queue"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{path}{suffix}")


def kill_creation(running: zygote.Zygote, folder: Path, every: int = 1) -> int:
    """Kill the creation of a store before every n-th write; return the number of kills."""
    count, is_killed = -1, True
    while is_killed:
        count += 1
        path = folder / f"{count * every}.db"
        outcome = running.run(steps.open_only, path, {"disk": {"at": count * every, "how": "kill"}})
        is_killed = outcome.state == "killed"
        with SessionDB(path) as db:
            steps.begin(db, "c", 1)
            assert checker.verify(db, also=["c"]) == [], path.name
        remove(path)
    return count
