"""A turn: what it stores, what it returns, and how it ends."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import pytest

from holdfast import AsyncSessionDB, content_parts, errors, events, fault_points, types
from holdfast.agent import loop, settings
from holdfast.model import ScriptedModel, base, tokens
from tests.support import agents as stage
from tests.support import conversations


async def test_a_turn_is_stored_and_returned_whole(db: AsyncSessionDB) -> None:
    seen: list[events.AnyEvent] = []
    agent = stage.agent(db, ScriptedModel(["Good day."]), session_id="talk")
    result = await agent.run_conversation("Hello", emit=seen.append)
    assert (result.final_response, result.completed, result.exit_reason) == ("Good day.", True, "completed")
    assert (result.api_calls, result.error, result.failed, result.partial) == (1, None, False, False)
    assert (result.session_id, result.conversation_id) == ("talk", "talk")
    assert [each.role for each in result.messages] == ["user", "assistant"]
    assert result.messages == tuple(await db.transcript("talk"))
    assert stage.kinds(seen) == [
        "MessageStored", "TurnStarted", "TextDelta", "MessageStored", "Titled", "TurnFinished",
    ]  # fmt: skip


async def test_opening_an_agent_leaves_nothing_behind(db: AsyncSessionDB) -> None:
    agent = stage.agent(db, ScriptedModel([]))
    await agent.close()
    assert await db.list_sessions(every=True) == []


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"folder": "/work/"}, "/work"),
        ({"folder": "here"}, os.path.abspath("here")),
        ({"folder": "/work", "keep_folder": False}, None),
        ({"folder": "/not text: \udcff"}, None),
        ({}, None),
    ],
)
async def test_a_conversation_belongs_to_the_folder_it_begins_in(
    given: dict[str, Any], kept: str | None, db: AsyncSessionDB
) -> None:
    await stage.agent(db, ScriptedModel(["Good day."]), session_id="talk", **given).run_conversation("Hello")
    assert (await db.conversation("talk")).folder == kept


async def test_calls_run_side_by_side_and_results_are_given_in_the_order_of_the_calls(db: AsyncSessionDB) -> None:
    second_is_done = asyncio.Event()

    async def first(_: dict[str, Any]) -> str:
        await second_is_done.wait()
        return "1"

    async def second(_: dict[str, Any]) -> str:
        second_is_done.set()
        return "2"

    model = ScriptedModel([stage.calls("first", "second"), "Both."])
    tools = [stage.tool("first", first), stage.tool("second", second)]
    agent = stage.agent(db, model, session_id="talk", tools=tools)
    result = await agent.run_conversation("Do both")
    assert result.completed
    assert stage.shape(model.requests[1].messages)[2:] == [("tool", "1"), ("tool", "2")]
    log = stage.shape(await db.transcript("talk"))
    assert log[2:] == [("tool", "2"), ("tool", "1"), ("assistant", "Both.")]
    assert list(await db.context("talk"))[:4] == list(model.requests[1].messages)
    assert agent.context_cache.loads == 1


async def test_what_is_not_safe_side_by_side_runs_alone_and_in_order(db: AsyncSessionDB) -> None:
    running: list[str] = []
    most = 0

    async def work(name: str) -> str:
        nonlocal most
        running.append(name)
        most = max(most, len(running))
        await asyncio.sleep(0)
        running.remove(name)
        return name

    tools = [
        stage.tool(name, lambda _, name=name: work(name), parallel=False)  # type: ignore[misc]
        for name in ("a", "b", "c")
    ]
    model = ScriptedModel([stage.calls("a", "b", "c"), "Done."])
    await stage.agent(db, model, session_id="talk", tools=tools).run_conversation("Go")
    assert most == 1
    assert [each.content for each in (await db.transcript("talk"))[2:5]] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (types.ToolCall("x", "nothing", "{}"), "There is no tool"),
        (types.ToolCall("x", "say", "{broken"), "not valid JSON"),
        (types.ToolCall("x", "say", "[1]"), "not a JSON object"),
        (types.ToolCall("x", "say", '{"other": 1}'), "Unknown"),
        (types.ToolCall("x", "boom", "{}"), "the tool failed (ZeroDivisionError)"),
        (types.ToolCall("x", "refuse", "{}"), "Not today."),
    ],
)
async def test_whatever_is_wrong_with_a_call_is_told_to_the_model(
    call: types.ToolCall, told: str, db: AsyncSessionDB
) -> None:
    async def boom(_: dict[str, Any]) -> str:
        return str(1 // 0)

    async def refuse(_: dict[str, Any]) -> str:
        raise errors.ToolFailed("Not today.")

    model = ScriptedModel([base.Reply(calls=(call,)), "I see."])
    tools = [stage.says("say"), stage.tool("boom", boom), stage.tool("refuse", refuse)]
    result = await stage.agent(db, model, tools=tools).run_conversation("Go")
    assert result.completed
    assert told in str(model.requests[1].messages[-1].content)


async def test_calls_without_ids_or_with_the_same_id_get_ids_of_their_own(db: AsyncSessionDB) -> None:
    same = tuple(types.ToolCall(name, "say", "{}") for name in ("", "x", "x"))
    model = ScriptedModel([base.Reply(calls=same), "Done."])
    await stage.agent(db, model, session_id="talk", tools=[stage.says("say")]).run_conversation("Go")
    log = await db.transcript("talk")
    ids = [call.id for call in log[1].tool_calls]
    assert len(set(ids)) == 3
    assert "" not in ids
    assert {each.tool_call_id for each in log[2:5]} == set(ids)


async def test_a_limit_of_steps_ends_with_a_plain_sentence(db: AsyncSessionDB) -> None:
    model = ScriptedModel([stage.calls("say")] * 9)
    agent = stage.agent(db, model, session_id="t", tools=[stage.says("say")], limits=settings.Limits(steps=3))
    result = await agent.run_conversation("Go")
    assert (result.exit_reason, result.api_calls, result.completed, result.failed) == ("steps", 3, False, False)
    assert "after 3 steps" in result.final_response
    last = (await db.transcript("t"))[-1]
    assert last.role == "assistant"
    assert "after 3 steps" in content_parts.text(last.content)


async def test_a_limit_of_cost_ends_with_a_plain_sentence(db: AsyncSessionDB) -> None:
    dear = base.Reply(calls=(types.ToolCall("x", "say", "{}"),), usage=types.Usage(1, 1, cost=0.6))
    agent = stage.agent(db, ScriptedModel([dear] * 9), tools=[stage.says("say")], limits=settings.Limits(cost=1.0))
    result = await agent.run_conversation("Go")
    assert (result.exit_reason, result.api_calls) == ("cost", 2)
    assert "$1.20" in result.final_response


async def test_a_limit_of_cost_ends_a_turn_whose_model_reports_no_cost(db: AsyncSessionDB) -> None:
    model = ScriptedModel([stage.calls("say")] * 9, name="some/model")
    agent = stage.agent(db, model, tools=[stage.says("say")], limits=settings.Limits(cost=1.0))
    result = await agent.run_conversation("Go")
    assert (result.exit_reason, result.api_calls) == ("cost", 1)
    assert "the price of some/model is not known" in result.final_response


async def test_a_cut_stream_keeps_what_was_said_and_marks_it(db: AsyncSessionDB) -> None:
    model = ScriptedModel([[base.ContentDelta("The answer is "), errors.ModelCut()], "Forty-two."])
    agent = stage.agent(db, model, session_id="talk")
    result = await agent.run_conversation("What is it?")
    assert (result.exit_reason, result.partial, result.failed, result.completed) == ("cut", True, True, False)
    assert result.final_response.startswith("The answer is ")
    assert result.error
    assert "broke off" in content_parts.text((await db.transcript("talk"))[-1].content)
    assert (await agent.run_conversation("Go on")).final_response == "Forty-two."


async def test_a_stream_that_just_ends_is_cut_and_its_half_calls_are_not_run(db: AsyncSessionDB) -> None:
    model = ScriptedModel([[base.ContentDelta("Let me see"), base.ToolCallDelta(0, "x", "say", '{"a": ')]])
    result = await stage.agent(db, model, session_id="talk", tools=[stage.says("say")]).run_conversation("Go")
    assert result.exit_reason == "cut"
    assert [each.role for each in await db.transcript("talk")] == ["user", "assistant"]


async def test_a_reply_that_ran_out_of_room_is_marked_and_none_of_its_calls_are_run(db: AsyncSessionDB) -> None:
    deltas = [base.ContentDelta("First"), base.ToolCallDelta(0, "x", "say", '{"a'), base.FinishDelta("length")]
    result = await stage.agent(db, ScriptedModel([deltas]), tools=[stage.says("say")]).run_conversation("Go")
    assert (result.completed, result.partial) == (True, True)
    assert "longest" in result.final_response


@pytest.mark.parametrize(
    ("error", "reason", "again"),
    [
        (errors.ContextOverflow(), "overflow", ""),
        (errors.KeyRefused(), "model", ""),
        (errors.ModelBusy(), "model", " Your message is stored: /retry asks again."),
        (errors.ModelServerError(), "model", " Your message is stored: /retry asks again."),
    ],
)
async def test_what_the_model_could_not_do_is_said_and_the_message_stays(
    error: errors.ModelError, reason: str, again: str, db: AsyncSessionDB
) -> None:
    agent = stage.agent(db, ScriptedModel([error, "Now."]), session_id="talk")
    result = await agent.run_conversation("Hello")
    assert (result.exit_reason, result.failed, result.error) == (reason, True, f"{error}{again}")
    assert [each.role for each in await db.transcript("talk")] == ["user"]
    assert (await agent.run_conversation("Again")).completed


async def test_an_interrupt_stops_the_model_and_keeps_what_was_said(db: AsyncSessionDB) -> None:
    model = stage.Trickle("Once upon", " a time")
    agent = stage.agent(db, model, session_id="talk")
    turn = asyncio.create_task(agent.run_conversation("A story"))
    await model.stuck.reached.wait()
    assert agent.interrupt()
    result = await turn
    assert (result.exit_reason, result.interrupted, result.failed) == ("interrupted", True, False)
    assert result.final_response.startswith("Once upon a time")
    assert model.stuck.cancelled
    assert await db.leases() == []
    assert not agent.interrupt()


async def test_an_interrupt_stops_tools_and_leaves_no_call_without_a_result(db: AsyncSessionDB) -> None:
    stuck = stage.Stuck()
    model = ScriptedModel([stage.calls("quick", "stuck"), "Fine."])
    agent = stage.agent(db, model, session_id="t", tools=[stage.says("quick"), stage.tool("stuck", stuck)])
    turn = asyncio.create_task(agent.run_conversation("Go"))
    await stuck.reached.wait()
    agent.interrupt()
    result = await turn
    assert result.interrupted
    assert stuck.cancelled
    results = {each.tool_call_id: each.content for each in await db.transcript("t") if each.role == "tool"}
    assert results == {"quick": "ok", "stuck": loop.NOT_RUN}
    assert (await agent.run_conversation("And now?")).completed


async def test_a_cancelled_turn_is_closed_like_an_interrupted_one(db: AsyncSessionDB) -> None:
    model = stage.Trickle("Half")
    turn = asyncio.create_task(stage.agent(db, model, session_id="t").run_conversation("Go"))
    await model.stuck.reached.wait()
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    assert await db.leases() == []
    assert "interrupted" in content_parts.text((await db.transcript("t"))[-1].content)


async def test_steering_reaches_the_model_at_its_next_step(db: AsyncSessionDB) -> None:
    async def look(_: dict[str, Any]) -> str:
        assert agent.steer("Only the first page.")
        return "page 1 of 90"

    model = ScriptedModel([stage.calls("look"), "Here it is."])
    agent = stage.agent(db, model, session_id="t", tools=[stage.tool("look", look)])
    assert not agent.steer("Nobody is there.")
    await agent.run_conversation("Read the book")
    assert stage.shape(model.requests[1].messages)[-1] == ("user", "Only the first page.")


async def test_the_same_uid_again_is_stored_once_and_answered_once(db: AsyncSessionDB) -> None:
    clock = conversations.Clock()
    model = ScriptedModel(["One."])
    agent = stage.agent(db, model, session_id="t", clock=clock)
    first = await agent.run_conversation("Hello", uid="u1")
    clock.advance(3 * conversations.DAY)  # the note of the day differs
    again = await stage.agent(db, model, session_id="t", clock=clock).run_conversation("Hello", uid="u1")
    assert (again.final_response, again.completed, again.api_calls) == (first.final_response, True, 0)
    assert len(await db.transcript("t")) == 2
    other = await agent.run_conversation("Something else", uid="u1")
    assert (other.exit_reason, other.failed) == ("failed", True)


async def test_a_message_stored_by_a_turn_that_died_is_answered_when_it_comes_again(db: AsyncSessionDB) -> None:
    model = ScriptedModel([errors.ModelUnreachable(), "Back again."])
    agent = stage.agent(db, model, session_id="t")
    assert not (await agent.run_conversation("Hello", uid="u1")).completed
    assert (await agent.run_conversation("Hello", uid="u1")).final_response == "Back again."
    assert [each.role for each in await db.transcript("t")] == ["user", "assistant"]


async def test_another_turn_is_waited_for_and_said_so(db: AsyncSessionDB) -> None:
    seen: list[events.AnyEvent] = []
    slow, quick = stage.Trickle("Hm"), ScriptedModel(["Yes."])
    first = stage.agent(db, slow, session_id="t")
    turn = asyncio.create_task(first.run_conversation("One"))
    await slow.stuck.reached.wait()
    second = asyncio.create_task(stage.agent(db, quick, session_id="t").run_conversation("Two", emit=seen.append))
    while not seen:
        await asyncio.sleep(0)
    assert stage.kinds(seen) == ["TurnQueued"]
    assert quick.requests == []
    first.interrupt()
    assert (await second).completed
    assert (await turn).interrupted
    assert [each.role for each in await db.transcript("t")] == ["user", "assistant", "user", "assistant"]


async def test_who_has_no_patience_is_refused_and_nothing_is_stored(db: AsyncSessionDB) -> None:
    await db.append_message("t", role="user", content="x", create=types.NewConversation(source="test"))
    await db.acquire_lease("t", "turn", "somebody")
    result = await stage.agent(db, ScriptedModel([]), session_id="t", patience=0.0).run_conversation("Hi")
    assert (result.exit_reason, result.failed, result.messages) == ("busy", True, ())
    assert "somebody" in str(result.error)
    assert len(await db.transcript("t")) == 1


async def test_a_turn_that_lost_its_lease_is_stopped_and_cannot_write() -> None:
    async with stage.store(clock=conversations.Clock()) as db:
        model = stage.Trickle("I am")
        agent = stage.agent(db, model, session_id="t", lease_ttl=0.3)
        turn = asyncio.create_task(agent.run_conversation("Go"))
        await model.stuck.reached.wait()
        (held,) = await db.leases()
        # The same holder asking again gets a new token: the old one is dead from now on.
        await db.acquire_lease("t", "turn", held.holder)
        result = await turn
        assert (result.exit_reason, result.failed) == ("lease_lost", True)
        assert model.stuck.cancelled
        assert [each.role for each in await db.transcript("t")] == ["user"]


@pytest.mark.parametrize("noticed_by", ["the next append", "the next renewal"])
async def test_turn_whose_lease_ran_out_on_a_full_disk_says_that_the_disk_is_full(
    noticed_by: str, monkeypatch: pytest.MonkeyPatch, db: AsyncSessionDB
) -> None:
    def fail(point: str) -> None:
        if point == "renew.begun":
            raise errors.StoreFull()

    async def wait(_: dict[str, Any]) -> str:
        monkeypatch.setattr(fault_points, "hook", fail)
        while (await db.leases())[0].state != "expired":
            await asyncio.sleep(0.01)
        if noticed_by == "the next renewal":
            monkeypatch.setattr(fault_points, "hook", None)
            await asyncio.Event().wait()
        return "done"

    model, tools = ScriptedModel([stage.calls("it"), "never"]), [stage.tool("it", wait)]
    result = await stage.agent(db, model, session_id="t", lease_ttl=0.3, tools=tools).run_conversation("Go")
    monkeypatch.setattr(fault_points, "hook", None)
    assert result.exit_reason == "store"
    assert "disk is full" in str(result.error)


async def test_a_lease_taken_over_between_two_words_refuses_the_next_append(db: AsyncSessionDB) -> None:
    async def overtaken(_: dict[str, Any]) -> str:
        (held,) = await db.leases()
        await db.acquire_lease("t", "turn", held.holder)
        return "too late"

    agent = stage.agent(
        db, ScriptedModel([stage.calls("it"), "never"]), session_id="t", tools=[stage.tool("it", overtaken)]
    )
    result = await agent.run_conversation("Go")
    assert result.exit_reason == "lease_lost"
    assert [each.role for each in await db.transcript("t")] == ["user", "assistant"]


async def test_a_turn_goes_on_over_a_compaction_and_ends_at_the_new_head(db: AsyncSessionDB) -> None:
    async def compacted(_: dict[str, Any]) -> str:
        work = await db.acquire_lease("t", "compact")
        await db.commit_compaction(work, summary="It was about tea.", cut_seq=2, child_id="t2")
        return "ok"

    model = ScriptedModel(["Tea.", stage.calls("it"), "Yes, tea."])
    agent = stage.agent(db, model, session_id="t", tools=[stage.tool("it", compacted)])
    await agent.run_conversation("What do we drink?")
    result = await agent.run_conversation("Sure?")
    assert (result.completed, result.session_id, agent.session_id) == (True, "t2", "t2")
    assert result.conversation_id == "t"
    seen = stage.shape(model.requests[-1].messages)
    assert seen[0] == ("user", "It was about tea.")
    assert seen[1:] == [("user", "Sure?"), ("assistant", "it"), ("tool", "ok")]


async def test_what_another_wrote_between_two_steps_is_seen_by_the_next(db: AsyncSessionDB) -> None:
    async def meddled(_: dict[str, Any]) -> str:
        await db.append_message("t", role="user", content="From elsewhere.")
        return "ok"

    model = ScriptedModel([stage.calls("it"), "I see."])
    await stage.agent(db, model, session_id="t", tools=[stage.tool("it", meddled)]).run_conversation("Go")
    assert ("user", "From elsewhere.") in stage.shape(model.requests[1].messages)


async def test_a_message_to_an_ended_conversation_resumes_it(db: AsyncSessionDB) -> None:
    agent = stage.agent(db, ScriptedModel(["One.", "Two."]), session_id="t")
    await agent.run_conversation("Hello")
    await db.end_conversation("t", "done")
    result = await agent.run_conversation("Still there?")
    assert result.completed
    assert result.session_id != "t"
    assert (await db.head("t")).live


async def test_a_deleted_conversation_is_not_begun_again(db: AsyncSessionDB) -> None:
    agent = stage.agent(db, ScriptedModel(["One."]), session_id="t")
    await agent.run_conversation("Hello")
    await db.delete_conversation("t")
    result = await agent.run_conversation("Hello?")
    assert (result.failed, result.exit_reason) == (True, "failed")
    assert "deleted" in str(result.error)


async def test_a_store_that_fails_is_said_and_nothing_hangs(db: AsyncSessionDB) -> None:
    def full(_: base.Request) -> str:
        def broken(*_: object, **__: object) -> object:
            raise errors.StoreFull()

        db.append_messages = broken  # type: ignore[method-assign,assignment]
        return "Fine."

    before = db.append_messages
    result = await stage.agent(db, ScriptedModel([full]), session_id="t").run_conversation("Hello")
    db.append_messages = before  # type: ignore[method-assign]
    assert (result.exit_reason, result.failed) == ("store", True)
    assert "full" in str(result.error)
    assert await db.leases() == []


async def test_usage_is_kept_with_the_replies_and_added_up_by_model(db: AsyncSessionDB) -> None:
    reply = base.Reply((content_parts.Text("x"),), usage=types.Usage(100, 20, 50, cost=0.25))
    agent = stage.agent(db, ScriptedModel([reply, reply], name="some/model"), session_id="t")
    await agent.run_conversation("One")
    result = await agent.run_conversation("Two")
    assert result.usage == types.Usage(100, 20, 50, cost=0.25)
    assert await db.usage("t") == {"some/model": types.Usage(200, 40, 100, cost=0.5)}
    assert (await db.transcript("t"))[-1].model == "some/model"


async def test_the_day_is_told_once_a_day_and_never_in_the_system_prompt(db: AsyncSessionDB) -> None:
    clock = conversations.Clock()
    model = ScriptedModel(["a", "b", "c"])
    agent = stage.agent(db, model, session_id="t", clock=clock)
    for text in ("One", "Two", "Three"):
        await agent.run_conversation(text)
        clock.advance(conversations.DAY if text == "Two" else 1)
    said = [each for each in await db.transcript("t") if each.role == "user"]
    assert [isinstance(each.content, list) for each in said] == [True, False, True]
    assert [content_parts.text(each.content) for each in said] == ["One", "Two", "Three"]
    day = time.strftime("%d %B %Y", time.localtime(conversations.NOON))
    assert day in content_parts.parse(said[0].content)[0].text  # type: ignore[union-attr]
    assert len({request.system for request in model.requests}) == 1


async def test_the_meter_learns_from_what_the_provider_reports(db: AsyncSessionDB) -> None:
    def doubled(request: base.Request) -> base.Reply:
        counted = tokens.Meter().count(request.system, request.tools, request.messages)
        return base.Reply((content_parts.Text("x"),), usage=types.Usage(2 * counted, 1))

    agent = stage.agent(db, ScriptedModel([doubled] * 12), session_id="t")
    before = await agent.context_tokens()
    for _ in range(12):
        await agent.run_conversation("A message of some words that are counted.")
    assert agent.meter.factor == pytest.approx(2.0, abs=0.1)
    assert await agent.context_tokens() > 2 * before


# --- what a reviewer found -----------------------------------------------------------------------------


async def test_what_is_said_during_the_last_answer_is_answered_too(db: AsyncSessionDB) -> None:
    def last(_: base.Request) -> str:
        assert agent.steer("One more thing.")
        return "Done."

    model = ScriptedModel([last, "That as well."])
    agent = stage.agent(db, model, session_id="t")
    result = await agent.run_conversation("Go")
    assert (result.final_response, result.api_calls) == ("That as well.", 2)
    assert not agent.steer("Nobody listens any more.")
    assert [each.role for each in await db.transcript("t")] == ["user", "assistant", "user", "assistant"]


async def test_what_is_said_into_a_turn_that_is_interrupted_is_stored(db: AsyncSessionDB) -> None:
    model = stage.Trickle("Half")
    agent = stage.agent(db, model, session_id="t")
    turn = asyncio.create_task(agent.run_conversation("Go"))
    await model.stuck.reached.wait()
    assert agent.steer("Listen.")
    agent.interrupt()
    await turn
    assert [content_parts.text(each.content) for each in await db.transcript("t")][-1] == "Listen."


async def test_a_steered_turn_is_answered_once_however_often_its_message_comes(db: AsyncSessionDB) -> None:
    async def look(_: dict[str, Any]) -> str:
        agent.steer("Quickly.")
        return "ok"

    model = ScriptedModel([stage.calls("look"), "Here."])
    agent = stage.agent(db, model, session_id="t", tools=[stage.tool("look", look)])
    await agent.run_conversation("Look", uid="u")
    again = await agent.run_conversation("Look", uid="u")
    assert (again.final_response, again.api_calls, again.completed) == ("Here.", 0, True)


async def test_half_an_answer_is_never_given_as_a_whole_one(db: AsyncSessionDB) -> None:
    model = ScriptedModel([[base.ContentDelta("Half an ans"), errors.ModelCut()]])
    agent = stage.agent(db, model, session_id="t")
    await agent.run_conversation("Go", uid="u")
    again = await agent.run_conversation("Go", uid="u")
    assert (again.completed, again.partial, again.exit_reason, again.api_calls) == (False, True, "cut", 0)


async def test_agents_that_begin_one_conversation_at_once_take_turns_from_its_first_message_on(
    db: AsyncSessionDB,
) -> None:
    def echo(request: base.Request) -> str:
        assert request.messages[-1].role == "user"
        return f"re {content_parts.text(request.messages[-1].content)}"

    for round_ in range(20):
        agents = [stage.agent(db, ScriptedModel([echo]), session_id=f"t{round_}") for _ in range(3)]
        results = await asyncio.gather(*(one.run_conversation(f"{n}") for n, one in enumerate(agents)))
        for number, result in enumerate(results):
            assert result.final_response == f"re {number}", round_
            assert [content_parts.text(each.content) for each in result.messages] == [f"{number}", f"re {number}"]
        log = await db.transcript(f"t{round_}")
        assert [each.role for each in log] == ["user", "assistant"] * 3


async def test_a_turn_cancelled_at_any_moment_keeps_no_lease(db: AsyncSessionDB) -> None:
    await stage.agent(db, ScriptedModel(["a"]), session_id="t").run_conversation("Hello")
    for steps_ in range(40):
        agent = stage.agent(db, ScriptedModel(["a"]), session_id="t" if steps_ % 2 else f"new{steps_}")
        turn = asyncio.create_task(agent.run_conversation(f"m{steps_}"))
        for _ in range(steps_):
            await asyncio.sleep(0)
        turn.cancel()
        await asyncio.wait([turn])
        assert await db.leases() == [], steps_


@pytest.mark.parametrize(
    ("output", "told"),
    [
        (None, "NoneType"),
        (3, "int"),
        ({"a": 1}, "dict"),
        (b"x", "bytes"),
        (["x"], "list"),
        ([{"type": "text", "text": object()}], "cannot be stored"),
        ("half \ud800", "half ?"),
        ([{"type": "text", "text": "x" * 200_000}], "characters left out"),
        (asyncio.CancelledError(), "cancelled itself"),
    ],
)
async def test_whatever_a_tool_returns_the_turn_goes_on(output: Any, told: str, db: AsyncSessionDB) -> None:
    async def odd(_: dict[str, Any]) -> Any:
        if isinstance(output, BaseException):
            raise output
        return output

    model = ScriptedModel([stage.calls("odd", "fine"), "I see."])
    agent = stage.agent(db, model, session_id="t", tools=[stage.tool("odd", odd), stage.says("fine")])
    result = await agent.run_conversation("Go")
    assert (result.completed, result.final_response) == (True, "I see.")
    assert told in str(model.requests[1].messages[-2].content)
    assert len(str(model.requests[1].messages[-2].content)) < 40_000


async def test_a_limit_of_nothing_is_reached_at_once(db: AsyncSessionDB) -> None:
    result = await stage.agent(db, ScriptedModel(["a"]), limits=settings.Limits(cost=0)).run_conversation("Go")
    assert (result.exit_reason, result.api_calls) == ("cost", 0)


async def test_a_blank_reply_counts_what_it_used_and_says_nothing_older(db: AsyncSessionDB) -> None:
    looking = base.Reply((content_parts.Text("Let me look."),), (types.ToolCall("x", "say", "{}"),), "calls")
    blank = base.Reply(usage=types.Usage(700, 3))
    agent = stage.agent(db, ScriptedModel([looking, blank]), session_id="t", tools=[stage.says("say")])
    result = await agent.run_conversation("Go")
    assert (result.completed, result.final_response) == (True, "")
    assert (await db.usage("t"))["scripted/model"].input == 700


async def test_a_broken_off_thought_counts_what_it_used(db: AsyncSessionDB) -> None:
    deltas = [base.ThinkingDelta("Hm"), base.UsageDelta(types.Usage(500, 2)), errors.ModelCut()]
    result = await stage.agent(db, ScriptedModel([deltas]), session_id="t").run_conversation("Go")
    assert (result.exit_reason, result.partial, result.usage.input) == ("cut", False, 500)
    assert (await db.usage("t"))["scripted/model"].input == 500
