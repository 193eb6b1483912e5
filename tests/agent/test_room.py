"""Room in the window: beside the turns from the soft threshold, within a turn at the hard one, and on overflow."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest

from holdfast import AsyncSessionDB, content_parts, errors, events, types
from holdfast.model import ScriptedModel
from tests.faults import agent_processes
from tests.support import agents
from tests.support.compaction import WINDOW, FakeSummarizer, blocked_summary, fill


async def test_below_the_soft_threshold_nothing_happens(db: AsyncSessionDB) -> None:
    await fill(db, exchanges=5)
    writer = FakeSummarizer()
    agent = agents.agent(db, ScriptedModel(["ok"], window=WINDOW), session_id="talk", summarizer=writer)
    assert (await agent.run_conversation("Hello")).completed
    await agent.close()
    assert writer.requests == []


async def test_a_turn_does_not_wait_for_a_compaction_beside_it(db: AsyncSessionDB) -> None:
    await fill(db, exchanges=50)
    slow, reached, go = blocked_summary()
    model = ScriptedModel(["One.", "Two.", "Three."], window=WINDOW)
    agent = agents.agent(db, model, session_id="talk", summarizer=FakeSummarizer(slow))
    assert (await agent.run_conversation("a")).completed
    await reached.wait()
    assert (await agent.run_conversation("b")).completed
    seen: list[events.AnyEvent] = []
    go.set()
    while len(await db.sessions("talk")) == 1:
        await asyncio.sleep(0.01)
    result = await agent.run_conversation("c", emit=seen.append)
    assert result.completed
    assert result.session_id != "talk"
    assert len(model.requests[2].messages) < len(model.requests[1].messages)
    assert [each.content for each in model.requests[2].messages if each.role == "user"][-2:] == ["b", "c"]
    await agent.close()


async def test_at_the_hard_threshold_the_turn_waits_and_goes_on_with_less(db: AsyncSessionDB) -> None:
    await fill(db, exchanges=90)
    model = ScriptedModel(["ok"], window=WINDOW)
    agent = agents.agent(db, model, session_id="talk", summarizer=FakeSummarizer())
    result = await agent.run_conversation("Hello")
    assert result.completed
    assert agent.meter.count(agent.prompt.text, (), model.requests[0].messages) < WINDOW
    assert model.requests[0].messages[-1].content == "Hello"
    assert len(await db.sessions("talk")) == 2
    await agent.close()


@pytest.mark.parametrize("overflow", [errors.ContextOverflow(), RuntimeError("context length exceeded")])
async def test_an_overflow_is_compacted_away_and_asked_again_even_if_a_custom_adapter_raises_it(
    overflow: Exception, db: AsyncSessionDB
) -> None:
    # A window so much larger than the truth leaves nothing to cut by tokens: the view is shortened instead.
    await fill(db, exchanges=40)
    model = ScriptedModel([overflow, "Now it fits."], window=200_000)
    agent = agents.agent(db, model, session_id="talk", summarizer=FakeSummarizer())
    result = await agent.run_conversation("Hello")
    await agent.close()
    assert (result.completed, result.final_response) == (True, "Now it fits.")


async def test_an_overflow_that_nothing_helps_against_ends_after_a_few_calls(db: AsyncSessionDB) -> None:
    await fill(db, exchanges=40)
    model = ScriptedModel([RuntimeError("Maximum context exceeded.")] * 50, window=WINDOW)
    agent = agents.agent(db, model, session_id="talk", summarizer=FakeSummarizer())
    result = await agent.run_conversation("Hello")
    await agent.close()
    assert (result.exit_reason, result.failed) == ("overflow", True)
    assert "Type /compact" in (result.error or "")
    assert len(model.requests) <= 6


async def test_after_an_undo_the_automatic_one_waits_for_the_hard_threshold(db: AsyncSessionDB) -> None:
    await fill(db, exchanges=50)
    writer = FakeSummarizer()
    agent = agents.agent(db, ScriptedModel(["ok"] * 5, window=WINDOW), session_id="talk", summarizer=writer)
    await agent.compress_context(force=True)
    await db.undo_compaction("talk")
    await agent.run_conversation("Hello")
    await agent.close()
    assert len(writer.requests) == 1


async def test_a_pause_after_failures_does_not_stop_the_conversation(db: AsyncSessionDB) -> None:
    await fill(db, exchanges=90)  # short messages, beyond the hard threshold
    version, _ = await db.budget("talk")
    assert await db.update_budget("talk", version, {"failures": 3, "cool_until": time.time() + 500})
    writer = FakeSummarizer()
    model = ScriptedModel(["ok"] * 3, window=WINDOW)
    agent = agents.agent(db, model, session_id="talk", summarizer=writer)
    for number in range(3):
        assert (await agent.run_conversation(f"Go on {number}")).completed
    await agent.close()
    assert writer.requests == []  # the pause holds for models
    assert all(agent.meter.count(agent.prompt.text, (), each.messages) < WINDOW for each in model.requests)


async def test_a_large_fixed_floor_does_not_keep_a_conversation_from_being_compacted(db: AsyncSessionDB) -> None:
    window = 16_000
    tools = [agents.says(f"tool_{number}") for number in range(12)]
    wordy = [
        msgspec.structs.replace(tool, spec=msgspec.structs.replace(tool.spec, description="It does much. " * 170))
        for tool in tools
    ]
    model = ScriptedModel(["The boats stay in. " * 25] * 60, window=window)
    agent = agents.agent(db, model, session_id="talk", tools=wordy, summarizer=FakeSummarizer())
    share = agent.meter.count("", agent.tools.specs, ()) / window
    assert 0.4 < share < 0.6
    for number in range(60):
        result = await agent.run_conversation(f"What about pier {number}? " + "It is windy there. " * 25)
        assert result.completed, (number, result.error)
        used = agent.meter.count(agent.prompt.text, agent.tools.specs, model.requests[-1].messages)
        assert used < window, number
    while agent.context_window.is_compacting:  # turns as short as these may be over before it is
        await asyncio.sleep(0.01)
    await agent.close()
    assert len(await db.sessions("talk")) >= 2


async def test_a_turn_that_waited_for_the_one_beside_it_sees_the_summary(db: AsyncSessionDB) -> None:
    await fill(db, exchanges=50)
    slow, reached, go = blocked_summary()
    model = ScriptedModel(["ok"] * 3, window=WINDOW)
    agent = agents.agent(db, model, session_id="talk", summarizer=FakeSummarizer(slow))
    await agent.run_conversation("one")
    await reached.wait()
    long = "The tide is coming in now, and nobody knows why. " * 200
    turn = asyncio.create_task(agent.run_conversation(long))
    await asyncio.sleep(0.05)
    assert not turn.done()
    go.set()
    assert (await turn).completed
    await agent.close()
    seen = model.requests[-1].messages
    assert any(each.uid.startswith("summary:") for each in seen)
    assert agent.meter.count(agent.prompt.text, (), seen) < WINDOW


async def test_who_looks_at_the_view_beside_a_turn_does_not_make_it_lose_a_message(db: AsyncSessionDB) -> None:
    await fill(db, exchanges=3)
    works, read, release = db.context, asyncio.Event(), asyncio.Event()

    async def look(_: dict[str, Any]) -> str:
        async def slowly(*given: Any) -> Any:
            found = await works(*given)
            read.set()
            await release.wait()
            return found

        agent.context_cache.invalidate()
        db.context = slowly  # type: ignore[method-assign,assignment]
        looking.append(asyncio.create_task(agent.context_tokens()))
        await read.wait()
        db.context = works  # type: ignore[method-assign]
        asyncio.get_running_loop().call_later(0.05, release.set)
        return "seen"

    looking: list[asyncio.Task[int]] = []
    model = ScriptedModel([agents.calls("look"), "Done."], window=WINDOW)
    agent = agents.agent(db, model, session_id="talk", tools=[agents.tool("look", look)])
    assert (await agent.run_conversation("Look")).completed
    await looking[0]
    assert agent_processes.invalid(model.requests[1].messages) == []
    assert ("tool", "seen") in agents.shape(model.requests[1].messages)
    assert agent_processes.invalid(await agent.context_cache.messages()) == []


async def test_one_shot_agents_begin_nothing_beside_a_turn(db: AsyncSessionDB) -> None:
    await fill(db, exchanges=50)
    writer = FakeSummarizer()
    model = ScriptedModel(["ok"], window=WINDOW)
    agent = agents.agent(db, model, session_id="talk", summarizer=writer, background=False)
    assert (await agent.run_conversation("Hello")).completed
    assert not agent.in_use
    await agent.close()
    assert (writer.requests, await db.budget("talk")) == ([], (0, {}))


async def test_closing_stops_what_is_made_beside_the_turns_and_frees_the_lock(db: AsyncSessionDB) -> None:
    await fill(db, exchanges=50)
    stuck = agents.Stuck()
    model = ScriptedModel(["ok"], window=WINDOW)
    agent = agents.agent(db, model, session_id="talk", summarizer=FakeSummarizer(lambda _: stuck()))
    await agent.run_conversation("Hello")
    await stuck.reached.wait()
    assert agent.in_use
    await agent.close()
    assert stuck.cancelled
    assert not agent.in_use
    assert await db.get_compression_lock_holder("talk") is None
    assert len(await db.sessions("talk")) == 1


async def test_at_the_hard_threshold_a_compaction_elsewhere_is_waited_for_and_used(db: AsyncSessionDB) -> None:
    await fill(db, exchanges=90)
    lease = await db.acquire_lease("talk", "compact", "elsewhere")
    writer, seen = FakeSummarizer(), list[events.AnyEvent]()
    model = ScriptedModel(["ok"], window=WINDOW)
    agent = agents.agent(db, model, session_id="talk", summarizer=writer)
    turn = asyncio.create_task(agent.run_conversation("Hello", emit=seen.append))
    while not any(isinstance(event, events.Notice) for event in seen):
        await asyncio.sleep(0.01)
    assert model.requests == []
    await db.commit_compaction(lease, summary="What they wrote.", cut_seq=170, child_id="theirs")
    result = await turn
    await agent.close()
    assert (result.completed, result.session_id) == (True, "theirs")
    assert writer.requests == []
    assert agents.shape(model.requests[0].messages)[0] == ("user", "What they wrote.")
    assert sum(isinstance(event, events.Notice) for event in seen) == 1


async def test_old_tool_outputs_are_shortened_before_anybody_waits(db: AsyncSessionDB) -> None:
    await fill(db, exchanges=3)
    for number in range(4):
        call = types.ToolCall(f"c{number}", "look", "{}")
        await db.append_messages(
            "talk",
            [
                types.NewMessage(role="user", content=f"Look {number}."),
                types.NewMessage(role="assistant", tool_calls=(call,)),
                types.NewMessage(role="tool", tool_call_id=call.id, content="a line of the output\n" * 400),
                types.NewMessage(role="assistant", content="Seen."),
            ],
        )
    stuck = agents.Stuck()
    writer = FakeSummarizer(lambda _: stuck())
    model = ScriptedModel(["ok"], window=WINDOW)
    agent = agents.agent(db, model, session_id="talk", summarizer=writer)
    assert (await agent.run_conversation("And now?")).completed
    shown = model.requests[0].messages
    assert agent_processes.invalid(shown) == []
    assert any("characters left out; recall message" in str(each.content) for each in shown)
    assert agent.meter.count(agent.prompt.text, (), shown) < WINDOW
    await stuck.reached.wait()  # beside it, a summary is being made all the same
    _, budget = await db.budget("talk")
    assert budget["begun"]
    await agent.close()


async def test_a_message_larger_than_the_window_is_reported_with_what_was_sent(db: AsyncSessionDB) -> None:
    model, seen = ScriptedModel([agents.calls("look"), "ok", "ok"], window=WINDOW), list[events.AnyEvent]()
    agent = agents.agent(db, model, session_id="talk", summarizer=[], tools=[agents.says("look")])
    pasted = "The quick brown fox jumps over the lazy dog. " * 5_267
    result = await agent.run_conversation(pasted, emit=seen.append)
    assert result.completed
    assert result.truncated is not None
    assert (result.truncated.characters, result.truncated.images) == (len(pasted), 0)
    first, last = (len(content_parts.text(request.messages[0].content)) for request in model.requests)
    assert result.truncated.sent == last < len(pasted) / 10
    (notice,) = (each for each in seen if isinstance(each, events.Notice) and "of your message" in each.text)
    assert f"{first:,} of the {len(pasted):,} characters" in notice.text
    assert (notice.level, notice.to_chats) == ("warning", True)
    assert 0 < await agent.context_tokens() <= WINDOW
    again = await agent.run_conversation("And now?", emit=seen.append)
    assert again.truncated is None
    await agent.close()


async def test_shortened_older_messages_are_reported_once(db: AsyncSessionDB) -> None:
    await db.create_session("talk", source="test")
    for number in range(6):
        await db.append_message("talk", role="assistant" if number % 2 else "user", content="It is windy. " * 400)
    seen = list[events.AnyEvent]()
    model = ScriptedModel([agents.calls("look"), "ok"], window=WINDOW)
    agent = agents.agent(db, model, session_id="talk", tools=[agents.says("look")], background=False)
    assert (await agent.run_conversation("Hello", emit=seen.append)).truncated is None
    told = [each.text for each in seen if isinstance(each, events.Notice)]
    assert [text for text in told if "older message" in text] == told[:1] != []
    await agent.close()


async def test_what_one_turn_learnt_of_a_window_is_not_held_against_the_next(db: AsyncSessionDB) -> None:
    await fill(db, exchanges=10)
    model = ScriptedModel([errors.ContextOverflow()] * 5 + ["ok"], window=200_000)
    agent = agents.agent(db, model, session_id="talk", summarizer=FakeSummarizer(lambda _: 1 // 0))
    await agent.run_conversation("one")
    asked = len(model.requests)
    while (await agent.run_conversation("more")).exit_reason == "overflow":
        assert len(model.requests) < 20
    await agent.close()
    assert asked <= 5
    assert not any("characters left out" in str(each.content) for each in model.requests[-1].messages)
