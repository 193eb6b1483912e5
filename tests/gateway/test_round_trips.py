"""How many round trips to PostgreSQL one inbound message takes, from the platform to the delivered reply."""

from __future__ import annotations

from functools import partial

import pytest

from holdfast import AsyncSessionDB, SessionDB
from holdfast.gateway import gateway
from holdfast.model import ScriptedModel
from tests.support import gateways, memory_platform, polling, postgres, round_trips

MAX_ROUND_TRIPS = 12
"""Of the message itself. NOTIFY is sent by a thread of its own, for several writes at once."""


async def delivered(opened: gateway.Gateway, chat: memory_platform.MemoryPlatform, messages: int) -> bool:
    """Whether nothing is under way; the store is not asked, as that would be counted."""
    (sender,) = opened.senders.values()
    return len(chat.sent) == messages and not opened.router.active and not sender._sending


async def test_inbound_message_takes_few_round_trips(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = list[int]()

    counter = round_trips.Counter(monkeypatch)
    async with (
        AsyncSessionDB(SessionDB(postgres.fresh())) as db,
        gateways.open_gateway(db, ScriptedModel(["Yes."] * 20)) as (opened, chat),
    ):
        for number in range(10):
            counter.count = 0
            await chat.say("Hi", key=str(number))
            await polling.until_async(partial(delivered, opened, chat, number + 1))
            counts.append(counter.count)
    # The first messages prepare statements, and the router looks for missed messages once a second.
    assert min(counts) <= MAX_ROUND_TRIPS, counts
