"""Kills a process at every point of a step, many times, and looks at what it left.

The points of a step, and the state others see at each of them, are found by running it once. A kill at a
point must leave exactly that state. Rounds differ in what else may matter: whether another process had
the store open (else the next one recovers the WAL), and whether the next message or the repeated step
comes first.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from holdfast import errors, types
from holdfast.store import points
from holdfast.store.db import SessionDB
from tests.faults import checker, interleavings, steps, zygote


class Course(NamedTuple):
    """The points of a step, and the state every other process sees when it is there."""

    names: list[str]
    states: list[str]

    @property
    def done(self) -> str:
        return self.states[-1]


def course_of(name: str, path: Path | str, without_triggers: Sequence[str] = ()) -> Course:
    """Run the step once, watched by a second SessionDB."""
    step, course = steps.STEPS[name], Course([], [])
    with SessionDB(path) as db, SessionDB(path) as other:
        interleavings.drop_triggers(db, without_triggers)
        args = step.prepare(db, "watched")

        def watch(point: str) -> None:
            if point.startswith(tuple(f"{operation}." for operation in step.operations)):
                course.names.append(point)
                course.states.append(steps.observe(other, "watched"))

        with hooked(watch):
            step.run(db, args)
        assert steps.observe(other, "watched") == course.done
    return course


def half_states(course: Course) -> list[str]:
    """Points at which others see something else than a point before, though nothing was committed there."""
    pairs = zip(itertools.pairwise(course.states), course.names[1:], strict=True)
    return [point for (before, after), point in pairs if before != after and not point.endswith(".committed")]


@contextlib.contextmanager
def hooked(watch: object) -> Iterator[None]:
    points.hook = watch  # type: ignore[assignment]
    try:
        yield
    finally:
        points.hook = None


def kill_at_every_point(running: zygote.Zygote, folder: Path, name: str, kills: int) -> int:
    """How many kills there were. Raises AssertionError with what was wrong at the first that did harm."""
    course = course_of(name, folder / "watched for points.db")
    for number, point in enumerate(course.names):
        path = folder / f"{number}.db"
        for round_ in range(kills):
            _kill_once(running, path, name, course, number, round_, fsck=round_ == kills - 1)
        remove(path)
        assert point, name
    return len(course.names) * kills


def _kill_once(
    running: zygote.Zygote, path: Path, name: str, course: Course, number: int, round_: int, *, fsck: bool
) -> None:
    step, c = steps.STEPS[name], f"conversation{round_:04d}"
    where = f"{name} killed at {course.names[number]}, round {round_}"
    db = SessionDB(path)
    args = {**step.prepare(db, c), "step": name}
    alone = round_ % 2 == 0
    if alone:
        db.close()
    outcome = running.run(steps.perform, path, args, points=step.operations, at=number, fault="kill")
    assert outcome.state == "killed", f"{where}: {outcome}"
    if alone:
        db = SessionDB(path)
    with db:
        assert steps.observe(db, c) == course.states[number], where
        settle(db, name, args, course.done, message_first=round_ % 4 >= 2, fsck=fsck, where=where)


def settle(
    db: SessionDB, name: str, args: steps.Args, done: str, *, message_first: bool, fsck: bool, where: str
) -> None:
    """The next message is accepted, the step repeated by whoever never heard is done once, nothing is broken.

    The whole store is looked at after the last of many rounds: nothing is removed between them.
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


def kill_at_every_write(running: zygote.Zygote, folder: Path, name: str) -> int:
    """SQLite writes, truncates and syncs; the process dies before each of them, in commit and in close."""
    course = course_of(name, folder / "watched for writes.db")
    touches, number = 1, 0
    while number < touches:
        touches = _kill_at_write(running, folder / "writes.db", name, course, number)
        number += 1
    assert number > 3, f"{name} wrote next to nothing"
    return number - 1


def _kill_at_write(running: zygote.Zygote, path: Path, name: str, course: Course, number: int) -> int:
    step, c, where = steps.STEPS[name], f"conversation{number:04d}", f"{name} killed at write {number}"
    with SessionDB(path) as db:
        args = {**step.prepare(db, c), "step": name, "disk": {"at": number, "how": "kill"}}
    outcome = running.run(steps.perform, path, args)
    with SessionDB(path) as db:
        state = steps.observe(db, c)
        assert state in course.states, f"{where}: half done"
        if outcome.state == "exited":
            assert (state, outcome.error) == (course.done, None), where
        settle(db, name, args, course.done, message_first=number % 2 == 1, fsck=True, where=where)
    return int(outcome.told[0]["touches"]) if outcome.state == "exited" else number + 2


def remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal", ".queue"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{path}{suffix}")
