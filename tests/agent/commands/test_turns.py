"""Turns are taken back and forth and asked again, and nothing is lost; what runs and what waits can be reached."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import AIAgent, AsyncSessionDB, SessionDB, content_parts, events, types
from holdfast.agent import loop
from holdfast.agent.commands import turns
from holdfast.model import ScriptedModel
from holdfast.runtime import runtime
from tests.support import agents, slash_commands
from tests.support.runtimes import events_until, run_command
from tests.support.slash_commands import said, view

# --- undo and redo -------------------------------------------------------------------------------------


async def test_undo_takes_back_the_last_turn_and_says_what_it_was(db: AsyncSessionDB) -> None:
    await slash_commands.exchanges(db, 3)
    async with slash_commands.door(db) as run:
        answer = await said(run, "/undo")
        assert answer == ("Undone (messages 5 to 6):\n  [5] q3\n/redo restores it.")
    assert await view(db) == ["q1", "a1", "q2", "a2"]
    assert len(await db.transcript("talk")) == 6
    assert await db.leases() == []


async def test_undo_of_many_is_redone_as_it_was_undone_the_last_one_first(db: AsyncSessionDB) -> None:
    await slash_commands.exchanges(db, 4)
    async with slash_commands.door(db) as run:
        await said(run, "/undo")
        many = await said(run, "/undo 2")
        assert "  [3] q2\n  [5] q3\n" in many
        assert await view(db) == ["q1", "a1"]
        assert await said(run, "/redo") == "Restored:\n  [3] q2\n  [5] q3"
        assert await view(db) == ["q1", "a1", "q2", "a2", "q3", "a3"]
        assert await said(run, "/redo") == "Restored:\n  [7] q4"
        assert len(await view(db)) == 8
        assert (await said(run, "/redo")).startswith("error: Nothing was undone")


async def test_the_next_turn_does_not_know_what_was_taken_back_and_knows_it_again_when_redone(
    db: AsyncSessionDB,
) -> None:
    model = ScriptedModel(["one", "two", "three", "four"])
    async with slash_commands.door(db, model) as run:
        for words in ("first", "second"):
            await run.submit("talk", events.Submit(words))
        await said(run, "/undo")
        await run.submit("talk", events.Submit("third"))
        assert [content_parts.text(each.content) for each in model.requests[-1].messages] == [
            "first",
            "one",
            "third",
        ]
        assert (await said(run, "/redo")).endswith("[3] second\nIt comes before the messages that were sent since.")
        await run.submit("talk", events.Submit("fourth"))
        asked = [content_parts.text(each.content) for each in model.requests[-1].messages if each.role == "user"]
        assert asked == ["first", "second", "third", "fourth"]


async def test_what_was_said_into_a_turn_and_what_programs_told_goes_with_the_turn_of_the_person(
    db: AsyncSessionDB,
) -> None:
    await slash_commands.exchanges(db, 1)
    told_by_program = [content_parts.notice("The build ended.", "process")]
    await db.append_messages(
        "talk",
        [
            types.NewMessage(role="user", content="q2"),
            types.NewMessage(role="user", content="faster", uid=loop.steering_uid()),
            types.NewMessage(role="assistant", content="a2"),
            types.NewMessage(role="user", content=told_by_program),
            types.NewMessage(role="assistant", content="It did."),
        ],
    )
    async with slash_commands.door(db) as run:
        assert "(messages 3 to 7):\n  [3] q2\n" in await said(run, "/undo")
    assert await view(db) == ["q1", "a1"]


@pytest.mark.parametrize("wrong", ["0", "-1", "x", "1.5", "٣", "1 2", "9" * 30, "--all"])
async def test_undo_of_no_number_is_refused_and_changes_nothing(wrong: str, db: AsyncSessionDB) -> None:
    await slash_commands.exchanges(db, 2)
    async with slash_commands.door(db) as run:
        assert (await said(run, f"/undo {wrong}")).startswith("error: /undo takes the number of turns")
    assert (len(await view(db)), await db.hides("talk")) == (4, [])


async def test_more_turns_than_there_are_cannot_be_taken_back_and_none_is(db: AsyncSessionDB) -> None:
    await slash_commands.exchanges(db, 2)
    async with slash_commands.door(db) as run:
        assert await said(run, "/undo 3") == "error: There are only 2 turns to undo."
        assert await db.hides("talk") == []
        await said(run, "/undo 2")
        assert await said(run, "/undo") == "error: There is no turn to undo."
        assert await said(run, "/retry") == "error: There is no turn to undo."


async def test_what_a_summary_stands_for_is_taken_back_after_compact_undo_only(db: AsyncSessionDB) -> None:
    await slash_commands.exchanges(db, 3)
    await slash_commands.compacted(db, 4)
    async with slash_commands.door(db) as run:
        refused = "The messages up to 4 are represented by a summary: run /compact undo first."
        assert await said(run, "/undo 2") == f"error: There is only 1 turn after the summary. {refused}"
        await said(run, "/undo")
        assert await said(run, "/undo") == f"error: There is no turn after the summary. {refused}"
        await said(run, "/compact undo")
        await said(run, "/undo")
    assert await view(db) == ["q1", "a1"]


async def test_what_was_taken_back_before_a_compaction_comes_back_after_compact_undo_only(db: AsyncSessionDB) -> None:
    await slash_commands.exchanges(db, 2)
    async with slash_commands.door(db) as run:
        await said(run, "/undo")
        await run.submit("talk", events.Submit("q3"))
        await slash_commands.compacted(db, 4)
        assert await said(run, "/redo") == (
            "error: The messages up to 4 are represented by a summary: run /compact undo first."
        )
        await said(run, "/compact undo")
        await said(run, "/redo")
        await said(run, "/undo")
    assert await view(db) == ["q1", "a1", "q2", "a2"]


async def test_a_branch_says_that_it_began_with_its_summary(db: AsyncSessionDB) -> None:
    await slash_commands.exchanges(db, 2)
    await slash_commands.compacted(db, 4)
    await db.branch("talk", branch_id="fork")
    async with slash_commands.door(db) as run:
        assert (await said(run, "/undo", "fork")).endswith(
            "up to 4 are represented by a summary, with which this branch began."
        )


async def test_a_compaction_made_at_the_very_moment_of_an_undo_is_told_of_and_taking_it_back_takes_the_turn_back() -> (
    None
):
    class Meanwhile(AsyncSessionDB):
        """Somebody else compacts between the look and the deed."""

        async def hide(self, session_id: str, from_seq: int, to_seq: int | None = None) -> types.Hide:
            await slash_commands.compacted(self, 4)
            return await self.run(lambda: self.db.hide(session_id, from_seq, to_seq))

    async with Meanwhile(SessionDB(":memory:")) as db, asyncio.timeout(60):
        await slash_commands.exchanges(db, 2)
        async with slash_commands.door(db) as run:
            assert "summarized this turn at the same moment" in await said(run, "/undo")
            await said(run, "/compact undo")
            assert await view(db) == ["q1", "a1"]


async def test_a_conversation_that_ended_can_be_taken_back_too(db: AsyncSessionDB) -> None:
    await slash_commands.exchanges(db, 2)
    await db.end_conversation("talk", "closed")
    async with slash_commands.door(db) as run:
        await said(run, "/undo")
        assert await view(db) == ["q1", "a1"]
        await run.submit("talk", events.Submit("q3"))
    assert [each[:2] for each in await spoken(db)] == ["q1", "a1", "q3", "ok"]


# --- during a turn -------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", ["/undo", "/redo", "/retry", "/branch"])
async def test_the_past_is_not_changed_while_a_turn_runs_here_or_elsewhere(line: str, db: AsyncSessionDB) -> None:
    await slash_commands.exchanges(db, 2)
    slow = agents.Trickle("Hm")
    async with slash_commands.door(db, slow) as run, slash_commands.door(db) as other:
        waiting = run.submit("talk", events.Submit("Go"))
        assert await said(run, line) == f"error: {turns.RUNNING}"  # It is only about to begin.
        await slow.stuck.reached.wait()
        assert await said(run, line) == f"error: {turns.RUNNING}"
        assert "running elsewhere" in await said(other, line)
        assert (await db.hides("talk"), len(await db.list_sessions())) == ([], 1)
        await run.send("talk", events.Command("/stop"))
        assert (await waiting).interrupted


async def test_stop_stops_the_turn_and_says_when_there_is_none(db: AsyncSessionDB) -> None:
    slow = agents.Trickle("Hm")
    async with slash_commands.door(db, slow) as run:
        assert await said(run, "/stop") == "info: Nothing is running."
        waiting = run.submit("talk", events.Submit("Go"))
        await run.send("talk", events.Command("/stop"))  # It is only about to begin.
        assert (await waiting).interrupted
        waiting = run.submit("talk", events.Submit("Go"))
        await slow.stuck.reached.wait()
        await run.send("talk", events.Command("/stop"))
        assert (await waiting).interrupted
        assert await said(run, "/stop") == "info: Nothing is running."


async def test_steer_tells_the_running_turn_and_is_a_message_without_one(db: AsyncSessionDB) -> None:
    stuck, go = agents.Stuck(), asyncio.Event()

    async def wait(_: dict[str, Any]) -> str:
        stuck.reached.set()
        await go.wait()
        return "waited"

    model = ScriptedModel([agents.calls("wait"), "Done."])

    async def build(conversation_id: str) -> AIAgent:
        return agents.agent(db, model, session_id=conversation_id, tools=[agents.tool("wait", wait)])

    async with runtime.Runtime(db, build) as run:
        assert await run_command(run, "/steer to the left") == [events.Say("to the left")]
        waiting = run.submit("talk", events.Submit("Go"))
        await stuck.reached.wait()
        with run.subscribe("talk") as listening:
            await run.send("talk", events.Command("/steer to the left"))
            assert "before its next step" in str((await events_until(listening, events.Notice))[-1].event)
        go.set()
        assert (await waiting).completed
    assert [each.content for each in model.requests[-1].messages][-1] == "to the left"


async def test_queue_lists_what_waits_and_drops_what_is_named(db: AsyncSessionDB) -> None:
    slow = agents.Trickle("Hm")
    async with slash_commands.door(db, slow) as run:
        assert await said(run, "/queue") == await said(run, "/queue drop all") == "No messages are waiting."
        first = run.submit("talk", events.Submit("Go"))
        await slow.stuck.reached.wait()
        waiting = [run.submit("talk", events.Submit(words)) for words in ("b", "c", "c", "d " * 100)]
        assert (await said(run, "/queue")).splitlines()[:3] == ["1  b", "2  c", "3  c"]
        assert len(await said(run, "/queue")) < 120
        assert await said(run, "/queue drop 3") == "Dropped: c"
        assert [each.cancelled() for each in waiting] == [False, False, True, False]
        for wrong in ("drop 4", "drop 0", "drop", "drop x", "b", "drop 1 2", "drop " + "9" * 30):
            assert (await said(run, f"/queue {wrong}")).startswith("error: ")
        assert run.queued("talk") == 3
        assert await said(run, "/queue drop all") == "Dropped 3."
        assert (run.queued("talk"), first.done()) == (0, False)


async def test_a_message_whose_turn_came_meanwhile_is_not_dropped(db: AsyncSessionDB) -> None:
    async with slash_commands.door(db) as run:
        message = events.Submit("Go")
        answered = run.submit("talk", message)
        assert (await answered).completed
        assert not run.drop("talk", message)


# --- retry ---------------------------------------------------------------------------------------------


async def spoken(db: AsyncSessionDB) -> list[str]:
    return [content_parts.text(each.content) for each in await db.context("talk") if each.seq]


async def test_retry_asks_the_same_again_and_the_model_does_not_see_its_answer_of_before(db: AsyncSessionDB) -> None:
    model = ScriptedModel(["one", "two", "other"])
    async with slash_commands.door(db, model) as run:
        for words in ("first", "second"):
            await run.submit("talk", events.Submit(words))
        (again,) = await run_command(run, "/retry")
        assert again == events.Say("second")
        await run.submit("talk", events.Submit("second"))
        assert [content_parts.text(each.content) for each in model.requests[-1].messages] == [
            "first",
            "one",
            "second",
        ]
    assert await spoken(db) == ["first", "one", "second", "other"]
    log = await db.transcript("talk")
    assert [content_parts.text(each.content) for each in log] == [
        "first",
        "one",
        "second",
        "two",
        "second",
        "other",
    ]
    assert len({each.uid for each in log}) == 6


async def test_retry_keeps_pictures_and_leaves_out_the_notes_for_the_model(db: AsyncSessionDB) -> None:
    picture = {"type": "image", "media_type": "image/png", "data": "AAAA"}
    words = {"type": "text", "text": "What is this?"}
    async with slash_commands.door(db) as run:
        await run.submit("talk", events.Submit("What is this?", content=[words, picture]))
        stored = (await db.transcript("talk"))[0].content
        assert stored[0]["type"] == "note"  # type: ignore[index]
        assert await run_command(run, "/retry") == [events.Say("What is this?", [words, picture])]


async def test_retry_of_a_message_that_was_never_answered_asks_it_again(db: AsyncSessionDB) -> None:
    await slash_commands.exchanges(db, 1)
    await db.append_message("talk", role="user", content="q2")
    async with slash_commands.door(db) as run:
        assert await run_command(run, "/retry") == [events.Say("q2")]
    assert await view(db) == ["q1", "a1"]


async def test_retry_of_words_that_were_redacted_is_refused_and_changes_nothing(db: AsyncSessionDB) -> None:
    await slash_commands.exchanges(db, 2)
    await db.redact("talk", 3)
    async with slash_commands.door(db) as run:
        assert "was redacted" in await said(run, "/retry")
        assert await db.hides("talk") == []
        assert "[3] (redacted)" in await said(run, "/undo")


async def test_retry_after_a_compaction_keeps_the_summary(db: AsyncSessionDB) -> None:
    await slash_commands.exchanges(db, 3)
    await slash_commands.compacted(db, 4)
    async with slash_commands.door(db) as run:
        assert await run_command(run, "/retry") == [events.Say("q3")]
    assert (await db.context("talk")).summary is not None
    assert "q3" not in await view(db)


async def test_a_branch_takes_back_what_it_shares_and_the_other_conversation_keeps_it(db: AsyncSessionDB) -> None:
    await slash_commands.exchanges(db, 3)
    await db.pin("talk", 5)
    await db.branch("talk", branch_id="fork")
    async with slash_commands.door(db) as run:
        await run.submit("fork", events.Submit("q4"))
        await said(run, "/undo 3", "fork")
        assert await view(db, "fork") == ["q1", "a1"]
        assert len(await view(db)) == 6
        await said(run, "/redo", "fork")
        assert len(await view(db, "fork")) == 8


async def test_a_pinned_message_that_a_summary_stands_around_is_not_taken_back(db: AsyncSessionDB) -> None:
    await slash_commands.exchanges(db, 3)
    lease = await db.acquire_lease("talk", "compact")
    await db.commit_compaction(lease, summary="In short.", cut_seq=4, pinned=[1])
    async with slash_commands.door(db) as run:
        assert (await said(run, "/undo 2")).startswith("error: There is only 1 turn after the summary.")
    assert "q1" in await view(db)
