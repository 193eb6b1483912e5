"""Flags of slash commands as the runtime applies them, and the end of a conversation."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from holdfast import AsyncSessionDB, events
from holdfast.agent import commands
from holdfast.agent.commands import registry
from holdfast.runtime import runtime
from tests.support import runtimes


@pytest.mark.parametrize(
    ("line", "needs"),
    [("/model", False), ("/model a/b", True), ("/approve once", False), ("/approve 2 ALWAYS", True), ("hello", False)],
)
def test_commands_that_affect_others_need_an_admin(line: str, needs: bool) -> None:
    assert commands.needs_admin(line) is needs


async def test_admin_command_is_refused_to_other_users(db: AsyncSessionDB) -> None:
    async with runtimes.open_runtime(db) as run:
        with run.subscribe("talk") as stream:
            await run.send("talk", events.Command("/approve always"), is_admin=False)
            stream.put(None)
            assert [each.event async for each in stream] == [events.Notice(runtime.ADMINS_ONLY, "error")]


async def test_only_flagged_commands_run_concurrently(monkeypatch: pytest.MonkeyPatch, db: AsyncSessionDB) -> None:
    begun, finish, order = asyncio.Event(), asyncio.Event(), list[str]()

    async def slow(_: object) -> None:
        begun.set()
        await finish.wait()
        order.append("slow")

    async def note(_: object) -> None:
        order.append("status" if "status" not in order else "usage")

    for name, command in (("compact", slow), ("status", note), ("usage", note)):
        changed = msgspec.structs.replace(registry.COMMANDS[name], run=command, needs=False)
        monkeypatch.setitem(registry.COMMANDS, name, changed)

    async with runtimes.open_runtime(db) as run:
        first = asyncio.create_task(run.send("talk", events.Command("/compact")))
        await begun.wait()
        behind = asyncio.create_task(run.send("talk", events.Command("/usage")))
        await run.send("talk", events.Command("/status"))
        assert not behind.done()
        finish.set()
        await asyncio.gather(first, behind)
        assert order == ["status", "slow", "usage"]
