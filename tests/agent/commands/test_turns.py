"""The commands /undo, /redo, /retry, /stop, /steer and /queue: nothing is lost."""

from __future__ import annotations

import pytest

from holdfast import AsyncSessionDB, content_parts, events, types
from holdfast.agent import loop
from holdfast.agent.commands import turns
from holdfast.model import ScriptedModel, base
from tests.support import agents
from tests.support.runtimes import (
    add_exchanges,
    answer_text,
    compact,
    context_texts,
    notice_text,
    open_runtime,
    run_command,
)

SUMMARIZED = "The messages up to 4 are represented by a summary: run /compact undo first."


def request_texts(request: base.Request) -> list[str]:
    return [content_parts.text(each.content) for each in request.messages]


async def test_undone_turns_are_hidden_and_redone_in_reverse_order(db: AsyncSessionDB) -> None:
    await add_exchanges(db, 4)
    async with open_runtime(db) as run:
        assert await answer_text(run, "/undo") == "Undone (messages 7 to 8):\n  [7] q4\n/redo restores it."
        assert "  [3] q2\n  [5] q3\n" in await answer_text(run, "/undo 2")
        assert await context_texts(db) == ["q1", "a1"]
        assert (len(await db.transcript("talk")), await db.leases()) == (8, [])
        assert await answer_text(run, "/undo 2") == "error: There is only 1 turn to undo."
        assert await answer_text(run, "/redo") == "Restored:\n  [3] q2\n  [5] q3"
        assert await context_texts(db) == ["q1", "a1", "q2", "a2", "q3", "a3"]
        assert await answer_text(run, "/redo") == "Restored:\n  [7] q4"
        assert len(await context_texts(db)) == 8
        assert (await answer_text(run, "/redo")).startswith("error: Nothing was undone")


async def test_model_does_not_see_an_undone_turn_until_it_is_redone(db: AsyncSessionDB) -> None:
    async with open_runtime(db, model := ScriptedModel(["one", "two", "three", "four"])) as run:
        for text in ("first", "second"):
            await run.submit("talk", events.Submit(text))
        await answer_text(run, "/undo")
        await run.submit("talk", events.Submit("third"))
        assert request_texts(model.requests[-1]) == ["first", "one", "third"]
        redone = await answer_text(run, "/redo")
        assert redone.endswith("[3] second\nIt comes before the messages that were sent since.")
        await run.submit("talk", events.Submit("fourth"))
        assert request_texts(model.requests[-1])[::2] == ["first", "second", "third", "fourth"]


async def test_steering_and_notices_are_undone_with_the_turn_of_the_user(db: AsyncSessionDB) -> None:
    await add_exchanges(db, 1)
    await db.append_messages(
        "talk",
        [
            types.NewMessage(role="user", content="q2"),
            types.NewMessage(role="user", content="faster", uid=loop.steering_uid()),
            types.NewMessage(role="assistant", content="a2"),
            types.NewMessage(role="user", content=[content_parts.notice("The build ended.", "process")]),
            types.NewMessage(role="assistant", content="It did."),
        ],
    )
    async with open_runtime(db) as run:
        assert "(messages 3 to 7):\n  [3] q2\n" in await answer_text(run, "/undo")
    assert await context_texts(db) == ["q1", "a1"]


@pytest.mark.parametrize("wrong", ["0", "-1", "x", "1.5", "٣", "1 2", "9" * 30, "3"])
async def test_undo_of_an_invalid_number_changes_nothing(wrong: str, db: AsyncSessionDB) -> None:
    await add_exchanges(db, 2)
    async with open_runtime(db) as run:
        refused = await answer_text(run, f"/undo {wrong}")
    expected = "error: There are only 2 turns to undo." if wrong == "3" else "error: /undo takes the number of turns"
    assert refused.startswith(expected)
    assert (len(await context_texts(db)), await db.hides("talk")) == (4, [])


async def test_summarized_turns_are_undone_and_redone_after_compact_undo_only(db: AsyncSessionDB) -> None:
    await add_exchanges(db, 3)
    lease = await db.acquire_lease("talk", "compact")
    await db.commit_compaction(lease, summary="In short.", cut_seq=4, pinned=[1])
    await db.release_lease(lease)
    async with open_runtime(db) as run:
        only_one = f"error: There is only 1 turn after the summary. {SUMMARIZED}"
        assert await answer_text(run, "/undo 2") == only_one  # the pinned message is no turn
        await answer_text(run, "/undo")
        assert await answer_text(run, "/undo") == f"error: There is no turn after the summary. {SUMMARIZED}"
        assert "q1" in await context_texts(db)
        await answer_text(run, "/compact undo")
        await answer_text(run, "/undo")
        assert await context_texts(db) == ["q1", "a1"]
        await run.submit("talk", events.Submit("q4"))
        await compact(db, 4)
        assert await answer_text(run, "/redo") == f"error: {SUMMARIZED}"
        await answer_text(run, "/compact undo")
        await answer_text(run, "/redo")
        await answer_text(run, "/undo")
    assert await context_texts(db) == ["q1", "a1", "q2", "a2"]


async def test_branch_undoes_shared_turns_for_itself_only(db: AsyncSessionDB) -> None:
    await add_exchanges(db, 3)
    await db.pin("talk", 5)
    await db.branch("talk", branch_id="fork")
    async with open_runtime(db) as run:
        await run.submit("fork", events.Submit("q4"))
        await answer_text(run, "/undo 3", "fork")
        assert await context_texts(db, "fork") == ["q1", "a1"]
        assert len(await context_texts(db)) == 6
        await answer_text(run, "/redo", "fork")
        assert len(await context_texts(db, "fork")) == 8
        await compact(db, 6)
        await db.branch("talk", branch_id="summarized")
        refused = await answer_text(run, "/undo", "summarized")
        assert refused.endswith("up to 6 are represented by a summary, with which this branch began.")


