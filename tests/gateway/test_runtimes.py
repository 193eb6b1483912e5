"""The runtime pool has one runtime for each owner and closes those that are unused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast import AsyncSessionDB, errors, events
from holdfast.gateway import routes, runtimes
from holdfast.model import ScriptedModel
from holdfast.runtime import runtime
from tests.support import conversations, gateways
from tests.support.agents import Trickle
from tests.support.polling import until_async


class Pool(runtimes.RuntimePool):
    """A pool that records the owners whose runtimes were opened and closed; the first `fails` fail."""

    def __init__(self, db: AsyncSessionDB, model: Any = None, *, fails: int = 0, **given: Any) -> None:
        self.opened, self.closed = list[str](), list[str]()
        factory = gateways.runtime_factory(db, model or ScriptedModel(["At last."] * 9))

        @asynccontextmanager
        async def open_runtime(principal: routes.Principal) -> AsyncIterator[runtime.Runtime]:
            self.opened.append(principal.owner)
            await asyncio.sleep(0)
            if len(self.opened) <= fails:
                raise errors.SettingInvalid("There is no such model.")
            async with factory(principal) as found:
                yield found
            self.closed.append(principal.owner)

        self.open_runtime = open_runtime
        super().__init__(open_runtime, **given)

    async def visit(self, owner: str) -> runtime.Runtime:
        async with self.use(routes.Principal(owner, owner)) as found:
            return found


async def test_owner_has_one_runtime_also_when_it_is_used_concurrently(db: AsyncSessionDB) -> None:
    pool = Pool(db)
    seen = await asyncio.gather(*(pool.visit(owner) for owner in "aabab"))
    assert sorted(pool.opened) == ["a", "b"]
    assert len({id(each) for each in seen}) == 2
    assert [each.owner for each in seen] == list("aabab")
    await pool.close()
    assert sorted(pool.closed) == ["a", "b"]


async def test_full_pool_closes_the_least_recently_used_idle_runtime(db: AsyncSessionDB) -> None:
    slow = Trickle("Hm")
    pool = Pool(db, slow, max_runtimes=2)
    (await pool.visit("busy")).submit("talk", events.Submit("Hi"))
    await slow.stuck.reached.wait()
    for owner in ("a", "b", "c"):
        await pool.visit(owner)
    await until_async(lambda: pool.closed == ["a", "b"])
    assert len(pool) == 2
    await pool.close()


async def test_runtime_that_was_idle_for_an_hour_is_closed(db: AsyncSessionDB) -> None:
    clock = conversations.Clock()
    pool = Pool(db, idle=3600.0, clock=clock)
    for owner, later in (("a", 3000), ("b", 601), ("c", 0)):
        await pool.visit(owner)
        clock.advance(later)
    await until_async(lambda: pool.closed == ["a"])
    assert len(pool) == 2
    await pool.close()


async def test_runtime_that_failed_to_open_is_opened_again(db: AsyncSessionDB) -> None:
    pool = Pool(db, fails=1)
    with pytest.raises(errors.SettingInvalid):
        await pool.visit("a")
    assert (await pool.visit("a")).owner == "a"
    await pool.close()
    assert pool.closed == ["a"]
