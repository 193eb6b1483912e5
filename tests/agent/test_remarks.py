"""What an agent remarks beside a turn, who is told when it is left, and what its summaries cost."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from holdfast import AIAgent, AsyncSessionDB, events, types
from holdfast.agent import settings
from holdfast.agent import usage as agent_usage
from holdfast.agent.commands import status as commands
from holdfast.compaction import base as compaction
from holdfast.compaction import hooks as telling
from holdfast.model import ScriptedModel, tokens
from holdfast.runtime import runtime
from tests.compaction import test_usage as usage
from tests.support import agents
from tests.support.compaction import WINDOW, FakeSummarizer, blocked_summary, fill
from tests.support.runtimes import events_until, run_command


def door(db: AsyncSessionDB, script: list[Any], **given: Any) -> runtime.Runtime:
    """A runtime whose agents are made anew for each conversation."""

    async def build(conversation_id: str) -> AIAgent:
        return agents.agent(db, ScriptedModel(script, window=WINDOW), session_id=conversation_id, **given)

    return runtime.Runtime(db, build)


# --- what summaries cost -------------------------------------------------------------------------------


async def test_usage_shows_summaries_on_a_line_of_their_own(db: AsyncSessionDB) -> None:
    await fill(db)
    async with door(db, ["ok"], summarizer=usage.asking(usage.record)) as run:
        (none,) = await run_command(run, "/usage")
        assert none == events.Answer("No tokens used yet.")
        await run_command(run, "/compact")
        await run.submit("talk", events.Submit("Hello"))
        (shown,) = await run_command(run, "/usage")
    assert isinstance(shown, events.Answer)
    assert shown.text.splitlines() == [
        "scripted/model: 1 tokens in (0 cached), 1 out, price unknown",
        "summaries: 1,000 tokens in (0 cached), 50 out, about $0.2500",
        f"total: about $0.2500. {commands.ESTIMATE}",
    ]


async def test_a_summary_a_turn_waited_for_is_the_turns_and_one_beside_it_is_not(db: AsyncSessionDB) -> None:
    for name, exchanges, expected in (("hard", 90, usage.COST), ("soft", 50, types.Usage())):
        await fill(db, exchanges, name)
        model = ScriptedModel(["ok", "ok"], window=WINDOW)
        agent = agents.agent(db, model, session_id=name, summarizer=usage.asking(usage.record))
        result = await agent.run_conversation("Hello")
        while len(await db.sessions(name)) == 1:
            await asyncio.sleep(0.01)
        assert result.usage == types.Usage(1, 1) + expected, name
        # Nothing of it is the next turn's.
        assert (await agent.run_conversation("Hello")).usage == types.Usage(1, 1), name
        await agent.close()
        assert (await agent_usage.read(db, name))[agent_usage.SUMMARIES] == usage.COST


async def test_a_summary_made_beside_a_turn_counts_against_its_cost_limit(db: AsyncSessionDB) -> None:
    await fill(db, exchanges=50)

    async def look(_: dict[str, Any]) -> types.Content:
        """Wait until the compaction beside the turn is over."""
        while agent.context_window.is_compacting or len(await db.sessions("talk")) == 1:
            await asyncio.sleep(0.01)
        return "seen"

    model = ScriptedModel([agents.calls("look"), "Never said."], window=WINDOW)
    limits = settings.Limits(cost=0.2)
    summarizer = usage.asking(usage.record)
    tool = agents.tool("look", look)
    agent = agents.agent(db, model, session_id="talk", tools=[tool], limits=limits, summarizer=summarizer)
    result = await agent.run_conversation("Hello")
    await agent.close()
    assert (result.exit_reason, result.usage.cost) == ("cost", None)
    assert "$0.25" in result.final_response


async def test_a_summary_a_turn_waited_for_counts_against_its_cost_limit(db: AsyncSessionDB) -> None:
    await fill(db, exchanges=90)
    model = ScriptedModel([agents.calls("look"), "Never said."], window=WINDOW)
    agent = agents.agent(
        db,
        model,
        session_id="talk",
        tools=[agents.says("look")],
        limits=settings.Limits(cost=0.2),
        summarizer=usage.asking(usage.record),
    )
    result = await agent.run_conversation("Hello")
    await agent.close()
    assert (result.exit_reason, len(model.requests)) == ("cost", 1)
    assert "$0.25" in result.final_response


# --- remarks -------------------------------------------------------------------------------------------


async def test_a_quiet_agent_makes_no_remarks(db: AsyncSessionDB) -> None:
    for quiet in (False, True):
        name = f"quiet-{quiet}"
        await fill(db, exchanges=90, name=name)
        model = ScriptedModel(["ok"], window=WINDOW)
        agent = agents.agent(db, model, session_id=name, summarizer=FakeSummarizer(), quiet=quiet)
        seen: list[events.AnyEvent] = []
        assert (await agent.run_conversation("Hello", emit=seen.append)).completed
        assert await db.try_acquire_compression_lock(name, "somebody")
        made = await agent.compress_context(force=True, emit=seen.append)
        assert made.outcome is compaction.Outcome.BUSY
        await agent.close()
        remarks = {kind for kind in agents.kinds(seen) if kind in ("Notice", "Compacted")}
        assert remarks == (set() if quiet else {"Notice", "Compacted"})
        assert {"TurnStarted", "MessageStored", "TextDelta", "TurnFinished"} <= set(agents.kinds(seen))
        assert len(await db.sessions(name)) > 1


async def test_whoever_compacts_by_hand_is_told_how_much_before_a_model_is_asked(db: AsyncSessionDB) -> None:
    await fill(db)
    stuck = agents.Stuck()
    async with door(db, [], summarizer=FakeSummarizer(lambda _: stuck())) as run:
        with run.subscribe("talk") as listening:
            command = asyncio.create_task(run.send("talk", events.Command("/compact")))
            (emitted,) = await events_until(listening, events.Notice)
            assert isinstance(emitted.event, events.Notice)
            assert emitted.event.text.startswith("Summarizing ")
            assert emitted.event.text.endswith(" tokens) …")
            await stuck.reached.wait()
            command.cancel()
            await asyncio.wait([command])
        assert (command.cancelled(), stuck.cancelled) == (True, True)
        assert len(await db.sessions("talk")) == 1
        assert await db.get_compression_lock_holder("talk") is None


async def test_the_number_told_is_the_number_that_goes(db: AsyncSessionDB) -> None:
    await fill(db)
    writer = FakeSummarizer()
    async with door(db, [], summarizer=writer) as run:
        (preview,) = await run_command(run, "/compact --preview")
        notice, made = await run_command(run, "/compact")
    assert isinstance(preview, events.Answer)
    assert isinstance(notice, events.Notice)
    assert isinstance(made, events.Compacted)
    going = len(writer.requests[0].messages)
    assert notice.text.startswith(f"Summarizing {going} messages (about ")
    assert preview.text.startswith(f"{going} messages ")
    assert notice.text.partition("(about ")[2].split()[0] == preview.text.partition("(about ")[2].split()[0]


async def test_a_person_who_compacts_while_one_is_under_way_is_told_so(db: AsyncSessionDB) -> None:
    await fill(db, exchanges=50)
    slow, reached, go = blocked_summary()
    async with door(db, ["ok"], summarizer=FakeSummarizer(slow)) as run:
        await run.submit("talk", events.Submit("Hello"))
        await reached.wait()
        with run.subscribe("talk") as listening:
            command = asyncio.create_task(run.send("talk", events.Command("/compact here 1")))
            (emitted,) = await events_until(listening, events.Notice)
            assert isinstance(emitted.event, events.Notice)
            assert "Another compaction is running" in emitted.event.text
            go.set()
            await command


class Watched(tokens.Meter):
    """A meter that knows who asked it."""

    def __init__(self) -> None:
        super().__init__()
        self.threads = set[int]()

    def of(self, message: types.Message) -> int:
        self.threads.add(threading.get_ident())
        return super().of(message)


@pytest.mark.parametrize("said", ["", "a word " * 500, None])
async def test_nothing_of_an_attempt_is_counted_on_the_loop(said: str | None, db: AsyncSessionDB) -> None:
    await fill(db)
    meter = Watched()
    writer = FakeSummarizer() if said is None else FakeSummarizer(lambda _: said)
    agent = agents.agent(db, ScriptedModel([], window=WINDOW), session_id="talk", summarizer=writer, meter=meter)
    made = await agent.compress_context()
    assert (made.outcome, made.model) == (compaction.Outcome.COMPACTED, "writer" if said is None else None)
    assert meter.threads
    assert threading.get_ident() not in meter.threads


async def test_a_context_that_was_just_read_is_not_counted_on_the_loop(
    monkeypatch: pytest.MonkeyPatch, db: AsyncSessionDB
) -> None:
    threads = set[int]()
    counts = tokens.estimate

    def estimate(text: str) -> int:
        if "pier" in text:
            threads.add(threading.get_ident())
        return counts(text)

    monkeypatch.setattr(tokens, "estimate", estimate)
    await fill(db, exchanges=10)
    agent = agents.agent(db, ScriptedModel(["ok"], window=WINDOW), session_id="talk")
    assert (await agent.run_conversation("Hello")).completed
    assert threads
    assert threading.get_ident() not in threads


# --- being left ----------------------------------------------------------------------------------------


async def test_hooks_are_told_once_when_a_conversation_is_left_for_a_new_one(db: AsyncSessionDB) -> None:
    await fill(db)
    closed: list[str] = []

    async def closing(session_id: str) -> None:
        closed.append(session_id)

    hooks = telling.Hooks(closing=(closing,))
    async with door(db, ["ok", "ok"], summarizer=FakeSummarizer(), hooks=hooks) as run:
        await run_command(run, "/new")
        assert closed == []  # nobody has worked on it
        await run_command(run, "/compact")
        head = (await db.head("talk")).id
        assert head != "talk"
        assert isinstance((await run_command(run, "/new"))[0], events.Moved)
        await run_command(run, "/new")
        assert closed == [head]
    assert closed == [head]


async def test_hooks_are_told_again_only_if_the_conversation_went_on(db: AsyncSessionDB) -> None:
    closed: list[str] = []

    async def closing(session_id: str) -> None:
        closed.append(session_id)

    async with door(db, ["ok"] * 3, hooks=telling.Hooks(closing=(closing,))) as run:
        await run.submit("talk", events.Submit("Hello"))
        await run_command(run, "/new")
        await run.submit("talk", events.Submit("I am back"))
        assert closed == ["talk"]
    assert closed == ["talk", "talk"]


async def test_a_conversation_left_in_the_middle_of_a_turn_is_told_of_when_the_turn_has_ended(
    db: AsyncSessionDB,
) -> None:
    closed: list[int] = []

    async def closing(session_id: str) -> None:
        closed.append((await db.head(session_id)).last_seq)

    reached, go = asyncio.Event(), asyncio.Event()

    async def wait(_: dict[str, Any]) -> str:
        reached.set()
        await go.wait()
        return "waited"

    script = [agents.calls("wait"), "Done."]
    tools = [agents.tool("wait", wait)]
    async with door(db, script, tools=tools, hooks=telling.Hooks(closing=(closing,))) as run:
        answered = run.submit("talk", events.Submit("Hello"))
        await reached.wait()
        assert isinstance((await run_command(run, "/new"))[0], events.Moved)
        assert closed == []
        go.set()
        assert (await answered).completed
        assert closed == [4]
    assert closed == [4]