@pytest.mark.parametrize("line", ["/undo", "/redo", "/retry", "/branch"])
async def test_history_is_not_changed_while_a_turn_runs_here_or_elsewhere(line: str, db: AsyncSessionDB) -> None:
    await add_exchanges(db, 2)
    slow = agents.Trickle("Hm")
    async with open_runtime(db, slow) as run, open_runtime(db) as other:
        waiting = run.submit("talk", events.Submit("Go"))
        # The turn is about to begin; its first events may come before the refusal.
        assert events.Notice(turns.RUNNING, "error") in await run_command(run, line)
        await slow.stuck.reached.wait()
        assert await answer_text(run, line) == f"error: {turns.RUNNING}"
        assert "running elsewhere" in await answer_text(other, line)
        assert (await db.hides("talk"), len(await db.list_sessions())) == ([], 1)
        await run.send("talk", events.Command("/stop"))
        assert (await waiting).interrupted


async def test_steer_reaches_the_running_turn_and_is_a_message_without_one(db: AsyncSessionDB) -> None:
    gate, model = agents.Gate(), ScriptedModel([agents.calls("wait"), "Done."])
    async with open_runtime(db, model, tools=[agents.tool("wait", gate)]) as run:
        assert await run_command(run, "/steer to the left") == [events.Say("to the left")]
        waiting = run.submit("talk", events.Submit("Go"))
        await gate.reached.wait()
        with run.subscribe("talk") as stream:
            await run.send("talk", events.Command("/steer to the left"))
            assert "before its next step" in await notice_text(stream)
        gate.go.set()
        assert (await waiting).completed
    assert model.requests[-1].messages[-1].content == "to the left"


async def test_queue_lists_waiting_messages_and_drops_the_named_ones(db: AsyncSessionDB) -> None:
    slow = agents.Trickle("Hm")
    async with open_runtime(db, slow) as run:
        for line in ("/queue", "/queue drop all"):
            assert await answer_text(run, line) == "No messages are waiting."
        message = events.Submit("Go")
        first = run.submit("talk", message)
        await slow.stuck.reached.wait()
        assert not run.drop("talk", message)  # its turn has begun
        waiting = [run.submit("talk", events.Submit(words)) for words in ("b", "c", "c", "d " * 100)]
        listed = await answer_text(run, "/queue")
        assert listed.splitlines()[:3] == ["1  b", "2  c", "3  c"]
        assert len(listed) < 120
        assert await answer_text(run, "/queue drop 3") == "Dropped: c"
        assert [each.cancelled() for each in waiting] == [False, False, True, False]
        for wrong in ("drop 4", "drop 0", "drop", "drop x", "b", "drop 1 2", "drop " + "9" * 30):
            assert (await answer_text(run, f"/queue {wrong}")).startswith("error: ")
        assert run.queued("talk") == 3
        assert await answer_text(run, "/queue drop all") == "Dropped 3."
        assert (run.queued("talk"), first.done()) == (0, False)


async def test_retry_repeats_the_message_and_hides_the_previous_answer(db: AsyncSessionDB) -> None:
    async with open_runtime(db, model := ScriptedModel(["one", "two", "other"])) as run:
        for words in ("first", "second"):
            await run.submit("talk", events.Submit(words))
        assert await run_command(run, "/retry") == [events.Say("second")]
        await run.submit("talk", events.Submit("second"))
    assert request_texts(model.requests[-1]) == ["first", "one", "second"]
    log = await db.transcript("talk")
    said = [content_parts.text(each.content) for each in log]
    assert said == ["first", "one", "second", "two", "second", "other"]
    assert len({each.uid for each in log}) == 6


async def test_retry_keeps_images_and_notes_of_the_message_but_not_the_date(db: AsyncSessionDB) -> None:
    image = {"type": "image", "media_type": "image/png", "data": "AAAA"}
    text, note = {"type": "text", "text": "What is this?"}, content_parts.note("The file is in /tmp.")
    async with open_runtime(db) as run:
        await run.submit("talk", events.Submit("What is this?", content=[note, text, image]))
        date, *sent = (await db.transcript("talk"))[0].content
        assert (content_parts.text([date]), sent) == ("", [note, text, image])  # type: ignore[list-item]
        assert await run_command(run, "/retry") == [events.Say("What is this?", [note, text, image])]


async def test_retry_works_for_unanswered_messages_and_after_a_compaction(db: AsyncSessionDB) -> None:
    await add_exchanges(db, 2)
    await compact(db, 4)
    await db.append_message("talk", role="user", content="q3")
    async with open_runtime(db) as run:
        assert await run_command(run, "/retry") == [events.Say("q3")]
    assert (await db.context("talk")).summary is not None
    assert "q3" not in await context_texts(db)


async def test_retry_of_a_redacted_message_is_refused(db: AsyncSessionDB) -> None:
    await add_exchanges(db, 2)
    await db.redact("talk", 3)
    async with open_runtime(db) as run:
        assert "was redacted" in await answer_text(run, "/retry")
        assert await db.hides("talk") == []
        assert "[3] (redacted)" in await answer_text(run, "/undo")
