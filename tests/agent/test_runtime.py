"""The runtime: commands in, the same events in the same order to every subscriber."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import AIAgent, AsyncSessionDB, content_parts, errors, events, types
from holdfast.agent import loop
from holdfast.compaction import hooks
from holdfast.model import ScriptedModel
from holdfast.runtime import runtime
from tests.support import agents, polling
from tests.support.runtimes import events_until, open_runtime, run_command


async def test_subscribers_get_the_same_events_and_messages_are_answered_in_order(db: AsyncSessionDB) -> None:
    async with open_runtime(db, ScriptedModel(["1", "2", "3", "4"])) as run:
        with run.subscribe("talk") as first, run.subscribe("talk") as second:
            waiting = [run.submit("talk", events.Submit(text)) for text in ("a", "b", "c")]
            assert run.queued("talk") == 3
            await run.send("talk", events.Submit("d"))
            one, two = [await events_until(stream, events.TurnFinished, 4) for stream in (first, second)]
            assert [(await each).final_response for each in waiting] == ["1", "2", "3"]
    assert one == two
    assert [each.number for each in one] == list(range(1, len(one) + 1))
    assert [each.role for each in await db.transcript("talk")] == ["user", "assistant"] * 4


@pytest.mark.parametrize("line", ["/new", "/quit", "/steer hello", "/resume talk", "/retry"])
async def test_navigation_events_go_to_the_sender_only(line: str, db: AsyncSessionDB) -> None:
    async with open_runtime(db) as run:
        await run.submit("talk", events.Submit("Hello"))
        with run.subscribe("talk") as other:
            own: list[events.AnyEvent] = []
            await run.send("talk", events.Command(line), own.append)
            other.put(None)
            received = [type(emitted.event) async for emitted in other]
    assert len(own) == 1
    assert isinstance(own[0], runtime.SenderEvent)
    assert type(own[0]) not in received


async def test_conversations_do_not_wait_for_each_other(db: AsyncSessionDB) -> None:
    slow = agents.Trickle("Hm")

    async def build(conversation_id: str) -> AIAgent:
        model = slow if conversation_id == "slow" else ScriptedModel(["Quick."])
        return agents.agent(db, model, session_id=conversation_id)

    async with runtime.Runtime(db, build) as run:
        waiting = run.submit("slow", events.Submit("Go"))
        await slow.stuck.reached.wait()
        assert (await run.submit("quick", events.Submit("Go"))).completed
        assert (waiting.done(), run.busy()) == (False, ["slow"])


async def test_unexpected_error_is_reported_and_not_fatal(caplog: pytest.LogCaptureFixture, db: AsyncSessionDB) -> None:
    async with open_runtime(db, ScriptedModel([ZeroDivisionError("a bug"), "Fine."])) as run:
        with run.subscribe("talk") as stream:
            broken, fine = (run.submit("talk", events.Submit(text)) for text in ("a", "b"))
            seen = await events_until(stream, events.TurnFinished)
        assert (await fine).completed
        with pytest.raises(ZeroDivisionError):
            await broken
        assert any(isinstance(each.event, events.Notice) and each.event.level == "error" for each in seen)
    assert await db.leases() == []
    assert "a turn of talk failed" in caplog.text


async def test_interrupt_stops_a_turn_at_any_point_before_it_has_begun(db: AsyncSessionDB) -> None:
    async with open_runtime(db) as run:
        for wait in range(6):
            answered, following = (run.submit("talk", events.Submit(text)) for text in ("Go", "Then"))
            for _ in range(wait):
                await asyncio.sleep(0)
            await run.send("talk", events.Interrupt())
            result = await answered
            assert (await following).completed
            assert result.interrupted or result.completed
            if wait < 2:
                assert (result.interrupted, result.messages) == (True, ())
        assert (await run.submit("talk", events.Submit("Now"))).completed


@pytest.mark.parametrize("waits", [False, True])
async def test_interrupt_without_a_turn_does_not_stop_the_next_one(waits: bool, db: AsyncSessionDB) -> None:
    async def is_delivered() -> bool:
        return not await db.mail.inbox_entries("talk")

    await db.create_session("talk", source="test")
    await db.mail.add_inbox_entry("talk", "one", "process 1 ended", kind="process")
    async with open_runtime(db) as run:
        with run.subscribe("talk"):
            while not run.running("talk"):
                await asyncio.sleep(0)  # the worker may end before a later look
            assert run.interrupt("talk")
            if waits:
                await polling.until_async(lambda: not run.running("talk"))
                run.check_inbox("talk")
                await polling.until_async(is_delivered)
            assert (await run.submit("talk", events.Submit("Now"))).completed


@pytest.mark.parametrize("uid", ["u1", "u" * 200])
async def test_steering_repeated_with_the_same_uid_is_stored_once(uid: str, db: AsyncSessionDB) -> None:
    async def look(_: object) -> types.Content:
        for _ in range(2):
            await run.send("talk", events.Steer("Quickly.", uid))
        return "ok"

    model = ScriptedModel([agents.calls("look"), "Here."])
    async with open_runtime(db, model, tools=[agents.tool("look", look)]) as run:
        with run.subscribe("talk") as stream:
            await run.send("talk", events.Steer("Look"))  # no turn runs: a message like any other
            await events_until(stream, events.TurnFinished)
    said = await db.transcript("talk")
    assert [each.uid for each in said if content_parts.text(each.content) == "Quickly."] == [loop.steering_uid(uid)]


async def test_session_id_resolves_to_its_conversation_and_an_unknown_one_to_itself(db: AsyncSessionDB) -> None:
    async with open_runtime(db) as run:
        await run.submit("talk", events.Submit("Hello"))
        await db.commit_compaction(await db.acquire_lease("talk", "compact"), summary="s", cut_seq=1, child_id="talk2")
        assert await run.resolve("talk2") == "talk"
        assert await run.resolve("unknown") == "unknown"
        await db.delete_conversation("talk")
        with pytest.raises(errors.ConversationDeleted):
            await run.resolve("talk2")


async def test_first_message_binds_its_route_unless_the_route_is_taken(db: AsyncSessionDB) -> None:
    await db.create_session("other", source="test")
    await db.bind_route("chat:3", "other", version=0)
    async with open_runtime(db) as run:
        await run.submit("talk", events.Submit("Hello", route="chat:1"))
        await run.submit("talk", events.Submit("Again", route="chat:2"))
        result = await run.submit("new", events.Submit("Hello", route="chat:3"))
    assert (await db.route("chat:1")).conversation_id == "talk"
    assert (await db.route("chat:2")).version == 0
    assert (result.failed, result.messages) == (True, ())
    with pytest.raises(errors.NoSuchSession):
        await db.snapshot("new")


async def test_close_interrupts_the_turn_drops_the_queue_and_ends_the_streams(db: AsyncSessionDB) -> None:
    slow = agents.Trickle("Half a ")
    run = open_runtime(db, slow)
    with run.subscribe("talk") as stream:
        waiting, queued = (run.submit("talk", events.Submit(text)) for text in ("Go", "Later"))
        await slow.stuck.reached.wait()
        await run.close()
        assert (await waiting).interrupted
        assert queued.cancelled()
        assert [emitted.event async for emitted in stream][-1] == events.TurnFinished(waiting.result())
    assert await db.leases() == []
    early = open_runtime(db, slow)
    answered = early.submit("talk", events.Submit("Go"))
    await asyncio.sleep(0)
    await early.close()
    assert answered.cancelled() or answered.result().interrupted


async def test_abandoning_drops_the_queue_and_settles_no_inbox_entry(db: AsyncSessionDB) -> None:
    model = agents.Trickle("Half")
    await db.create_session("talk", source="test")
    await db.mail.add_inbox_entry("talk", "n", "It ended.")
    async with open_runtime(db, model) as run:
        await run.deliver("talk")
        await model.stuck.reached.wait()
        waiting = run.submit("talk", events.Submit("Hello"))
        run.abandon()
        await run.wait_idle("talk")
        assert waiting.cancelled()
    assert len(await db.mail.inbox_entries("talk")) == 1
    assert [each.role for each in await db.transcript("talk")] == ["user"]


async def test_closing_hooks_run_when_a_conversation_is_left_and_again_if_it_went_on(db: AsyncSessionDB) -> None:
    closed: list[str] = []

    async def closing(session_id: str) -> None:
        closed.append(session_id)

    await db.create_session("talk", source="test")
    async with open_runtime(db, hooks=hooks.Hooks(closing=(closing,))) as run:
        await run_command(run, "/new")
        assert closed == []  # no agent has worked on it
        await run.submit("talk", events.Submit("Hello"))
        await run_command(run, "/new")
        await run_command(run, "/branch")
        assert closed == ["talk"]
        await run.submit("talk", events.Submit("I am back"))
        await db.commit_compaction(await db.acquire_lease("talk", "compact"), summary="s", cut_seq=1, child_id="talk2")
    assert closed == ["talk", "talk2"]
