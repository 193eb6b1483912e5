"""How many round trips to PostgreSQL one inbound message takes, from the platform to the delivered reply."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import psycopg
import pytest

from holdfast import AsyncSessionDB, SessionDB
from holdfast.gateway import gateway, loopback
from holdfast.model import ScriptedModel
from tests import postgres
from tests.gateway import stage

MAX_ROUND_TRIPS = 15
"""Of the message itself. NOTIFY is sent by a thread of its own, for several writes at once."""
NOT_COUNTED = ("holdfast-listen", "holdfast-notify")


class Counter:
    """Counts the waits for a server, in the threads that work on messages."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        wait = psycopg.Connection.wait

        def counted(connection: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._has_result(connection) and not threading.current_thread().name.startswith(NOT_COUNTED):
                self.count += 1
            return wait(connection, *args, **kwargs)

        monkeypatch.setattr(psycopg.Connection, "wait", counted)

    def _has_result(self, connection: Any) -> bool:
        """Whether the result has arrived already: that of a ROLLBACK which the last transaction did not wait for."""
        server = connection.pgconn
        if server.pipeline_status or server.transaction_status != psycopg.pq.TransactionStatus.ACTIVE:
            return False
        server.consume_input()
        return not server.is_busy()


async def delivered(opened: gateway.Gateway, chat: loopback.Loopback, messages: int) -> bool:
    """Whether nothing is under way; the store is not asked, as that would be counted."""
    (sender,) = opened.senders._each.values()
    return len(chat.sent) == messages and not opened.router.busy and not sender._sending


def test_inbound_message_takes_few_round_trips(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = list[int]()

    async def story() -> None:
        async with (
            AsyncSessionDB(SessionDB(postgres.fresh())) as db,
            stage.open_gateway(db, ScriptedModel(["Yes."] * 20)) as (opened, chat),
        ):
            for number in range(10):
                counter.count = 0
                await chat.say("Hi", key=str(number))
                await stage.until(partial(delivered, opened, chat, number + 1))
                counts.append(counter.count)

    counter = Counter(monkeypatch)
    asyncio.run(story())
    # The first messages prepare statements, and the router looks for missed messages once a second.
    assert min(counts) <= MAX_ROUND_TRIPS, counts
