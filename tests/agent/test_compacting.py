"""/compact: what it takes for a word of its own, what a preview tells, and who stops it."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import AIAgent, AsyncSessionDB, events
from holdfast.model import ScriptedModel
from holdfast.runtime import runtime
from tests.support import agents
from tests.support.compaction import WINDOW, FakeSummarizer, blocked_summary, fill
from tests.support.runtimes import events_until, run_command


def door(db: AsyncSessionDB, writer: FakeSummarizer) -> runtime.Runtime:
    async def build(conversation_id: str) -> AIAgent:
        return agents.agent(db, ScriptedModel(["ok"], window=WINDOW), session_id=conversation_id, summarizer=writer)

    return runtime.Runtime(db, build)


@pytest.mark.parametrize("line", ["preview", "Preview", "--PREVIEW"])
async def test_a_preview_may_be_asked_for_in_plain_words(line: str, db: AsyncSessionDB) -> None:
    await fill(db)
    async with door(db, writer := FakeSummarizer()) as run:
        assert await run_command(run, f"/compact {line}") == await run_command(run, "/compact --preview")
        assert await run_command(run, f"/compact {line} here 2") == await run_command(run, "/compact --preview here 2")
    assert (writer.requests, len(await db.sessions("talk"))) == ([], 1)


async def test_the_words_of_compact_are_the_same_in_capitals(db: AsyncSessionDB) -> None:
    await fill(db)
    async with door(db, writer := FakeSummarizer()) as run:
        _, made = await run_command(run, "/compact Here 3")
        assert isinstance(made, events.Compacted)
        assert made.cut_seq == 74
        (undone,) = await run_command(run, "/compact Undo")
        assert isinstance(undone, events.Answer)
        assert (await db.context("talk")).summary is None
        (redone,) = await run_command(run, "/compact REDO")
        assert isinstance(redone, events.Answer)
        assert (await db.context("talk")).summary is not None
    assert len(writer.requests) == 1


async def test_a_focus_keeps_its_capitals(db: AsyncSessionDB) -> None:
    await fill(db)
    async with door(db, writer := FakeSummarizer()) as run:
        await run_command(run, "/compact Preview of Pier 9")
    assert [request.focus for request in writer.requests] == ["Preview of Pier 9"]


@pytest.mark.parametrize("count", [1, 3, 30])
async def test_a_preview_of_here_tells_what_here_does(count: int, db: AsyncSessionDB) -> None:
    await fill(db)
    async with door(db, writer := FakeSummarizer()) as run:
        (plain,) = await run_command(run, "/compact --preview")
        (preview,) = await run_command(run, f"/compact --preview here {count}")
        _, made = await run_command(run, f"/compact here {count}")
    assert isinstance(preview, events.Answer)
    assert isinstance(made, events.Compacted)
    assert preview != plain
    going = len(writer.requests[0].messages)
    assert preview.text.startswith(f"{going} messages up to {made.cut_seq} ")


async def test_closing_stops_a_compaction_by_hand(db: AsyncSessionDB) -> None:
    await fill(db)
    stuck = agents.Stuck()
    run = door(db, FakeSummarizer(lambda _: stuck()))
    command = asyncio.create_task(run.send("talk", events.Command("/compact")))
    await stuck.reached.wait()
    await run.close()
    assert (await db.leases(), stuck.cancelled, len(await db.sessions("talk"))) == ([], True, 1)
    await command  # whoever sent it is not cancelled


async def test_closing_stops_a_command_whose_agent_is_still_being_built(db: AsyncSessionDB) -> None:
    await fill(db)
    building, go, writer = asyncio.Event(), asyncio.Event(), FakeSummarizer()

    async def build(conversation_id: str) -> AIAgent:
        building.set()
        await go.wait()
        return agents.agent(db, ScriptedModel([], window=WINDOW), session_id=conversation_id, summarizer=writer)

    run = runtime.Runtime(db, build)
    command = asyncio.create_task(run.send("talk", events.Command("/compact")))
    await building.wait()
    await run.close()
    go.set()
    await command
    assert (writer.requests, len(await db.sessions("talk"))) == ([], 1)


async def test_a_compact_beside_a_turn_that_compacts_comes_after_it(db: AsyncSessionDB) -> None:
    await fill(db, exchanges=90)
    slow, reached, go = blocked_summary()
    async with door(db, FakeSummarizer(slow)) as run:
        answered = run.submit("talk", events.Submit("Hello"))
        await reached.wait()
        with run.subscribe("talk") as listening:
            command = asyncio.create_task(run.send("talk", events.Command("/compact")))
            emitted = (await events_until(listening, events.Notice))[-1]
            assert isinstance(emitted.event, events.Notice)
            assert "Another compaction is running" in emitted.event.text
            go.set()
            await command
            listening.put(None)
            rest = [each.event async for each in listening]
        assert (await answered).completed
    assert not [event for event in rest if isinstance(event, events.Notice) and "process" in event.text]
