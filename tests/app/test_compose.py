"""The program as it starts: maintenance of its store, notices, and the tools of its agents."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from holdfast import AIAgent, AsyncSessionDB, SessionDB, config, content_parts, errors, events, types
from holdfast.app import compose, process_records
from holdfast.model import ScriptedModel
from holdfast.runtime import runtime
from holdfast.store import store_meta
from holdfast.tools.shell import background
from tests.support import agents, conversations, mail, plugin_packages
from tests.support.polling import until_async
from tests.support.runtimes import events_until


async def test_start_reports_failed_backups(settings: config.Settings) -> None:
    with SessionDB(settings.database) as db:
        db.driver.write("meta", lambda tx: tx.run("meta_set", key=store_meta.BACKUP_FAILED, value="1000000.0"))
    async with compose.start(settings) as app:
        assert "`holdfast backup`" in str(app.notice)


async def test_attachments_are_collected_when_no_backup_can_be_made(settings: config.Settings, tmp_path: Path) -> None:
    with SessionDB(settings.database, clock=lambda: 1_000_000.0) as db:
        blob = db.blobs.put(b"left over")
    (tmp_path / "copies").touch()
    async with compose.start(settings) as app:
        with SessionDB(settings.database) as db:
            await until_async(lambda: db.blobs.get(blob.digest) is None)
            await until_async(lambda: db.admin.get_meta(store_meta.BACKUP_FAILED) is not None)
        assert app.notice is None


async def test_due_backup_is_made_while_the_program_runs(settings: config.Settings, tmp_path: Path) -> None:
    async with compose.start(settings):
        await until_async(lambda: list((tmp_path / "copies").glob("*.db")))
    assert len(list((tmp_path / "copies").glob("*.db"))) == 1


async def test_expired_mail_is_deleted_in_intervals_despite_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, failed = conversations.Clock(), list[str]()
    delete_expired = compose.delete_expired

    async def fail_once(store: AsyncSessionDB, days: float) -> None:
        if not failed:
            failed.append("busy")
            raise errors.StoreBusy()
        await delete_expired(store, days)

    monkeypatch.setattr(compose, "delete_expired", fail_once)
    async with agents.store(clock=clock) as db:
        task = asyncio.create_task(compose.run_maintenance(db, config.BackupSection(), 30.0, interval_seconds=0.01))
        for key in ("1", "2"):
            arrival, _ = await db.mail.add_inbound(mail.new(key))
            await db.mail.settle_inbound(None, arrival.id, "ignored")
            clock.advance(31 * conversations.DAY)
            async with asyncio.timeout(60):
                while await db.mail.inbound_by_key("far", key) is not None:
                    await asyncio.sleep(0.01)
        await compose.cancel(task)
    assert failed == ["busy"]


async def test_ended_processes_are_reported_before_the_first_answer(settings: config.Settings, tmp_path: Path) -> None:
    with SessionDB(settings.database) as db:
        db.append_message("talk", role="user", content="Begin.", create=types.NewConversation(source="test"))
        db.append_message("talk", role="assistant", content="Begun.")
        place = msgspec.json.encode(background.ProcessLocation(str(tmp_path / "none"), "", "")).decode()
        for name in ("p1", "p2"):
            process = conversations.process(name, "talk", "make")
            db.processes.record_start(msgspec.structs.replace(process, place=place))
    async with compose.start(settings) as app:
        await app.runtime.submit("talk", events.Submit("And?"))
        said = [content_parts.text(each.content) for each in await app.db.transcript("talk", 2) if each.role == "user"]
    assert ["p1 ended" in said[0], "p2 ended" in said[1], said[2]] == [True, True, "And?"]


async def test_slow_store_does_not_delay_the_start(tmp_path: Path) -> None:
    stuck = agents.Stuck()
    records = SimpleNamespace(every=stuck)
    processes = background.BackgroundProcesses(records, str(tmp_path), dict)  # type: ignore[arg-type]
    task = await compose.watch_processes(processes, timeout_seconds=0.01)
    assert stuck.cancelled
    await compose.cancel(task)


async def offered(settings: config.Settings, **changes: object) -> tuple[set[str], str | None]:
    """Return the tools of an agent that the program builds, and the notice at its start."""
    async with compose.start(msgspec.structs.replace(settings, **changes)) as app:
        agent = await app.runtime.agents.get("talk")
        return {spec.name for spec in agent.tools.specs}, app.notice


async def test_agent_has_its_own_tools_and_plug_in_tools(
    settings: config.Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for package, name in (("good", "weather"), ("sly", "memory")):
        source = plugin_packages.TOOL_SOURCE.format(name=name)
        plugin_packages.install_package(tmp_path, package, {"a": f":{name}"}, source)
    names, notice = await offered(settings)
    assert {"read_output", "memory", "weather"} <= names
    assert "plug-in sly" in str(notice)
    disabled = config.PluginsSection(disabled=["good", "sly"])
    names, notice = await offered(settings, plugins=disabled, memory=config.MemorySection(enabled=False))
    assert not {"weather", "memory"} & names
    assert notice is None


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
