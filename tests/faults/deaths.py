"""Kills a process in backup, restore, prune, deletion, scrub, import or salvage, many times, and looks around.

At every named point, in different histories, where the point is reached first, last and in between, with the
store open elsewhere or not; before writes to the disk; and at any time at all. What is found is the old or the
new, each part wholly, the next message is accepted, and whoever asks again gets what was asked for, once.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from holdfast import errors
from holdfast.store.db import SessionDB
from tests.faults import keeping, zygote

Parts = dict[str, Any]
# Kinds of rounds: which history a kill is in, and which of these it is, change from one to the next.
FIRST, LAST, AGAIN = 0, 1, (2, 3)
KINDS = 10


class Course(NamedTuple):
    """An act in one history: the points it passes, what was there before and after, and how long it took."""

    template: keeping.Template
    act: str
    points: tuple[str, ...]
    before: Parts
    after: Parts
    seconds: float

    def gained(self, found: Parts) -> frozenset[str]:
        """The parts that are new already. AssertionError when one is neither what it was nor what it was to be."""
        half = [part for part in found if found[part] not in (self.before[part], self.after[part])]
        # Attachments are files, each there or not: what a deletion leaves of them the next collection takes.
        if half == ["blobs"] and self._between(set(found["blobs"])):
            half = []
        assert not half, f"half done: {half}"
        return frozenset(part for part in found if found[part] != self.before[part])

    def _between(self, blobs: set[str]) -> bool:
        before, after = set(self.before["blobs"]), set(self.after["blobs"])
        return before & after <= blobs <= before | after


class Left(NamedTuple):
    """What a dead process left, by its fingerprint, and what was made of it: two equals need no second look."""

    seed: int
    act: str
    fingerprint: str
    watched: bool
    again: bool


class Stock:
    """Furnished folders of several histories, the courses of acts in them, and what was found after which kill."""

    def __init__(self, running: zygote.Zygote, folder: Path, seeds: Sequence[int], mutant: str = "") -> None:
        self._running = running
        self._mutant = mutant
        self._templates = [keeping.Template(running, folder, seed) for seed in seeds]
        self._courses: dict[str, list[Course]] = {}
        self.settled: dict[Left, frozenset[str]] = {}

    def courses(self, act: str) -> list[Course]:
        if act not in self._courses:
            self._courses[act] = [self._course(template, act) for template in self._templates]
        return self._courses[act]

    def _course(self, template: keeping.Template, act: str) -> Course:
        with _fresh(template) as folder:
            before = look(folder, act)
            done = self.run(folder, act)
            assert (done.state, done.error) == ("exited", None), f"{act} of seed {template.seed}: {done}"
            after = look(folder, act)
            assert act != "salvage" or after["salvaged"] == before["store"]
        return Course(template, act, done.reached, before, after, done.told[0]["seconds"])

    def run(self, folder: Path, act: str, *, at: int | None = None, **args: Any) -> zygote.Outcome:
        given, counting = {"act": act, "mutant": self._mutant, **args}, keeping.ACTS[act].operations
        return self._running.run(keeping.perform, folder / "store.db", given, points=counting, at=at, left=str(folder))


@contextlib.contextmanager
def _fresh(template: keeping.Template) -> Iterator[Path]:
    folder = template.fresh()
    yield folder
    shutil.rmtree(folder)


def look(folder: Path, act: str) -> Parts:
    """What is there; of an act that goes from conversation to conversation, each of them as a part."""
    found = keeping.look(folder)
    if not keeping.ACTS[act].piecemeal:
        return found
    talks = keeping.conversations(found.pop("store"))
    return {**found, **{name: talks.get(name) for name in {*talks, *keeping.INCOMING}}}


# --- kills -------------------------------------------------------------------------------------------------------


class Round(NamedTuple):
    """One kill: in which course, where, who else has the store open, and what the next process does."""

    course: Course
    at: int
    watched: bool
    again: bool

    @property
    def where(self) -> str:
        how = f"{'watched, ' * self.watched}{'asked again, ' * self.again}seed {self.course.template.seed}"
        return f"{self.course.act} killed at {self.course.points[self.at]} ({self.at}), {how}"


def rounds(courses: Sequence[Course], point: str, kills: int, chance: random.Random, begin: int) -> Iterator[Round]:
    """So many, no two alike as long as there are histories and occurrences enough; where they are few at each point,
    they begin at another kind than at the point before."""
    having = [course for course in courses if point in course.points]
    for number in range(begin, begin + kills):
        turn, which = divmod(number, len(having))
        course, kind = having[which], turn + which
        places = [at for at, name in enumerate(course.points) if name == point]
        at = places[0] if kind % 4 == FIRST else places[-1] if kind % 4 == LAST else chance.choice(places)
        yield Round(course, at, kind % 2 == 1 and not keeping.ACTS[course.act].apart, kind in AGAIN)


def kill_at_every_point(
    stock: Stock, act: str, kills: Callable[[str], int], chance: random.Random, among: Sequence[str] = ("",)
) -> Counter[str]:
    """How many kills there were at each point (or at each whose name ends so); `kills` says how many there are to be.

    AssertionError tells the first that did harm.
    """
    courses = stock.courses(act)
    done: Counter[str] = Counter()
    gains: dict[int, dict[int, frozenset[str]]] = {course.template.seed: {} for course in courses}
    points = sorted({name for course in courses for name in course.points if name.endswith(tuple(among))})
    for number, point in enumerate(points):
        for round_ in rounds(courses, point, kills(point), chance, number * kills(point) % KINDS):
            gained = kill_once(stock, round_)
            known = gains[round_.course.template.seed].setdefault(round_.at, gained)
            assert known == gained, f"{round_.where}: {sorted(known)} another time"
            done[point] += 1
    for seed, found in gains.items():
        for (early, before), (late, after) in itertools.pairwise(sorted(found.items())):
            assert before <= after, f"{act} of seed {seed}: done at point {early} is undone at {late}"
    return done


def kill_once(stock: Stock, round_: Round) -> frozenset[str]:
    """The parts that were new after it."""
    course = round_.course
    with _fresh(course.template) as folder, contextlib.ExitStack() as stack:
        watcher = stack.enter_context(SessionDB(folder / "store.db")) if round_.watched else None
        outcome = stock.run(folder, course.act, at=round_.at)
        assert outcome.state == "killed", f"{round_.where}: {outcome}"
        return settle(stock, course, folder, outcome.left, round_.where, watcher, again=round_.again)


def kill_at_any_time(stock: Stock, act: str, kills: int, chance: random.Random) -> Counter[str]:
    """So many processes; how many were killed in time. How long an act takes changes with what else runs here."""
    courses, ended = stock.courses(act), Counter[str]()
    longest = min(course.seconds for course in courses)
    for number in range(kills):
        course, after = courses[number % len(courses)], chance.uniform(1e-5, longest)
        where = f"{act} killed after {after:.6f} s, seed {course.template.seed}"
        with _fresh(course.template) as folder:
            outcome = stock.run(folder, act, after=after)
            assert outcome.error in (None, str(int(signal.SIGALRM))), f"{where}: {outcome}"
            settle(stock, course, folder, outcome.left, where, again=number // len(courses) % 2 == 1)
        ended[outcome.state] += 1
        longest *= 1.1 if outcome.state == "killed" else 0.8
    return ended


def kill_between_writes(stock: Stock, act: str, most: int) -> int:
    """Before every write to the disk, or before so many of them; how many kills."""
    course = stock.courses(act)[0]
    with _fresh(course.template) as folder:
        touches = stock.run(folder, act, disk={"at": None, "how": "kill"}).told[0]["touches"]
    numbers = range(0, touches, max(1, touches // most))
    for number in numbers:
        where = f"{act} killed at write {number} of {touches}, seed {course.template.seed}"
        with _fresh(course.template) as folder:
            outcome = stock.run(folder, act, disk={"at": number, "how": "kill"})
            assert outcome.state == "killed", where
            settle(stock, course, folder, outcome.left, where, again=True)
    return len(numbers)


# --- what must be found after them -------------------------------------------------------------------------------


def settle(
    stock: Stock,
    course: Course,
    folder: Path,
    fingerprint: str,
    where: str,
    watcher: SessionDB | None = None,
    *,
    again: bool,
) -> frozenset[str]:
    """Old or new, and the next message is accepted, by who had the store open all along or by a new process."""
    left = Left(course.template.seed, course.act, fingerprint, watcher is not None, again)
    if left not in stock.settled:
        try:
            stock.settled[left] = _settled(stock, course, folder, watcher, again)
        except (AssertionError, errors.HoldfastError) as error:
            raise AssertionError(f"{where}: {type(error).__name__} {error}") from error
    return stock.settled[left]


def _settled(stock: Stock, course: Course, folder: Path, watcher: SessionDB | None, again: bool) -> frozenset[str]:
    gained = course.gained(look(folder, course.act))
    if course.act == "prune" and "store" in gained:
        assert "archive" in gained, "removed without its archive"
    if watcher is not None and again:
        watcher.close()  # the files are looked into
    if again:
        _ask_again(stock, course, folder, gained)
    with contextlib.nullcontext(watcher) if watcher and not again else SessionDB(folder / "store.db") as db:
        keeping.next_message(db)
        assert not again or db.admin.fsck().ok
    return gained


def _ask_again(stock: Stock, course: Course, folder: Path, gained: frozenset[str]) -> None:
    act = course.act
    if act in ONCE and ONCE[act] in gained:
        return
    (folder / "archive.jsonl").unlink(missing_ok=True)  # whoever asks again names another; this test asks for the same
    outcome = stock.run(folder, act)
    assert (outcome.state, outcome.error) == ("exited", None), outcome
    settled = look(folder, act)
    # A scheduled backup that was claimed by the dead is made when the claim has run out.
    wrong = [part for part in settled if settled[part] != course.after[part] and part != "due"]
    assert not wrong, f"asked again, not done: {wrong}"
    if keeping.ACTS[act].removes:
        assert keeping.holding(folder, keeping.MARKER) == []
    if act != "backup_if_due":
        assert keeping.drafts(folder) == []


# What cannot be asked for again when this part is new: nothing is left to be done, or it is refused.
ONCE = {"prune": "store", "salvage": "salvaged"}
