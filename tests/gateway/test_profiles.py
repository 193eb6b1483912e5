"""One store has one profile: what came to another one is not worked on, and nobody serves both."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import AsyncSessionDB, errors, types
from holdfast.gateway import gateway, routes, runtimes, settings
from holdfast.model import ScriptedModel
from tests.support import gateways, memory_platform


def opened(db: AsyncSessionDB, make: runtimes.RuntimeFactory, profile: str) -> gateway.Gateway:
    return gateway.Gateway(
        db, make, [memory_platform.MemoryPlatform()], settings=settings.GatewaySettings(profile=profile, grace=0.0)
    )


@pytest.mark.parametrize("profile", ["main", "für alle", "50%"])
async def test_the_first_gateway_gives_a_store_its_profile_and_another_one_is_refused(
    profile: str, db: AsyncSessionDB
) -> None:
    make = gateways.make(db, ScriptedModel())
    for _ in range(2):
        async with opened(db, make, profile):
            pass
    with pytest.raises(errors.SettingInvalid) as refused:
        await opened(db, make, "other").__aenter__()
    assert errors.quote(profile) in str(refused.value)
    assert "HOLDFAST_DB" in str(refused.value)
    with pytest.raises(errors.InvalidArgument):
        await db.admin.set_meta("gateway_profile", "other")


async def test_of_two_that_start_at_once_with_different_profiles_one_is_refused(db: AsyncSessionDB) -> None:
    both = [opened(db, gateways.make(db, ScriptedModel()), profile) for profile in ("one", "two")]
    found = await asyncio.gather(*(each.__aenter__() for each in both), return_exceptions=True)
    refused = [isinstance(each, errors.SettingInvalid) for each in found]
    for each in both:
        await each.stop()
    assert sorted(refused) == [False, True]
    assert await db.admin.get_meta("gateway_profile") == ("one" if refused[1] else "two")


async def test_what_came_to_another_profile_is_left_alone(db: AsyncSessionDB) -> None:
    route = "agent:public:loopback:dm:eve"
    new = types.NewInboundMessage(
        platform="loopback", key="f1", route=route, chat="dm:eve", sender="eve", address={}, text="Hi"
    )
    foreign, _ = await db.mail.add_inbound(new)
    model = ScriptedModel(["Hello!"])
    async with gateways.open_gateway(db, model) as (running, chat):
        running.router.notify(route)
        await chat.say("Hi", key="1")
        await gateways.settled(db, "1")
        running.router.wake()
        await chat.say("/status", key="2")
        await gateways.settled(db, "2")
    left = await db.mail.inbound(foreign.id)
    assert left is not None
    assert (left.open, left.attempts, len(model.requests)) == (True, 0, 1)


def test_a_profile_is_not_another_one_that_begins_like_it() -> None:
    assert routes.has_profile("main", "agent:main:http:dm:ann")
    assert not routes.has_profile("main", "agent:main2:http:dm:ann")
    assert not routes.has_profile("main:http", "agent:main:http:dm:ann")
