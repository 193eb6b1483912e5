"""Whatever a summarizer does, and whichever process dies: few calls in all, a smaller context, and nothing lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.compaction import policy, summary
from holdfast.store.db import SessionDB
from tests.faults import adversaries, compacting, turns
from tests.faults import zygote as zygotes

POLICY = policy.CompactionPolicy()
BEGAN = 1_000_000.0
# So often one summarizer is asked in an attempt, at most.
TWICE = 2


class Scene:
    """A long conversation, a clock that all processes share, and a summarizer of one kind."""

    def __init__(self, place: Path, zygote: zygotes.Zygote, kind: str, exchanges: int = 30) -> None:
        self.path, self.counted = place / "store.db", str(place / "calls")
        self.clock = zygotes.Clock(str(place / "clock"), BEGAN)
        self.db = SessionDB(self.path, clock=self.clock)
        self.db.create_session("talk", source="fault")
        self._zygote, self._exchanges = zygote, 0
        self._how = {"clock": str(place / "clock")}
        self._args = {"conversation": "talk", "kind": kind, "calls": self.counted}
        self.say(exchanges)

    def say(self, exchanges: int) -> None:
        compacting.fill(self.db, "talk", exchanges, self._exchanges)
        self._exchanges += exchanges
        self.log = self.db.transcript("talk")

    @property
    def calls(self) -> int:
        return adversaries.calls(self.counted)

    def later(self, seconds: float) -> None:
        self.clock.set(self.clock() + seconds)

    def dies(self, task: zygotes.Task = adversaries.attempt, **given: Any) -> None:
        """A process that is killed in the middle of its first summary."""
        before = self.calls
        died = self._zygote.run(task, self.path, {**self._args, "dies": True, **given}, **self._how)
        assert (died.state, self.calls) == ("killed", before + 1), died

    def run(self, task: zygotes.Task, **given: Any) -> dict[str, Any]:
        ended = self._zygote.run(task, self.path, {**self._args, **given}, **self._how)
        assert ended.error is None, ended
        return dict(ended.value)

    def two(self, task: zygotes.Task = adversaries.attempt, **given: Any) -> list[dict[str, Any]]:
        """What two processes make of it at once."""
        ended = self._zygote.crowd(task, self.path, {**self._args, **given}, 2, **self._how)
        assert [each.error for each in ended] == [None, None], ended
        return [each.value for each in ended]

    def refused(self, outcome: str) -> str:
        """Two processes ask, neither may: this is why, unless the other looked at that very moment. The reason."""
        values = self.two()
        assert {each["outcome"] for each in values} - {"busy"} == {outcome}, values
        return next(str(each["reason"]) for each in values if each["outcome"] == outcome)

    def check(self, sessions: int) -> None:
        """Nothing is lost or forked, and a provider takes what is left."""
        assert self.db.transcript("talk") == self.log
        assert compacting.wrongs(self.db, "talk", [message.uid for message in self.log]) == []
        assert len(self.db.sessions("talk")) == sessions


@pytest.fixture
def scenes(place: Path, zygote: zygotes.Zygote) -> Iterator[Any]:
    made: list[Scene] = []

    def opened(kind: str, exchanges: int = 30) -> Scene:
        made.append(Scene(place, zygote, kind, exchanges))
        return made[-1]

    yield opened
    for each in made:
        each.db.close()
        each.clock.close()


@pytest.mark.parametrize("kind", adversaries.KINDS)
def test_whatever_it_does_processes_together_keep_within_the_budget(kind: str, scenes: Any) -> None:
    scene = scenes(kind)
    scene.dies()
    scene.refused("cooling_down")
    assert scene.calls == 1
    scene.later(POLICY.cooldown(1) + 1)
    for number in range(POLICY.an_hour):
        before = scene.calls
        values = scene.two()
        (won,) = [each for each in values if each["outcome"] == "compacted"]
        (lost,) = [each for each in values if each is not won]
        assert lost["outcome"] in ("busy", "nothing_to_do"), values
        assert (won["moved"], lost["moved"]) == (True, False)
        assert won["after"] <= (1 - POLICY.least_shrink) * won["before"]
        assert won["model"] == {"instructing": "adversary", "nameless": "summarizer"}.get(kind)
        assert 1 <= scene.calls - before <= TWICE
        scene.check(sessions=number + 2)
        scene.say(14)
    spent = scene.calls
    for _ in range(2):  # two processes that have never heard of it
        assert "or start a new conversation" in scene.refused("exhausted")
    assert scene.calls == spent <= 1 + POLICY.an_hour * TWICE
    scene.check(sessions=POLICY.an_hour + 1)


def test_orders_in_a_summary_stand_behind_the_mark_in_every_process(scenes: Any) -> None:
    scene = scenes("instructing")
    for number in range(3):
        assert scene.run(adversaries.attempt)["outcome"] == "compacted"
        (stands,) = [each for each in scene.db.context("talk") if each.uid.startswith("summary:")]
        assert (stands.role, str(stands.content).startswith(summary.MARK)) == ("user", True)
        assert str(stands.content).count(summary.MARK) == 1
        scene.check(sessions=number + 2)
        scene.say(14)


def test_processes_that_die_in_their_summaries_wait_ever_longer_and_the_next_one_goes_on(scenes: Any) -> None:
    scene = scenes("raising")
    pauses = (*POLICY.cooldowns, POLICY.cooldowns[-1])
    for number, pause in enumerate(pauses, start=1):
        scene.dies()
        scene.check(sessions=1)
        scene.later(pause - 1)
        scene.refused("cooling_down")
        assert scene.calls == number
        scene.later(2)
    assert "compacted" in [each["outcome"] for each in scene.two()]
    assert scene.calls == len(pauses) + 1
    scene.check(sessions=2)


def test_a_turn_whose_process_died_in_its_summary_is_taken_by_the_next_without_asking_again(scenes: Any) -> None:
    scene = scenes("hanging", exchanges=90)
    scene.dies(adversaries.talk, texts=["Hello?"])
    for text in ("Hello?", "Still there?", "And now?"):
        answered = scene.run(adversaries.talk, texts=[text])
        assert answered["exits"] == ["completed"], answered
        assert max(answered["shown"]) < compacting.WINDOW
    assert scene.calls == 1  # the pause holds in every process; the extract needs no model
    before, scene.log = scene.log, scene.db.transcript("talk")
    assert scene.log[: len(before)] == before
    assert [each.role for each in scene.log[len(before) :]] == ["user", "assistant"] * 3
    assert turns.invalid(scene.db.context("talk")) == []
    scene.check(sessions=len(scene.db.sessions("talk")))


@pytest.mark.parametrize("kind", adversaries.KINDS)
def test_whatever_it_does_two_processes_that_need_room_at_once_are_answered(kind: str, scenes: Any) -> None:
    scene = scenes(kind, exchanges=90)
    before = scene.log
    values = scene.two(adversaries.talk, texts=["{}: first", "{}: second", "{}: third"])
    assert [each["exits"] for each in values] == [["completed"] * 3] * 2
    assert max(size for each in values for size in each["shown"]) < compacting.WINDOW
    scene.log = scene.db.transcript("talk")
    assert scene.log[: len(before)] == before
    said = [each.uid for each in scene.log[len(before) :] if each.role == "user"]
    assert sorted(said) == sorted(f"{index}: {which}" for index in (0, 1) for which in ("first", "second", "third"))
    made = len(scene.db.sessions("talk")) - 1
    # Each process may have been stopped in the middle of one more as it left.
    assert 1 <= scene.calls <= TWICE * (made + 2)
    scene.check(sessions=made + 1)
