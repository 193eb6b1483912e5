"""The one door: commands in, the same events in the same order to everybody who listens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from holdfast import AIAgent, AsyncSessionDB, errors, events
from holdfast.agent import commands
from holdfast.model import ScriptedModel
from holdfast.runtime import runtime
from tests.support import agents
from tests.support.compaction import WINDOW, FakeSummarizer, fill
from tests.support.runtimes import events_until, open_runtime, run_command


async def test_many_listeners_see_the_same_events_in_order(db: AsyncSessionDB) -> None:
    async with open_runtime(db, ScriptedModel(["One.", "Two."])) as run:
        with run.subscribe("talk") as first, run.subscribe("talk") as second:
            await run.send("talk", events.Submit("a"))
            await run.send("talk", events.Submit("b"))
            one = await events_until(first, events.TurnFinished, 2)
            two = await events_until(second, events.TurnFinished, 2)
    assert one == two
    assert [each.number for each in one] == list(range(1, len(one) + 1))


@pytest.mark.parametrize("line", ["/new", "/quit", "/steer hello", "/resume talk", "/retry", "/branch"])
async def test_where_to_go_and_what_to_say_is_told_to_whoever_asked_and_to_nobody_else(
    line: str, db: AsyncSessionDB
) -> None:
    async with open_runtime(db, ScriptedModel(["a"])) as run:
        await run.submit("talk", events.Submit("Hello"))
        with run.subscribe("talk") as other:
            own: list[events.AnyEvent] = []
            await run.send("talk", events.Command(line), own.append)
            other.put(None)
            heard = [type(emitted.event) async for emitted in other]
    assert len(own) == 1
    assert isinstance(own[0], runtime.SenderEvent)
    assert type(own[0]) not in heard


async def test_messages_are_answered_one_after_the_other_in_the_order_they_came(db: AsyncSessionDB) -> None:
    async with open_runtime(db, ScriptedModel(["1", "2", "3"])) as run:
        waiting = [run.submit("talk", events.Submit(text)) for text in ("a", "b", "c")]
        assert run.queued("talk") == 3
        results = await asyncio.gather(*waiting)
    assert [result.final_response for result in results] == ["1", "2", "3"]
    assert [each.role for each in await db.transcript("talk")] == ["user", "assistant"] * 3


async def test_conversations_do_not_wait_for_each_other(db: AsyncSessionDB) -> None:
    slow = agents.Trickle("Hm")

    async def build(conversation_id: str) -> AIAgent:
        model = slow if conversation_id == "slow" else ScriptedModel(["Quick."])
        return agents.agent(db, model, session_id=conversation_id)

    async with runtime.Runtime(db, build) as run:
        waiting = run.submit("slow", events.Submit("Go"))
        await slow.stuck.reached.wait()
        assert (await run.submit("quick", events.Submit("Go"))).completed
        assert not waiting.done()


async def test_an_interrupt_stops_the_turn_and_the_next_message_is_answered(db: AsyncSessionDB) -> None:
    slow = agents.Trickle("Hm")
    async with open_runtime(db, slow) as run:
        waiting = run.submit("talk", events.Submit("Go"))
        await slow.stuck.reached.wait()
        await run.send("talk", events.Interrupt())
        assert (await waiting).interrupted


async def test_closing_stops_what_runs_keeps_what_was_said_and_ends_the_listening(db: AsyncSessionDB) -> None:
    slow = agents.Trickle("Half a ")
    run = open_runtime(db, slow)
    with run.subscribe("talk") as listening:
        waiting, refused = (run.submit("talk", events.Submit(text)) for text in ("Go", "Later"))
        await slow.stuck.reached.wait()
        await run.close()
        assert (await waiting).interrupted
        assert refused.cancelled()
        assert [emitted.event async for emitted in listening][-1] == events.TurnFinished(waiting.result())
    assert await db.leases() == []


async def test_a_turn_that_fails_in_an_unknown_way_is_said_and_the_next_one_runs(
    caplog: pytest.LogCaptureFixture, db: AsyncSessionDB
) -> None:
    async with open_runtime(db, ScriptedModel([ZeroDivisionError("a bug"), "Fine."])) as run:
        with run.subscribe("talk") as listening:
            broken = run.submit("talk", events.Submit("a"))
            fine = run.submit("talk", events.Submit("b"))
            seen = await events_until(listening, events.TurnFinished)
        assert (await fine).completed
        with pytest.raises(ZeroDivisionError):
            await broken
        assert any(isinstance(each.event, events.Notice) and each.event.level == "error" for each in seen)
    assert await db.leases() == []
    assert "a turn of talk failed" in caplog.text


async def test_steering_without_a_turn_is_a_message_like_any_other(db: AsyncSessionDB) -> None:
    async with open_runtime(db, ScriptedModel(["Yes?"])) as run:
        with run.subscribe("talk") as listening:
            await run.send("talk", events.Steer("Hello"))
            await events_until(listening, events.TurnFinished)
    assert [each.role for each in await db.transcript("talk")] == ["user", "assistant"]


async def test_any_session_id_resolves_to_its_conversation_and_an_unknown_one_to_itself(db: AsyncSessionDB) -> None:
    async with open_runtime(db, ScriptedModel(["a"])) as run:
        await run.submit("talk", events.Submit("Hello"))
        await db.commit_compaction(await db.acquire_lease("talk", "compact"), summary="s", cut_seq=1, child_id="talk2")
        assert await run.resolve("talk2") == "talk"
        assert await run.resolve("nobody") == "nobody"
        await db.delete_conversation("talk")
        with pytest.raises(errors.ConversationDeleted):
            await run.resolve("talk2")


async def test_nothing_is_kept_of_a_conversation_nobody_listens_to(db: AsyncSessionDB) -> None:
    async with open_runtime(db, ScriptedModel(["a"])) as run:
        await run.submit("talk", events.Submit("Hello"))
        await run.send("other", events.Command("/help"))
        await asyncio.sleep(0)
        assert run._states == {}


# --- commands ------------------------------------------------------------------------------------------


async def test_help_names_every_command_and_an_unknown_one_says_where_to_look(db: AsyncSessionDB) -> None:
    async with open_runtime(db, ScriptedModel([])) as run:
        (answer,) = await run_command(run, "/help")
        assert isinstance(answer, events.Answer)
        assert all(f"/{name}" in answer.text for name in ("new", "title", "sessions", "resume", "status", "quit"))
        (wrong,) = await run_command(run, "/nonsense \x1b[2J")
        assert isinstance(wrong, events.Notice)
        assert "/help" in wrong.text
        assert "\x1b" not in wrong.text
        (extra,) = await run_command(run, "/quit now")
        assert isinstance(extra, events.Notice)


async def test_new_moves_to_a_conversation_that_begins_with_its_first_message(db: AsyncSessionDB) -> None:
    async with open_runtime(db, ScriptedModel(["a"])) as run:
        (moved,) = await run_command(run, "/new Garden plans")
        assert isinstance(moved, events.Moved)
        assert moved.new
        assert await db.list_sessions() == []
        await run.submit(moved.conversation_id, events.Submit("Hello"))
        assert (await db.conversation(moved.conversation_id)).title == "Garden plans"


async def test_title_shows_sets_and_refuses(db: AsyncSessionDB) -> None:
    async with open_runtime(db, ScriptedModel(["a"])) as run:
        await db.create_session("other", source="test", title="Taken")
        await run_command(run, "/title Early")
        await run.submit("talk", events.Submit("Hello"))
        assert await run_command(run, "/title") == [events.Answer("Early")]
        assert await run_command(run, "/title  Late   one ") == [events.Titled("Late one")]
        (refused,) = await run_command(run, "/title Taken")
        assert isinstance(refused, events.Notice)
        assert (await db.conversation("talk")).title == "Late one"


async def test_sessions_resume_status_and_usage_tell_what_is_there(db: AsyncSessionDB) -> None:
    async with open_runtime(db, ScriptedModel(["a"])) as run:
        assert await run_command(run, "/sessions") == [events.Answer("There are no conversations yet.")]
        (empty,) = await run_command(run, "/status")
        assert isinstance(empty, events.Answer)
        assert "begins with your first message" in empty.text
        await run.submit("talk", events.Submit("Hello world"))
        (listed,) = await run_command(run, "/sessions")
        assert isinstance(listed, events.Answer)
        assert "Hello world" in listed.text
        assert await run_command(run, "/resume Hello world", "elsewhere") == [events.Moved("talk")]
        assert await run_command(run, "/resume", "elsewhere") == [events.Moved("talk")]
        (missing,) = await run_command(run, "/resume nobody")
        assert isinstance(missing, events.Notice)
        (status,) = await run_command(run, "/status")
        assert isinstance(status, events.Answer)
        assert "messages      2" in status.text
        (usage,) = await run_command(run, "/usage")
        assert isinstance(usage, events.Answer)
        assert "scripted/model: 1 tokens in" in usage.text


async def test_compact_previews_compacts_undoes_and_redoes(db: AsyncSessionDB) -> None:
    await fill(db)

    async def build(conversation_id: str) -> AIAgent:
        model = ScriptedModel([], window=WINDOW)
        return agents.agent(db, model, session_id=conversation_id, summarizer=FakeSummarizer())

    async with runtime.Runtime(db, build) as run:
        (preview,) = await run_command(run, "/compact --preview")
        assert isinstance(preview, events.Answer)
        assert "would be summarized" in preview.text
        assert len(await db.sessions("talk")) == 1
        _, made = await run_command(run, "/compact the harbour")
        assert isinstance(made, events.Compacted)
        (undone,) = await run_command(run, "/compact undo")
        assert isinstance(undone, events.Answer)
        assert (await db.context("talk")).summary is None
        (redone,) = await run_command(run, "/compress redo")
        assert isinstance(redone, events.Answer)
        assert (await db.context("talk")).cut_seq == made.cut_seq
        sessions = len(await db.sessions("talk"))
        for wrong in ("/compact here many", "/compact --dry-run", "/compact --preview everything"):
            (bad,) = await run_command(run, wrong)
            assert isinstance(bad, events.Notice)
        assert isinstance((await run_command(run, "/compact --preview here 2"))[0], events.Answer)
        assert len(await db.sessions("talk")) == sessions


async def test_compact_here_keeps_exactly_the_exchanges_it_promises(db: AsyncSessionDB) -> None:
    await fill(db)
    last = [each.content for each in (await db.transcript("talk"))[-6:]]

    async def build(conversation_id: str) -> AIAgent:
        model = ScriptedModel([], window=WINDOW)
        return agents.agent(db, model, session_id=conversation_id, summarizer=FakeSummarizer())

    async with runtime.Runtime(db, build) as run:
        _, made = await run_command(run, "/compact here 3")
        assert isinstance(made, events.Compacted)
    assert [each.content for each in await db.context("talk")][-6:] == last
    assert made.cut_seq == 74


async def test_recall_brings_originals_back_by_number_and_by_words(db: AsyncSessionDB) -> None:
    await fill(db)
    async with open_runtime(db, ScriptedModel([])) as run:
        (one,) = await run_command(run, "/recall 7")
        assert isinstance(one, events.Answer)
        assert one.text.startswith("[7 user] Question 3")
        (some,) = await run_command(run, "/recall 7-9")
        assert isinstance(some, events.Answer)
        assert some.text.count("] ") >= 3
        (words,) = await run_command(run, "/recall pier 17")
        assert isinstance(words, events.Answer)
        assert "pier 17" in words.text
        (nothing,) = await run_command(run, "/recall 99999")
        assert nothing == events.Answer("Nothing was found.")


async def test_a_turn_is_stopped_also_before_it_has_begun(db: AsyncSessionDB) -> None:
    model = ScriptedModel(["never"] * 9)
    async with open_runtime(db, model) as run:
        for wait in range(6):
            answered = run.submit("talk", events.Submit("Go"))
            for _ in range(wait):
                await asyncio.sleep(0)
            await run.send("talk", events.Interrupt())
            result = await answered
            assert result.interrupted or result.completed
            if wait < 2:
                assert (result.interrupted, result.messages) == (True, ())
        assert (await run.submit("talk", events.Submit("Now"))).completed


async def test_an_interrupt_that_finds_nothing_to_stop_does_not_stop_the_next_message(db: AsyncSessionDB) -> None:
    await db.create_session("talk", source="test")
    await db.mail.add_inbox_entry("talk", "one", "process 1 ended", kind="process")
    async with open_runtime(db, ScriptedModel(["Yes."] * 2)) as run:
        with run.subscribe("talk"):
            while not run.running("talk"):
                await asyncio.sleep(0)
            assert run.interrupt("talk")
            while run.running("talk"):
                await asyncio.sleep(0)
            assert (await run.submit("talk", events.Submit("Now"))).completed


async def test_closing_stops_a_command_that_takes_its_time(db: AsyncSessionDB) -> None:
    class Slow:
        """Words that never come."""

        def __init__(self) -> None:
            self.stuck = agents.Stuck()

        def listed(self) -> Sequence[commands.CommandInfo]:
            return ()

        async def text(self, name: str, argument: str) -> str | None:
            return str(await self.stuck())

    async def build(conversation_id: str) -> AIAgent:
        return agents.agent(db, ScriptedModel(), session_id=conversation_id)

    words = Slow()
    run = runtime.Runtime(db, build, prompt_commands=words)
    sent = asyncio.create_task(run.send("talk", events.Command("/slow")))
    await words.stuck.reached.wait()
    async with asyncio.timeout(60):
        await run.close()
    assert words.stuck.cancelled
    await asyncio.wait([sent])


async def test_what_is_busy_is_known_over_all_conversations(db: AsyncSessionDB) -> None:
    slow = agents.Trickle("Hm")
    async with open_runtime(db, slow) as run:
        run.submit("talk", events.Submit("Go"))
        await slow.stuck.reached.wait()
        with run.subscribe("quiet"):
            assert run.busy() == ["talk"]


async def test_closing_right_after_a_message_came_does_not_wait_for_its_answer(db: AsyncSessionDB) -> None:
    run = open_runtime(db, agents.Trickle("never ending"))
    answered = run.submit("talk", events.Submit("Go"))
    await asyncio.sleep(0)
    await run.close()
    assert answered.cancelled() or answered.result().interrupted


async def test_a_person_who_compacts_is_always_told_why_not(db: AsyncSessionDB) -> None:
    await fill(db)
    assert await db.try_acquire_compression_lock("talk", "somebody")

    async def build(conversation_id: str) -> AIAgent:
        return agents.agent(
            db, ScriptedModel([], window=WINDOW), session_id=conversation_id, summarizer=FakeSummarizer()
        )

    async with runtime.Runtime(db, build) as run:
        for _ in range(3):
            (why,) = await run_command(run, "/compact")
            assert isinstance(why, events.Notice)
            assert "Another process" in why.text
