"""A gateway that runs for long forgets what is over, beside its work."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import AsyncSessionDB, config, errors, types
from holdfast.app import compose
from tests.support import agents, conversations


async def settled(db: AsyncSessionDB, key: str) -> None:
    new = types.NewInboundMessage(platform="far", key=key, route="r", chat="1", sender="7", address={}, text="hi")
    arrival, _ = await db.mail.add_inbound(new)
    await db.mail.settle_inbound(None, arrival.id, "ignored")


async def test_it_is_done_after_the_start_and_again_and_what_fails_is_tried_the_next_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = conversations.Clock()
    monkeypatch.setattr(compose, "MAINTENANCE_INTERVAL", 0.01)
    monkeypatch.setattr(compose, "EXPIRY_PAUSE", 0.0)

    async with agents.store(clock=clock) as db:
        failed = list[str]()
        whole = compose.delete_expired

        async def once(store: AsyncSessionDB, days: float) -> None:
            if not failed:
                failed.append("busy")
                raise errors.StoreBusy()
            await whole(store, days)

        monkeypatch.setattr(compose, "delete_expired", once)
        task = asyncio.create_task(compose.run_maintenance(db, config.BackupSection(), 30.0))
        for key in ("1", "2"):
            await settled(db, key)
            clock.advance(31 * conversations.DAY)
            while await db.mail.inbound_by_key("far", key) is not None:
                await asyncio.sleep(0.01)
        await compose.cancel(task)
        assert failed == ["busy"]
