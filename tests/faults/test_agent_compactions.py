"""Compactions by agents in several processes: few summarizer calls in all, one continuation, and nothing lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import AsyncSessionDB
from holdfast.compaction import policy, summary
from holdfast.store.db import SessionDB
from tests.faults import agent_processes as agents
from tests.faults import zygote as zygotes

POLICY = policy.CompactionPolicy()
BEGAN = 1_000_000.0
# The calls of one summarizer in an attempt, at most.
CALLS = 2


def begin_long(path: Path, conversation: str = "talk") -> None:
    with SessionDB(path) as db:
        db.create_session(conversation, source="fault")
        agents.fill(db, conversation, 30)


def test_one_of_many_processes_compacts_and_the_others_keep_their_context(zygote: zygotes.Zygote, place: Path) -> None:
    path = place / "store.db"
    for round_ in range(3):
        conversation = f"talk{round_}"
        begin_long(path, conversation)
        values = [each.value for each in zygote.crowd(agents.compact, path, {"conversation": conversation}, 4)]
        (winner,) = [value for value in values if value["outcome"] == "compacted"]
        losers = [value for value in values if value is not winner]
        assert {value["outcome"] for value in losers} <= {"busy", "nothing_to_do", "cooling_down"}, values
        assert all(value["kept"] for value in losers)
        with SessionDB(path) as db:
            assert winner["session"] == db.head(conversation).id
            assert len(db.sessions(conversation)) == 2
            assert agents.compaction_problems(db, conversation, []) == []


def test_compactors_and_appenders_at_once_lose_nothing(zygote: zygotes.Zygote, place: Path) -> None:
    path, said = place / "store.db", list[str]()
    begin_long(path)
    for round_ in range(6):
        args = {"conversation": "talk", "force": True, "round": round_, "appends": 5}
        outcomes = zygote.crowd(agents.compact_or_append, path, args, 12)
        assert all(outcome.error is None for outcome in outcomes), outcomes
        said += [f"{round_}:{index}:{number}" for index in range(1, 12, 2) for number in range(5)]
        with SessionDB(path) as db:
            assert agents.compaction_problems(db, "talk", said) == []
            agents.fill(db, "talk", 6, begin=100 + 20 * round_)
    with SessionDB(path) as db:
        assert len(db.sessions("talk")) > 3


def test_next_compaction_goes_on_after_a_kill_at_any_point(zygote: zygotes.Zygote, place: Path) -> None:
    begin_long(place / "counted.db")
    args, operations = {"conversation": "talk"}, agents.COMPACTION_OPERATIONS
    counted = zygote.run(agents.compact, place / "counted.db", args, points=operations)
    assert counted.value["outcome"] == "compacted", counted
    for at in range(len(counted.reached)):
        path = place / f"{at}.db"
        begin_long(path)
        killed = zygote.run(agents.compact, path, args, points=operations, at=at)
        assert killed.state == "killed", killed
        with SessionDB(path) as db:
            sessions = db.sessions("talk")
            assert (len(sessions) in (1, 2), len(db.transcript("talk"))) == (True, 60), at
        again = zygote.run(agents.compact, path, {**args, "force": True})
        assert again.value["outcome"] in ("compacted", "nothing_to_do"), (at, again)
        with SessionDB(path) as db:
            # A forced compaction is made again after one that was committed.
            assert len(db.sessions("talk")) == len(sessions) + (again.value["outcome"] == "compacted") >= 2, at
            assert db.append_message("talk", role="user", content="next").seq == 61
            assert db.admin.fsck().ok


async def test_conversation_goes_on_compacted_after_a_restart(place: Path) -> None:
    path = place / "store.db"
    begin_long(path)
    async with AsyncSessionDB(SessionDB(path)) as db:
        assert (await agents.compacting_agent(db, "talk").compress_context()).outcome == "compacted"
    for number in range(2):
        async with AsyncSessionDB(SessionDB(path)) as db:
            agent = agents.compacting_agent(db, "talk")
            result = await agent.run_conversation(f"Go on {number}")
            await agent.close()
            assert (result.completed, result.session_id) == (True, (await db.head("talk")).id)
            assert len(await db.sessions("talk")) == 2


# --- summarizers that fail ---------------------------------------------------------------------------------------


class Scene:
    """A long conversation, a clock that all processes share, and a summarizer of one kind."""

    def __init__(self, place: Path, zygote: zygotes.Zygote, kind: str, exchanges: int = 30) -> None:
        self.path, self._counted = place / "store.db", str(place / "calls")
        self.clock = zygotes.Clock(str(place / "clock"), BEGAN)
        self.db = SessionDB(self.path, clock=self.clock)
        self.db.create_session("talk", source="fault")
        self._zygote, self._exchanges = zygote, 0
        self._how = {"clock": str(place / "clock")}
        self._args = {"conversation": "talk", "kind": kind, "calls": self._counted}
        self.say(exchanges)

    def say(self, exchanges: int) -> None:
        agents.fill(self.db, "talk", exchanges, self._exchanges)
        self._exchanges += exchanges
        self.log = self.db.transcript("talk")

    @property
    def calls(self) -> int:
        return agents.summarizer_calls(self._counted)

    def later(self, seconds: float) -> None:
        self.clock.set(self.clock() + seconds)

    def kill_in_summary(self, task: zygotes.Task = agents.compact_with_adversary, **given: Any) -> None:
        before = self.calls
        died = self._zygote.run(task, self.path, {**self._args, "dies": True, **given}, **self._how)
        assert (died.state, self.calls) == ("killed", before + 1), died

    def run(self, task: zygotes.Task, **given: Any) -> dict[str, Any]:
        ended = self._zygote.run(task, self.path, {**self._args, **given}, **self._how)
        assert ended.error is None, ended
        return dict(ended.value)

    def run_two(self, task: zygotes.Task = agents.compact_with_adversary, **given: Any) -> list[dict[str, Any]]:
        ended = self._zygote.crowd(task, self.path, {**self._args, **given}, 2, **self._how)
        assert [each.error for each in ended] == [None, None], ended
        return [each.value for each in ended]

    def refusal(self, outcome: str) -> str:
        """Two processes ask, and neither may: the reason, unless the other looked at that very moment."""
        values = self.run_two()
        assert {each["outcome"] for each in values} - {"busy"} == {outcome}, values
        return next(str(each["reason"]) for each in values if each["outcome"] == outcome)

    def check(self, sessions: int) -> None:
        """Nothing is lost or forked, and a provider takes the context."""
        assert self.db.transcript("talk") == self.log
        assert agents.compaction_problems(self.db, "talk", [message.uid for message in self.log]) == []
        assert len(self.db.sessions("talk")) == sessions


@pytest.fixture
def make_scene(place: Path, zygote: zygotes.Zygote) -> Iterator[Callable[..., Scene]]:
    made: list[Scene] = []

    def make(kind: str, exchanges: int = 30) -> Scene:
        made.append(Scene(place, zygote, kind, exchanges))
        return made[-1]

    yield make
    for each in made:
        each.db.close()
        each.clock.close()


@pytest.mark.parametrize("kind", agents.KINDS)
def test_processes_share_the_budget_of_a_failing_summarizer(kind: str, make_scene: Callable[..., Scene]) -> None:
    scene = make_scene(kind)
    scene.kill_in_summary()
    scene.refusal("cooling_down")
    assert scene.calls == 1
    scene.later(POLICY.cooldown(1) + 1)
    for number in range(POLICY.an_hour):
        before = scene.calls
        values = scene.run_two()
        (won,) = [each for each in values if each["outcome"] == "compacted"]
        (lost,) = [each for each in values if each is not won]
        assert lost["outcome"] in ("busy", "nothing_to_do"), values
        assert (won["moved"], lost["moved"]) == (True, False)
        assert won["after"] <= (1 - POLICY.least_shrink) * won["before"]
        assert won["model"] == ("adversary" if kind == "instructing" else None)
        assert 1 <= scene.calls - before <= CALLS
        (stored,) = [each for each in scene.db.context("talk") if each.uid.startswith("summary:")]
        # Orders in a summary are marked as data.
        assert (stored.role, str(stored.content).count(summary.MARK)) == ("user", 1)
        assert str(stored.content).startswith(summary.MARK)
        scene.check(sessions=number + 2)
        scene.say(14)
    spent = scene.calls
    assert "or start a new conversation" in scene.refusal("exhausted")
    assert scene.calls == spent <= 1 + POLICY.an_hour * CALLS
    scene.check(sessions=POLICY.an_hour + 1)


def test_pause_grows_with_every_process_that_dies_in_its_summary(make_scene: Callable[..., Scene]) -> None:
    scene = make_scene("raising")
    pauses = (*POLICY.cooldowns, POLICY.cooldowns[-1])
    for number, pause in enumerate(pauses, start=1):
        scene.kill_in_summary()
        scene.check(sessions=1)
        scene.later(pause - 1)
        scene.refusal("cooling_down")
        assert scene.calls == number
        scene.later(2)
    assert "compacted" in [each["outcome"] for each in scene.run_two()]
    assert scene.calls == len(pauses) + 1
    scene.check(sessions=2)


def test_turn_of_a_process_killed_in_its_summary_is_taken_without_asking_again(
    make_scene: Callable[..., Scene],
) -> None:
    scene = make_scene("hanging", exchanges=90)
    scene.kill_in_summary(agents.talk_with_adversary, texts=["Hello?"])
    for text in ("Hello?", "Still there?", "And now?"):
        answered = scene.run(agents.talk_with_adversary, texts=[text])
        assert answered["exits"] == ["completed"], answered
        assert max(answered["shown"]) < agents.WINDOW
    assert scene.calls == 1  # the pause holds in every process; the extract needs no model
    before, scene.log = scene.log, scene.db.transcript("talk")
    assert scene.log[: len(before)] == before
    assert [each.role for each in scene.log[len(before) :]] == ["user", "assistant"] * 3
    scene.check(sessions=len(scene.db.sessions("talk")))


@pytest.mark.parametrize("kind", ["bigger", "hanging"])
def test_two_processes_that_need_room_at_once_are_answered(kind: str, make_scene: Callable[..., Scene]) -> None:
    scene = make_scene(kind, exchanges=90)
    before = scene.log
    values = scene.run_two(agents.talk_with_adversary, texts=["{}: first", "{}: second"])
    assert [each["exits"] for each in values] == [["completed"] * 2] * 2
    assert max(size for each in values for size in each["shown"]) < agents.WINDOW
    scene.log = scene.db.transcript("talk")
    assert scene.log[: len(before)] == before
    said = [each.uid for each in scene.log[len(before) :] if each.role == "user"]
    assert sorted(said) == sorted(f"{index}: {which}" for index in (0, 1) for which in ("first", "second"))
    made = len(scene.db.sessions("talk")) - 1
    # Each process may have been stopped in the middle of one more as it left.
    assert 1 <= scene.calls <= CALLS * (made + 2)
    scene.check(sessions=made + 1)
