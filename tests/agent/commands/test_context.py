"""The commands /compact, /pin, /unpin and /recall."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import AsyncSessionDB, errors, events, types
from holdfast.agent.commands import context
from holdfast.model import ScriptedModel
from holdfast.runtime import runtime
from tests.support import agents
from tests.support.compaction import WINDOW, FakeSummarizer, append_questions, fill
from tests.support.runtimes import answer_text, notice_text, open_runtime, run_command


def open_compacting(db: AsyncSessionDB, summarizer: FakeSummarizer | None = None) -> runtime.Runtime:
    return open_runtime(db, ScriptedModel(["ok"] * 9, window=WINDOW), summarizer=summarizer or FakeSummarizer())


async def compact(run: runtime.Runtime, argument: str = "") -> events.Compacted:
    made = (await run_command(run, f"/compact {argument}"))[-1]
    assert isinstance(made, events.Compacted), made
    return made


async def test_compact_keeps_the_requested_exchanges_and_is_undone_and_redone(db: AsyncSessionDB) -> None:
    await fill(db)
    last = [each.content for each in (await db.transcript("talk"))[-6:]]
    async with open_compacting(db, writer := FakeSummarizer()) as run:
        made = await compact(run, "Here 3")
        assert made.cut_seq == 74
        assert [each.content for each in await db.context("talk")][-6:] == last
        assert "Nothing to compact" in await answer_text(run, "/compact here 3")
        await answer_text(run, "/compact Undo")
        assert (await db.context("talk")).summary is None
        await answer_text(run, "/compress REDO")
        assert (await db.context("talk")).cut_seq == made.cut_seq
        sessions = len(await db.sessions("talk"))
        for wrong in ("here many", "--dry-run", "--preview everything"):
            assert (await answer_text(run, f"/compact {wrong}")).startswith("error: ")
        assert (len(await db.sessions("talk")), len(writer.requests)) == (sessions, 1)


@pytest.mark.parametrize("argument", ["", "here 30"])
async def test_preview_and_notice_give_the_numbers_of_the_compaction(argument: str, db: AsyncSessionDB) -> None:
    await fill(db)
    async with open_compacting(db, writer := FakeSummarizer()) as run:
        preview = await answer_text(run, f"/compact PREVIEW {argument}")
        assert await answer_text(run, f"/compact --preview {argument}") == preview
        assert (len(await db.sessions("talk")), writer.requests) == (1, [])
        notice, made = await run_command(run, f"/compact {argument}")
    count = len(writer.requests[0].messages)
    assert "would be summarized" in preview
    assert preview.startswith(f"{count} messages up to {made.cut_seq} ")
    assert notice.text.startswith(f"Summarizing {count} messages (about ")
    assert notice.text.partition("(about ")[2].split()[0] == preview.partition("(about ")[2].split()[0]


@pytest.mark.parametrize("how", ["cancel", "close"])
async def test_running_compact_command_is_stopped(how: str, db: AsyncSessionDB) -> None:
    await fill(db)
    stuck = agents.Stuck()
    async with open_compacting(db, FakeSummarizer(lambda _: stuck())) as run:
        with run.subscribe("talk") as stream:
            command = asyncio.create_task(run.send("talk", events.Command("/compact")))
            assert (await notice_text(stream)).startswith("Summarizing ")  # before the model is asked
        await stuck.reached.wait()
        if how == "cancel":
            command.cancel()
        else:
            await run.close()
        await asyncio.wait([command])
        assert command.cancelled() == (how == "cancel")  # closing does not cancel the sender
        assert (await db.leases(), stuck.cancelled, len(await db.sessions("talk"))) == ([], True, 1)


async def test_pin_without_a_number_lists_the_pins(db: AsyncSessionDB) -> None:
    async with open_compacting(db) as run:
        assert (await answer_text(run, "/pin")).startswith("No pinned messages.")
        assert (await answer_text(run, "/pin 9", "new")) == "error: The conversation has no messages yet."
        await fill(db)
        await answer_text(run, "/pin 5")
        assert "[80 assistant] Answer 39" in await answer_text(run, "/pin last")
        assert await answer_text(run, "/pin 5") == await answer_text(run, "/pin 5")
        lines = (await answer_text(run, "/pin")).splitlines()
        assert [line.split("]")[0] for line in lines] == ["[5 user", "[80 assistant"]
        assert all(len(line) <= 100 for line in lines)
        assert await answer_text(run, "/unpin 6") == "Message 6 is not pinned."


async def test_pin_of_an_invalid_or_summarized_message_is_refused(db: AsyncSessionDB) -> None:
    await fill(db)
    async with open_compacting(db) as run:
        await compact(run)
        for wrong in ("0", "81", "999999999"):
            assert "numbered 1 to 80" in await answer_text(run, f"/pin {wrong}")
        for wrong in ("x", "-3", "3-5", "1.5", "٣", "last one", "9" * 30):
            for name in ("pin", "unpin"):
                assert f"error: /{name} takes the number" in await answer_text(run, f"/{name} {wrong}")
        epoch = (await db.snapshot("talk")).epoch
        assert "error: Message 9 is not in the context" in await answer_text(run, "/pin 9")
        assert (await db.pins("talk"), (await db.snapshot("talk")).epoch) == ([], epoch)
        await answer_text(run, "/compact undo")
        await answer_text(run, "/pin 9")
        await compact(run)
        assert 9 in [each.seq for each in await db.context("talk")]


async def test_pin_that_does_not_fit_is_refused(db: AsyncSessionDB) -> None:
    await fill(db)
    await db.append_message("talk", role="user", content="It is windy there. " * 400)
    async with open_compacting(db) as run:
        assert "No space to pin message 81" in await answer_text(run, "/pin 81")
        pinned, refused = [], ""
        for seq in range(79, 20, -4):
            refused = await answer_text(run, f"/pin {seq}")
            if refused.startswith("error: "):
                break
            pinned.append(seq)
        # An older message would be kept first: the newest pin would have to go.
        assert "No space" in refused
        assert pinned
        assert [each.seq for each in await db.pins("talk")] == sorted(pinned)
        await append_questions(db, 30)
        await compact(run)
        assert set(pinned) <= {each.seq for each in await db.context("talk")}


async def test_recall_shows_calls_images_and_attachments_by_number_and_by_words(db: AsyncSessionDB) -> None:
    await db.create_session("talk", source="test")
    image = {"type": "image", "media_type": "image/png", "data": "aaaa" * 300}
    said = [{"type": "note", "text": "It is Monday."}, {"type": "text", "text": "Look: "}, image]
    await db.append_message("talk", role="user", content=said)
    call = types.ToolCall("x", "write_file", '{"path": "a.py", "text": "print(1)"}')
    await db.append_message("talk", role="assistant", tool_calls=[call])
    kept = (await db.blobs.put(b"long", "text/plain")).digest
    output = [{"type": "text", "text": "begins"}, {"type": "output", "blob": kept}]
    await db.append_message("talk", role="tool", content=output, tool_call_id="x")
    async with open_runtime(db) as run:
        assert (await answer_text(run, "/recall 1-3")).splitlines() == [
            "[1 user] Look: ",
            "[image/png, 900 bytes]",
            f"[2 assistant] [calls write_file {call.arguments}]",
            "[3 tool] begins",
            f"[output, attachment {kept}]",
        ]
        assert "[1 user] Look: \n[image/png, 900 bytes]" in await answer_text(run, "/recall look")
        assert await answer_text(run, "/recall 99999") == "Nothing was found."


async def test_recall_shows_50_messages_and_refuses_invalid_numbers(db: AsyncSessionDB) -> None:
    await db.create_session("talk", source="test")
    await db.append_messages("talk", [types.NewMessage(role="user", content=f"text {n + 1}") for n in range(120)])
    for argument, first, last, rest in (("3-999", 3, 52, "53-120"), ("1-51", 1, 50, "51-51"), ("7", 7, 7, "")):
        lines = [f"[{n} user] text {n}" for n in range(first, last + 1)]
        if rest:
            lines.append(f"[The first 50 messages; /recall {rest} shows the others.]")
        assert (await context.find_originals(db, "talk", argument)).splitlines() == lines
    for invalid in ("", "0", "0-3", "3-1"):
        with pytest.raises(errors.InvalidArgument, match=r"^(Message numbers start at 1|/recall takes the number)"):
            await context.find_originals(db, "talk", invalid)
