"""Which conversation a chat is in, and when it begins a new one."""

from __future__ import annotations

import pytest

from holdfast import AsyncSessionDB, types
from holdfast.gateway import routes, settings
from tests.gateway.test_gateway import ROUTE
from tests.support import conversations, gateways

HOUR = 3600.0


async def begun(db: AsyncSessionDB, name: str = "talk") -> None:
    await db.create_session(name, source="test")
    await db.append_message(name, role="user", content="Hi")


@pytest.mark.parametrize(
    ("policy", "silent", "anew"),
    [
        (settings.ResetPolicy(), 1000.0, False),
        (settings.ResetPolicy("idle", hours=2), 1.9, False),
        (settings.ResetPolicy("idle", hours=2), 2.0, True),
        (settings.ResetPolicy("daily", hour=4), 24.0, True),
    ],
)
async def test_a_chat_begins_anew_when_its_policy_says_so(
    policy: settings.ResetPolicy, silent: float, anew: bool
) -> None:
    clock = conversations.Clock()

    async with gateways.store(clock=clock) as db:
        await begun(db)
        await db.bind_route(ROUTE, "talk", version=0)
        clock.advance(silent * HOUR)
        found = await routes.RouteBindings(db, policy, clock).target(ROUTE)
        assert (found != "talk") is anew
        assert (await db.route(ROUTE)).conversation_id == (None if anew else "talk")
        assert (await db.conversation("talk")).live


async def test_a_chat_never_begins_anew_while_a_process_of_its_conversation_runs() -> None:
    clock = conversations.Clock()

    async with gateways.store(clock=clock) as db:
        await begun(db)
        await db.bind_route(ROUTE, "talk", version=0)
        process = types.Process(
            id="p1", conversation_id="talk", command="make", folder="/", started_at=clock.now, place="{}"
        )
        await db.processes.record_start(process)
        clock.advance(100 * HOUR)
        bound = routes.RouteBindings(db, settings.ResetPolicy("idle", hours=1), clock)
        assert await bound.target(ROUTE) == "talk"
        await db.processes.record_end("p1", "exited", 0, "It ended.")
        assert await bound.target(ROUTE) != "talk"


async def test_the_id_of_a_deleted_conversation_is_given_to_no_other(db: AsyncSessionDB) -> None:
    bound = routes.RouteBindings(db, settings.ResetPolicy(), db.db._clock)
    coming = await bound.target(ROUTE)
    await begun(db, coming)
    await db.delete_conversation(coming)
    assert await bound.target(ROUTE) != coming


async def test_who_was_to_begin_a_conversation_finds_the_one_that_took_its_route(db: AsyncSessionDB) -> None:
    bound = routes.RouteBindings(db, settings.ResetPolicy(), db.db._clock)
    coming = await bound.target(ROUTE)
    assert await bound.other_target(ROUTE, coming) is None
    await begun(db)
    await db.bind_route(ROUTE, "talk", version=0)
    assert await bound.other_target(ROUTE, coming) == "talk"
    assert await bound.other_target(ROUTE, "talk") is None
