"""Desks: one runtime for each owner, made once, kept while it is used."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from holdfast import AsyncSessionDB, errors, events
from holdfast.gateway import runtimes
from holdfast.model import ScriptedModel
from holdfast.runtime import runtime
from tests.support import conversations, gateways, polling
from tests.support.agents import Trickle


class Floor:
    """Desks that say what became of them."""

    def __init__(self, db: AsyncSessionDB, model: object = None, **given: object) -> None:
        self.made: list[str] = []
        self.closed: list[str] = []
        self.fails = 0
        inner = gateways.make(db, model or ScriptedModel(["ok"] * 9))  # type: ignore[arg-type]

        @asynccontextmanager
        async def make(owner: str) -> AsyncIterator[runtime.Runtime]:
            self.made.append(owner)
            await asyncio.sleep(0)
            if self.fails:
                self.fails -= 1
                raise errors.SettingInvalid("There is no such model.")
            async with inner(owner) as found:
                yield found
            self.closed.append(owner)

        self.runtimes = runtimes.RuntimePool(make, **given)  # type: ignore[arg-type]


async def test_an_owner_has_one_desk_however_many_come_at_once(db: AsyncSessionDB) -> None:
    floor = Floor(db)

    async def visit(owner: str) -> runtime.Runtime:
        async with floor.runtimes.use(owner) as found:
            return found

    seen = await asyncio.gather(*(visit(owner) for owner in "aabab"))
    assert sorted(floor.made) == ["a", "b"]
    assert len({id(each) for each in seen}) == 2
    assert {each.owner for each in seen} == {"a", "b"}
    await floor.runtimes.close()
    assert sorted(floor.closed) == ["a", "b"]


async def test_the_one_unused_for_longest_makes_room_and_none_that_is_in_use_does(db: AsyncSessionDB) -> None:
    slow = Trickle("Hm")
    floor = Floor(db, slow, max_runtimes=2)
    async with floor.runtimes.use("busy") as found:
        found.submit("talk", events.Submit("Hi"))
        await slow.stuck.reached.wait()
    for owner in ("a", "b", "c"):
        async with floor.runtimes.use(owner):
            pass
    await polling.until_async(lambda: _same(floor.closed, ["a", "b"]))
    assert len(floor.runtimes) == 2
    await floor.runtimes.close()


async def test_who_did_not_come_for_an_hour_has_no_desk_any_more(db: AsyncSessionDB) -> None:
    clock = conversations.Clock()
    floor = Floor(db, idle=3600.0, clock=clock)
    for owner, later in (("a", 3000), ("b", 601), ("c", 0)):
        async with floor.runtimes.use(owner):
            pass
        clock.advance(later)
    await polling.until_async(lambda: _same(floor.closed, ["a"]))
    await floor.runtimes.close()


async def test_a_desk_that_could_not_be_made_is_tried_again(db: AsyncSessionDB) -> None:
    floor = Floor(db)
    floor.fails = 1
    with pytest.raises(errors.SettingInvalid):
        async with floor.runtimes.use("a"):
            pass
    async with floor.runtimes.use("a") as found:
        assert found.owner == "a"
    await floor.runtimes.close()
    assert floor.closed == ["a"]


async def test_a_desk_that_cannot_be_made_now_is_asked_for_again_by_the_gateway(db: AsyncSessionDB) -> None:
    async with gateways.open_gateway(db, ScriptedModel(["At last."])) as (opened, chat):
        floor = Floor(db, ScriptedModel(["At last."]))
        floor.fails = 1
        opened.runtimes._factory = floor.runtimes._factory
        await chat.say("Hi", key="1")
        assert gateways.texts(await chat.replies(1)) == ["At last."]
        (found,) = await gateways.settled(db, "1")
    assert (found.attempts, floor.made) == (2, ["loopback:local"] * 2)


async def _same(one: list[str], other: list[str]) -> bool:
    return one == other
