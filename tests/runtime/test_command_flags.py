"""Flags of slash commands as the runtime applies them, and the end of a conversation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

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

    def note(name: str) -> Callable[[object], Awaitable[None]]:
        async def run_command(_: object) -> None:
            order.append(name)

        return run_command

    for name, command in (("compact", slow), *((each, note(each)) for each in ("status", "usage", "undo"))):
        changed = msgspec.structs.replace(registry.COMMANDS[name], run=command, needs=False)
        monkeypatch.setitem(registry.COMMANDS, name, changed)

    async with runtimes.open_runtime(db) as run:
        first = asyncio.create_task(run.send("talk", events.Command("/compact")))
        await begun.wait()
        behind = asyncio.create_task(run.send("talk", events.Command("/undo")))
        await run.send("talk", events.Command("/status"))
        await run.send("talk", events.Command("/usage"))
        assert not behind.done()
        finish.set()
        await asyncio.gather(first, behind)
        assert order == ["status", "usage", "slow", "undo"]
