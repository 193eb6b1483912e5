"""A turn: its log entries, its result and its end."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from holdfast import AsyncSessionDB, content_parts, errors, events, types
from holdfast.agent import loop, settings
from holdfast.model import ScriptedModel, base
from holdfast.tools import base as tools
from tests.support import agents, conversations, polling


async def roles(db: AsyncSessionDB) -> list[str]:
    return [each.role for each in await db.transcript("t")]


async def last_text(db: AsyncSessionDB) -> str:
    return content_parts.text((await db.transcript("t"))[-1].content)


async def run_turn(
    db: AsyncSessionDB, script: list[Any], *used: tools.Tool, **given: Any
) -> tuple[events.TurnResult, list[base.Request]]:
    """Run a turn of a scripted model with these tools; return its result and the requests to the model."""
    agent = agents.agent(db, model := ScriptedModel(script), session_id="t", tools=used, **given)
    return await agent.run_conversation("Go"), model.requests


async def test_turn_is_stored_and_returned(db: AsyncSessionDB) -> None:
    seen: list[events.AnyEvent] = []
    agent = agents.agent(db, ScriptedModel(["Good day."]), session_id="t")
    assert (await db.list_sessions(every=True), await agent.context_tokens() > 0) == ([], True)
    result = await agent.run_conversation("Hello", emit=seen.append)
    assert (result.final_response, result.completed, result.exit_reason) == ("Good day.", True, "completed")
    assert (result.api_calls, result.error, result.failed, result.partial) == (1, None, False, False)
    assert (result.session_id, result.conversation_id) == ("t", "t")
    assert [each.role for each in result.messages] == ["user", "assistant"]
    assert result.messages == tuple(await db.transcript("t"))
    assert agents.kinds(seen) == [
        "MessageStored", "TurnStarted", "TextDelta", "MessageStored", "Titled", "TurnFinished",
    ]  # fmt: skip


async def test_parallel_calls_overlap_and_results_are_in_call_order(db: AsyncSessionDB) -> None:
    second_is_done = asyncio.Event()

    async def first(_: dict[str, Any]) -> str:
        await second_is_done.wait()
        return "1"

    async def second(_: dict[str, Any]) -> str:
        second_is_done.set()
        return "2"

    model = ScriptedModel([agents.calls("first", "second"), "Both."])
    agent = agents.agent(db, model, session_id="t", tools=[agents.tool("first", first), agents.tool("second", second)])
    assert (await agent.run_conversation("Do both")).completed
    assert agents.shape(model.requests[1].messages)[2:] == [("tool", "1"), ("tool", "2")]
    assert agents.shape(await db.transcript("t"))[2:] == [("tool", "2"), ("tool", "1"), ("assistant", "Both.")]
    assert list(await db.context("t"))[:4] == list(model.requests[1].messages)
    assert agent.context_cache.loads == 1


async def test_sequential_calls_never_overlap(db: AsyncSessionDB) -> None:
    running: list[str] = []
    overlaps: list[int] = []

    async def work(name: str) -> str:
        running.append(name)
        overlaps.append(len(running))
        await asyncio.sleep(0)
        running.remove(name)
        return name

    tools = [
        agents.tool(name, lambda _, name=name: work(name), parallel=name == "look")  # type: ignore[misc]
        for name in ("look", "a", "b", "c")
    ]
    await run_turn(db, [agents.calls("look", "a", "b", "c"), "Done."], *tools)
    assert overlaps == [1, 1, 1, 1]
    assert [each.content for each in (await db.transcript("t"))[2:6]] == ["look", "a", "b", "c"]


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("nothing", "{}", "There is no tool"),
        ("say", "{broken", "not valid JSON"),
        ("say", "[1]", "not a JSON object"),
        ("say", '{"other": 1}', "Unknown"),
    ],
)
async def test_invalid_call_is_reported_to_model(name: str, arguments: str, reason: str, db: AsyncSessionDB) -> None:
    script = [base.Reply(calls=(types.ToolCall("x", name, arguments),)), "I see."]
    result, requests = await run_turn(db, script, agents.says("say"))
    assert result.completed
    assert reason in str(requests[1].messages[-1].content)


@pytest.mark.parametrize(
    ("output", "reported"),
    [
        (None, "NoneType"),
        ([{"type": "text", "text": object()}], "cannot be stored"),
        ("half \ud800", "half ?"),
        ([{"type": "text", "text": "x" * 200_000}], "characters left out"),
        (asyncio.CancelledError(), "cancelled itself"),
        (ZeroDivisionError(), "the tool failed (ZeroDivisionError)"),
        (errors.ToolFailed("Not today."), "Not today."),
    ],
)
async def test_turn_continues_after_invalid_output_or_failure(output: Any, reported: str, db: AsyncSessionDB) -> None:
    async def odd(_: dict[str, Any]) -> Any:
        if isinstance(output, BaseException):
            raise output
        return output

    script = [agents.calls("odd", "fine"), "I see."]
    result, requests = await run_turn(db, script, agents.tool("odd", odd), agents.says("fine"))
    assert (result.completed, result.final_response) == (True, "I see.")
    found = str(requests[1].messages[-2].content)
    assert (reported in found, len(found) < 40_000) == (True, True)


async def test_calls_with_missing_or_equal_ids_get_unique_ids(db: AsyncSessionDB) -> None:
    same = tuple(types.ToolCall(name, "say", "{}") for name in ("", "x", "x"))
    await run_turn(db, [base.Reply(calls=same), "Done."], agents.says("say"))
    log = await db.transcript("t")
    ids = {call.id for call in log[1].tool_calls}
    assert (len(ids), "" in ids) == (3, False)
    assert {each.tool_call_id for each in log[2:5]} == ids


@pytest.mark.parametrize(
    ("cost", "limits", "reason", "requests", "sentence"),
    [
        (None, settings.Limits(steps=3), "steps", 3, "after 3 steps"),
        (0.6, settings.Limits(cost=1.0), "cost", 2, "$1.20"),
        (None, settings.Limits(cost=1.0), "cost", 1, "the price of scripted/model is not known"),
        (None, settings.Limits(cost=0), "cost", 0, ""),
    ],
    ids=["steps", "cost", "unknown price", "no budget"],
)
async def test_limit_ends_the_turn_with_a_sentence(
    cost: float | None, limits: settings.Limits, reason: str, requests: int, sentence: str, db: AsyncSessionDB
) -> None:
    reply = base.Reply(calls=(types.ToolCall("x", "say", "{}"),), usage=types.Usage(1, 1, cost=cost))
    result, _ = await run_turn(db, [reply] * 9, agents.says("say"), limits=limits)
    assert (result.exit_reason, result.api_calls, result.completed, result.failed) == (reason, requests, False, False)
    assert sentence in result.final_response
    assert sentence in await last_text(db)


async def test_cut_reply_keeps_its_text_and_is_never_returned_as_complete(db: AsyncSessionDB) -> None:
    model = ScriptedModel([[base.ContentDelta("The answer is "), errors.ModelCut()], "Forty-two."])
    agent = agents.agent(db, model, session_id="t")
    for requests in (1, 0):  # the second time the message is a duplicate
        result = await agent.run_conversation("What is it?", uid="u")
        assert (result.exit_reason, result.partial, result.completed) == ("cut", True, False)
        assert result.final_response.startswith("The answer is ")
        assert result.api_calls == requests
    assert "broke off" in await last_text(db)
    assert (await agent.run_conversation("Go on")).final_response == "Forty-two."


@pytest.mark.parametrize(
    ("finish", "reason", "completed"), [([], "cut", False), ([base.FinishDelta("length")], "completed", True)]
)
async def test_unfinished_calls_are_not_run(
    finish: list[base.Delta], reason: str, completed: bool, db: AsyncSessionDB
) -> None:
    deltas = [base.ContentDelta("First"), base.ToolCallDelta(0, "x", "say", '{"a'), *finish]
    result, _ = await run_turn(db, [deltas], agents.says("say"))
    assert (result.exit_reason, result.completed, result.partial) == (reason, completed, True)
    assert ("longest" in result.final_response) is completed
    assert await roles(db) == ["user", "assistant"]


@pytest.mark.parametrize(("said", "partial"), [(base.ContentDelta("Well"), True), (base.ThinkingDelta("Hm"), False)])
async def test_usage_of_a_cut_reply_is_counted(said: base.Delta, partial: bool, db: AsyncSessionDB) -> None:
    first, cut = agents.calls("look"), [said, base.UsageDelta(types.Usage(700, 3)), errors.ModelCut()]
    result, _ = await run_turn(db, [first, cut], agents.says("look"))
    assert (result.exit_reason, result.partial) == ("cut", partial)
    assert result.usage == first.usage + types.Usage(700, 3)
    used = (await db.usage("t"))["scripted/model"]
    assert (used.input, used.output) == (result.usage.input, result.usage.output)


async def test_blank_reply_counts_its_usage_and_repeats_no_older_text(db: AsyncSessionDB) -> None:
    looking = base.Reply((content_parts.Text("Let me look."),), (types.ToolCall("x", "say", "{}"),), "calls")
    blank = base.Reply(usage=types.Usage(700, 3))
    result, _ = await run_turn(db, [looking, blank], agents.says("say"))
    assert (result.completed, result.final_response) == (True, "")
    assert (await db.usage("t"))["scripted/model"].input == 700


@pytest.mark.parametrize(
    ("error", "reason", "advice"),
    [
        (errors.ContextOverflow(), "overflow", ""),
        (errors.KeyRefused(), "model", ""),
        (errors.ModelBusy(), "model", " Your message is stored: /retry asks again."),
    ],
)
async def test_model_error_is_final(error: errors.ModelError, reason: str, advice: str, db: AsyncSessionDB) -> None:
    agent = agents.agent(db, ScriptedModel([error, "Now."]), session_id="t")
    result = await agent.run_conversation("Hello")
    assert (result.exit_reason, result.failed, result.error) == (reason, True, f"{error}{advice}")
    assert await roles(db) == ["user"]
    assert (await agent.run_conversation("Again")).completed


async def test_call_that_cannot_be_stored_stops_the_others(db: AsyncSessionDB, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, cleaned_up = asyncio.Event(), list[bool]()

    async def slow(_: dict[str, Any]) -> str:
        reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(20):
                await asyncio.sleep(0)
            cleaned_up.append(True)
        return ""

    async def fill_disk(_: dict[str, Any]) -> str:
        await reached.wait()
        monkeypatch.setattr(db, "append_messages", agents.failing(errors.StoreFull()))
        return "done"

    used = [agents.tool("slow", slow), agents.tool("fill", fill_disk)]
    result, _ = await run_turn(db, [agents.calls("slow", "fill"), "ok"], *used)
    assert (result.exit_reason, result.failed, cleaned_up) == ("store", True, [True])
    assert "full" in str(result.error)
    assert await db.leases() == []


async def test_cancel_and_interrupt_stop_the_model_and_keep_text_and_steering(db: AsyncSessionDB) -> None:
    model = agents.Trickle("Once upon", " a time")
    agent = agents.agent(db, model, session_id="t")
    await polling.cancel(await polling.start(agent.run_conversation("A story"), model.stuck.reached))
    assert "interrupted" in await last_text(db)
    model.stuck.reached.clear()
    turn = await polling.start(agent.run_conversation("Another story"), model.stuck.reached)
    assert agent.steer("Listen.")
    assert agent.interrupt()
    result = await turn
    assert (result.exit_reason, result.interrupted, result.failed) == ("interrupted", True, False)
    assert result.final_response.startswith("Once upon a time")
    assert model.stuck.cancelled
    assert await last_text(db) == "Listen."
    assert await db.leases() == []
    assert not agent.interrupt()


async def test_interrupt_stops_tools_and_leaves_no_call_without_a_result(db: AsyncSessionDB) -> None:
    stuck = agents.Stuck()
    model = ScriptedModel([agents.calls("quick", "stuck"), "Fine."])
    agent = agents.agent(db, model, session_id="t", tools=[agents.says("quick"), agents.tool("stuck", stuck)])
    turn = await polling.start(agent.run_conversation("Go"), stuck.reached)
    agent.interrupt()
    assert (await turn).interrupted
    assert stuck.cancelled
    results = {each.tool_call_id: each.content for each in await db.transcript("t") if each.role == "tool"}
    assert results == {"quick": "ok", "stuck": loop.NOT_RUN}
    assert (await agent.run_conversation("And now?")).completed


async def test_turn_cancelled_at_any_point_keeps_no_lease(db: AsyncSessionDB) -> None:
    await agents.agent(db, ScriptedModel(["a"]), session_id="t").run_conversation("Hello")
    for steps in range(40):
        agent = agents.agent(db, ScriptedModel(["a"]), session_id="t" if steps % 2 else f"new{steps}")
        turn = asyncio.create_task(agent.run_conversation(f"m{steps}"))
        for _ in range(steps):
            await asyncio.sleep(0)
        turn.cancel()
        await asyncio.wait([turn])
        assert await db.leases() == [], steps


async def test_abandoned_turn_writes_nothing_and_another_agent_continues_it(db: AsyncSessionDB) -> None:
    stuck = agents.Stuck()
    one = agents.agent(db, ScriptedModel([agents.calls("wait")]), session_id="t", tools=[agents.tool("wait", stuck)])
    assert not one.abandon()
    turn = await polling.start(one.run_conversation("Go", uid="u"), stuck.reached)
    assert one.abandon()
    assert (await turn).interrupted
    assert await roles(db) == ["user", "assistant"]
    assert await db.leases() == []
    other = await agents.agent(db, ScriptedModel(["Done."]), session_id="t").run_conversation("Go", uid="u")
    assert (other.final_response, other.completed) == ("Done.", True)


async def test_steering_reaches_the_next_step_and_a_repeated_turn_is_not_answered_again(db: AsyncSessionDB) -> None:
    async def look(_: dict[str, Any]) -> str:
        assert agent.steer("Only the first page.")
        assert agent.steer("In French.")
        return "page 1 of 90"

    model = ScriptedModel([agents.calls("look"), "Here it is."])
    agent = agents.agent(db, model, session_id="t", tools=[agents.tool("look", look)])
    assert not agent.steer("No turn is running.")
    await agent.run_conversation("Read the book", uid="u")
    assert agents.shape(model.requests[1].messages)[-2:] == [("user", "Only the first page."), ("user", "In French.")]
    again = await agent.run_conversation("Read the book", uid="u")
    assert (again.final_response, again.api_calls, again.completed) == ("Here it is.", 0, True)


async def test_steering_during_the_last_answer_is_answered_too(db: AsyncSessionDB) -> None:
    def last(_: base.Request) -> str:
        assert agent.steer("One more thing.")
        return "Done."

    agent = agents.agent(db, ScriptedModel([last, "That as well."]), session_id="t")
    result = await agent.run_conversation("Go")
    assert (result.final_response, result.api_calls) == ("That as well.", 2)
    assert not agent.steer("The turn is over.")
    assert await roles(db) == ["user", "assistant", "user", "assistant"]


async def test_repeated_uid_is_stored_and_answered_once(db: AsyncSessionDB) -> None:
    clock, model = conversations.Clock(), ScriptedModel(["One."])
    agent = agents.agent(db, model, session_id="t", clock=clock)
    first = await agent.run_conversation("Hello", uid="u1")
    clock.advance(3 * conversations.DAY)  # the note of the day differs
    again = await agents.agent(db, model, session_id="t", clock=clock).run_conversation("Hello", uid="u1")
    assert (again.final_response, again.completed, again.api_calls) == (first.final_response, True, 0)
    assert len(await db.transcript("t")) == 2
    other = await agent.run_conversation("Something else", uid="u1")
    assert (other.exit_reason, other.failed) == ("failed", True)


async def test_repeated_message_of_a_failed_turn_is_answered(db: AsyncSessionDB) -> None:
    agent = agents.agent(db, ScriptedModel([errors.ModelUnreachable(), "Yes.", "Back again."]), session_id="t")
    assert not (await agent.run_conversation("Hello", uid="u1")).completed
    assert (await agent.run_conversation("Are you there?")).final_response == "Yes."
    assert (await agent.run_conversation("Hello", uid="u1")).final_response == "Back again."
    assert await roles(db) == ["user", "user", "assistant", "assistant"]


async def test_turn_continues_over_a_compaction_and_ends_at_the_new_head(db: AsyncSessionDB) -> None:
    async def compact(_: dict[str, Any]) -> str:
        lease = await db.acquire_lease("t", "compact")
        await db.commit_compaction(lease, summary="It was about tea.", cut_seq=2, child_id="t2")
        return "ok"

    model = ScriptedModel(["Tea.", agents.calls("it"), "Yes, tea."])
    agent = agents.agent(db, model, session_id="t", tools=[agents.tool("it", compact)])
    await agent.run_conversation("What do we drink?")
    result = await agent.run_conversation("Sure?")
    assert (result.completed, result.session_id, agent.session_id) == (True, "t2", "t2")
    assert result.conversation_id == "t"
    assert agents.shape(model.requests[-1].messages) == [
        ("user", "It was about tea."), ("user", "Sure?"), ("assistant", "it"), ("tool", "ok"),
    ]  # fmt: skip


async def test_message_of_another_writer_is_seen_by_the_next_step(db: AsyncSessionDB) -> None:
    async def append(_: dict[str, Any]) -> str:
        await db.append_message("t", role="user", content="From elsewhere.")
        return "ok"

    _, requests = await run_turn(db, [agents.calls("it"), "I see."], agents.tool("it", append))
    assert ("user", "From elsewhere.") in agents.shape(requests[1].messages)


async def test_date_is_noted_once_a_day_and_never_in_the_system_prompt(db: AsyncSessionDB) -> None:
    clock = conversations.Clock()
    model = ScriptedModel(["a", "b", "c"])
    agent = agents.agent(db, model, session_id="t", clock=clock)
    for text in ("One", "Two", "Three"):
        await agent.run_conversation(text)
        clock.advance(conversations.DAY if text == "Two" else 1)
    said = [each for each in await db.transcript("t") if each.role == "user"]
    assert [isinstance(each.content, list) for each in said] == [True, False, True]
    assert [content_parts.text(each.content) for each in said] == ["One", "Two", "Three"]
    day = time.strftime("%d %B %Y", time.localtime(conversations.NOON))
    assert day in content_parts.parse(said[0].content)[0].text  # type: ignore[union-attr]
    assert len({request.system for request in model.requests}) == 1
