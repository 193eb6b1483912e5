"""Pins of people: what is told to be pinned stays over every compaction, and what could not stay is refused."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

import pytest

from holdfast import AIAgent, AsyncSessionDB, errors, events, types
from holdfast.agent.commands import context
from holdfast.compaction import base
from holdfast.compaction import hooks as telling
from holdfast.model import ScriptedModel, tokens
from holdfast.runtime import runtime
from tests.support import agents
from tests.support.compaction import WINDOW, FakeSummarizer, compacting_agent, fill
from tests.support.runtimes import run_command


def door(db: AsyncSessionDB, window: int = WINDOW) -> runtime.Runtime:
    async def build(conversation_id: str) -> AIAgent:
        model = ScriptedModel(["ok"] * 9, window=window)
        return agents.agent(db, model, session_id=conversation_id, summarizer=FakeSummarizer())

    return runtime.Runtime(db, build)


async def answer(run: runtime.Runtime, line: str, conversation: str = "talk") -> str:
    (event,) = await run_command(run, line, conversation)
    assert isinstance(event, events.Answer), event
    return event.text


async def refusal(run: runtime.Runtime, line: str) -> str:
    (event,) = await run_command(run, line)
    assert isinstance(event, events.Notice), event
    assert event.level == "error"
    return event.text


async def compacted(run: runtime.Runtime) -> events.Compacted:
    made = (await run_command(run, "/compact"))[-1]
    assert isinstance(made, events.Compacted), made
    return made


async def more(db: AsyncSessionDB, count: int = 30) -> None:
    for number in range(count):
        await db.append_message("talk", role="user", content=f"And pier {number}? " + "It is windy there. " * 20)
        await db.append_message("talk", role="assistant", content="It is closed.")


def seqs(messages: Sequence[types.Message]) -> list[int]:
    return [each.seq for each in messages]


async def test_what_was_pinned_stays_word_for_word_over_compactions_until_it_is_unpinned(db: AsyncSessionDB) -> None:
    await fill(db)
    (original,) = await db.transcript("talk", 8, 9)
    async with door(db) as run:
        assert (await answer(run, "/pin 9")).startswith("Pinned; every compaction keeps it: [9 user] Question 4")
        assert "Pinned, so kept: 1, 2, 9." in await answer(run, "/compact --preview")
        for _ in range(2):
            assert (await compacted(run)).cut_seq > 9
            assert original in (await db.context("talk")).messages
            await more(db)
        assert "no longer pinned" in await answer(run, "/unpin 9")
        await compacted(run)
        assert original not in (await db.context("talk")).messages
        assert seqs((await db.context("talk")).messages)[:2] == [1, 2]


async def test_pins_hold_for_compactions_beside_the_turns_too(db: AsyncSessionDB) -> None:
    await fill(db, exchanges=50)
    await db.pin("talk", 9)
    over = asyncio.Event()

    async def after(_: str) -> None:
        over.set()

    one = compacting_agent(db, hooks=telling.Hooks(after=(after,)))
    await one.run_conversation("Hello")
    await over.wait()
    context = await db.context("talk")
    assert context.cut_seq > 9
    assert 9 in seqs(context.messages)
    await one.close()


async def test_a_message_pinned_while_a_summary_is_written_does_not_go_into_it(db: AsyncSessionDB) -> None:
    await fill(db)

    async def meanwhile(request: base.SummaryRequest) -> str:
        if len(writer.requests) == 1:
            assert 9 in seqs(request.messages)
            await db.pin("talk", 9)
        return "In short. " + " ".join(request.must_keep)

    one = compacting_agent(db, writer := FakeSummarizer(meanwhile))
    assert (await one.compress_context()).outcome is base.Outcome.BUSY
    assert 9 in seqs((await db.context("talk")).messages)
    assert (await one.compress_context()).outcome is base.Outcome.COMPACTED
    assert 9 in seqs((await db.context("talk")).messages)


async def test_pin_alone_lists_and_last_is_the_last_message(db: AsyncSessionDB) -> None:
    async with door(db) as run:
        assert (await answer(run, "/pin")).startswith("No pinned messages.")
        await fill(db)
        assert (await answer(run, "/pin")).startswith("No pinned messages.")
        await answer(run, "/pin 5")
        assert "[80 assistant] Answer 39" in await answer(run, "/pin last")
        assert await answer(run, "/pin 5") == await answer(run, "/pin 5")
        lines = (await answer(run, "/pin")).splitlines()
        assert [line.split("]")[0] for line in lines] == ["[5 user", "[80 assistant"]
        assert all(len(line) <= 100 for line in lines)
        assert await answer(run, "/unpin 6") == "Message 6 is not pinned."
        await db.unpin("talk", 5)
        await compacted(run)
        await db.pin("talk", 5)  # by a program, which may
        assert "[5 user]" in (listed := await answer(run, "/pin"))
        assert re.search(r"^\[5 user\].*\(not in the context now\)$", listed, re.MULTILINE)


async def test_what_is_no_message_or_not_in_view_cannot_be_pinned(db: AsyncSessionDB) -> None:
    await fill(db)
    async with door(db) as run:
        await compacted(run)
        for wrong in ("0", "81", "999999999"):
            assert "numbered 1 to 80" in await refusal(run, f"/pin {wrong}")
        for wrong in ("x", "-3", "3-5", "1.5", "٣", "last one", "9" * 30):
            assert "/pin takes the number" in await refusal(run, f"/pin {wrong}")
            assert "/unpin takes the number" in await refusal(run, f"/unpin {wrong}")
        assert "/unpin N" in await refusal(run, "/unpin")
        epoch = (await db.snapshot("talk")).epoch
        assert "Message 9 is not in the context" in await refusal(run, "/pin 9")
        assert (await db.pins("talk"), (await db.snapshot("talk")).epoch) == ([], epoch)
        await answer(run, "/compact undo")
        await answer(run, "/pin 9")
        await compacted(run)
        assert 9 in seqs((await db.context("talk")).messages)


async def test_a_pin_that_would_not_stay_or_would_push_another_out_is_refused(db: AsyncSessionDB) -> None:
    await fill(db)
    await db.append_message("talk", role="user", content="It is windy there. " * 400)
    async with door(db) as run:
        said = await refusal(run, "/pin 81")
        assert "No space to pin message 81" in said
        pinned = []
        for seq in range(79, 20, -4):
            (event,) = await run_command(run, f"/pin {seq}")
            if isinstance(event, events.Notice):
                break
            pinned.append(seq)
        # The older one would have been served first: the newest is the one that would have had to go.
        assert "No space" in event.text  # type: ignore[union-attr]
        assert pinned
        assert seqs(await db.pins("talk")) == sorted(pinned)  # type: ignore[arg-type]
        await more(db)
        await compacted(run)
        assert set(pinned) <= set(seqs((await db.context("talk")).messages))


async def test_a_pinned_result_stays_with_its_call(db: AsyncSessionDB) -> None:
    await fill(db, 3)
    call = types.ToolCall("c", "look", {"at": "the sea"})
    await db.append_message("talk", role="user", content="Look.")
    await db.append_message("talk", role="assistant", tool_calls=[call])
    await db.append_message("talk", role="tool", content="It is blue.", tool_call_id="c")
    await more(db)
    async with door(db) as run:
        assert "[9 tool] It is blue." in await answer(run, "/pin 9")
        await compacted(run)
        assert {8, 9} <= set(seqs((await db.context("talk")).messages))


async def test_a_message_that_is_summed_up_while_it_is_looked_at_is_not_said_to_be_pinned(db: AsyncSessionDB) -> None:
    await fill(db)

    class Slow(tokens.Meter):
        """Others have the time to compact while it measures."""

        def of(self, message: types.Message) -> int:
            if not db.db.compactions("talk"):
                db.db.commit_compaction(db.db.snapshot("talk"), summary="s", cut_seq=40)
            return super().of(message)

    with pytest.raises(errors.InvalidArgument, match="Message 9 is not in the context"):
        await context.pin_message(compacting_agent(db, meter=Slow()), "9")
    assert await db.pins("talk") == []
