"""Background processes over a real store: the end of each is reported once to its conversation."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from holdfast import AIAgent, AsyncSessionDB, events, types
from holdfast.app import compose, process_records
from holdfast.model import ScriptedModel
from holdfast.runtime import runtime
from holdfast.tools.shell import background
from tests.support import agents, conversations
from tests.support.runtimes import events_until


async def test_end_of_a_process_is_reported_to_subscribers(tmp_path: Path) -> None:
    async with agents.store(str(tmp_path / "store.db")) as db:

        async def build(conversation_id: str) -> AIAgent:
            return agents.agent(db, ScriptedModel(["I see."]), session_id=conversation_id)

        await db.append_message("talk", role="user", content="Hi", create=types.NewConversation(source="test"))
        await db.append_message("talk", role="assistant", content="Hello.")
        running = runtime.Runtime(db, build)
        records = process_records.ProcessRecords(db, running.check_inbox)
        processes = background.BackgroundProcesses(records, str(tmp_path), lambda: {"PATH": os.environ["PATH"]})
        watcher = background.Watcher(processes, shortest=0.02, longest=0.05, idle=0.05)
        watching = asyncio.create_task(watcher.run())
        with running.subscribe("talk") as listening:
            await processes.start("talk", "echo so far so good; exit 3", str(tmp_path))
            seen = await events_until(listening, events.TurnFinished)
        await compose.cancel(watching)
        await running.close()
        (started,) = [each.event for each in seen if isinstance(each.event, events.TurnStarted)]
        assert started.notice == "process"
        assert "exited with code 3" in started.text
        assert "> so far so good" in started.text
        (row,) = await db.processes.all("talk")
        assert (row.state, row.exit_code) == ("exited", 3)
        assert await db.mail.inbox_entries() == []


async def test_end_recorded_by_another_program_is_noticed_once(db: AsyncSessionDB) -> None:
    await db.append_message("talk", role="user", content="Hello.", create=types.NewConversation(source="test"))
    came: list[str] = []
    records = process_records.ProcessRecords(db, came.append)
    for name in ("p1", "p2"):
        await db.processes.record_start(conversations.process(name, "talk", "make"))
    assert [each.id for each in await records.every(None, True)] == ["p1", "p2"]
    assert came == []
    await db.processes.record_end("p1", "exited", 0, "p1 ended")
    for _ in range(2):
        assert [each.id for each in await records.every(None, True)] == ["p2"]
        assert came == ["talk"]
