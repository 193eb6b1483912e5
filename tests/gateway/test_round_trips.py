"""The number of round trips to PostgreSQL per inbound message, from the platform to the delivered reply."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from holdfast import AsyncSessionDB, SessionDB
from holdfast.gateway import gateway
from holdfast.model import ScriptedModel
from holdfast.store.postgres import statements
from tests.support import gateways, memory_platform, polling, postgres

MAX_ROUND_TRIPS = 12
NOT_COUNTED = ("holdfast-listen", "holdfast-notify")
"""Threads that do not work on messages."""


async def is_delivered(opened: gateway.Gateway, chat: memory_platform.MemoryPlatform, messages: int) -> bool:
    """Return whether the gateway is idle, without a query, which would be counted."""
    (sender,) = opened.senders.values()
    return len(chat.sent) == messages and not opened.router.active and not sender._sending


async def test_inbound_message_takes_few_round_trips(monkeypatch: pytest.MonkeyPatch) -> None:
    executed, counts = list[Any](), list[int]()
    execute = statements.StatementExecutor.execute

    # The ROLLBACK after a read is not counted: its answer is fetched with the next request of the connection.
    def record(executor: statements.StatementExecutor, commands: Sequence[Any]) -> list[Any]:
        if not threading.current_thread().name.startswith(NOT_COUNTED):
            executed.append(commands)
        return execute(executor, commands)

    monkeypatch.setattr(statements.StatementExecutor, "execute", record)
    async with (
        AsyncSessionDB(SessionDB(postgres.fresh())) as db,
        gateways.open_gateway(db, ScriptedModel(["Yes."] * 20)) as (opened, chat),
    ):
        for number in range(10):
            executed.clear()
            await chat.say("Hi", key=str(number))
            await polling.until_async(partial(is_delivered, opened, chat, number + 1))
            counts.append(len(executed))
    # The first messages prepare statements.
    assert min(counts) <= MAX_ROUND_TRIPS, counts
