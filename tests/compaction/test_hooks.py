"""Hooks may be anybody's: they raise, cancel themselves and never end, and nothing waits for them or breaks."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import AsyncSessionDB, types
from holdfast.compaction import base
from holdfast.compaction import hooks as telling
from holdfast.compaction.base import Outcome
from tests.support import agents, conversations
from tests.support.compaction import FakeSummarizer, compacting_agent, fill


async def cancels_itself(_: str) -> None:
    raise asyncio.CancelledError


class Deaf:
    """A hook that does not even let itself be cancelled, until the test is over."""

    def __init__(self) -> None:
        self.over = asyncio.Event()

    async def __call__(self, _: str) -> None:
        while not self.over.is_set():
            try:
                await self.over.wait()
            except asyncio.CancelledError:
                continue


def hooked(when: str, *hooks: telling.Hook, limit: float = 10.0) -> telling.Hooks:
    return telling.Hooks(**{when: hooks}, limit=limit)  # type: ignore[arg-type]


@pytest.mark.parametrize("when", ["before", "after", "closing"])
async def test_a_hook_that_cancels_itself_cancels_nothing_else(
    when: str, caplog: pytest.LogCaptureFixture, db: AsyncSessionDB
) -> None:
    await fill(db)
    told: list[str] = []

    async def hook(session_id: str) -> None:
        told.append(session_id)

    one = compacting_agent(db, hooks=hooked(when, cancels_itself, hook))
    made = await one.compress_context()
    assert (made.outcome, one.session_id) == (Outcome.COMPACTED, made.session_id)
    await one.close()
    assert told == ["talk" if when == "before" else made.session_id]
    assert "a compaction hook cancelled itself" in caplog.text


@pytest.mark.parametrize("when", ["before", "after", "closing"])
async def test_a_hook_that_never_ends_is_stopped_and_the_next_one_told(
    when: str, caplog: pytest.LogCaptureFixture, db: AsyncSessionDB
) -> None:
    await fill(db)
    stuck, told = agents.Stuck(), list[str]()

    async def hook(session_id: str) -> None:
        told.append(session_id)

    one = compacting_agent(db, hooks=hooked(when, stuck, hook, limit=0.05))
    made = await one.compress_context()
    assert made.outcome is Outcome.COMPACTED
    await one.close()
    assert (stuck.cancelled, len(told)) == (True, 1)
    assert "was cancelled after 0.05 s" in caplog.text


async def test_a_hook_that_cannot_even_be_stopped_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, db: AsyncSessionDB
) -> None:
    monkeypatch.setattr(telling, "CANCEL_TIMEOUT", 0.05)

    await fill(db)
    deaf = Deaf()
    one = compacting_agent(db, hooks=telling.Hooks((deaf,), (deaf,), (deaf,), limit=0.05))
    assert (await one.compress_context()).outcome is Outcome.COMPACTED
    await one.close()
    deaf.over.set()


async def test_the_lease_is_kept_while_hooks_are_told() -> None:
    async with agents.store(clock=conversations.Clock()) as db:
        await fill(db)
        works, renewed = db.renew_lease, asyncio.Event()

        async def noted(lease: types.Lease) -> types.Lease:
            renewed.set()
            return await works(lease)

        async def slow(_: str) -> None:
            await renewed.wait()

        db.renew_lease = noted  # type: ignore[method-assign,assignment]
        made = await compacting_agent(db, hooks=hooked("before", slow), lease_ttl=0.3).compress_context()
        assert (made.outcome, made.model) == (Outcome.COMPACTED, "writer")


async def test_who_lost_the_lease_while_hooks_were_told_asks_no_model() -> None:
    async with agents.store(clock=conversations.Clock()) as db:
        await fill(db)
        stuck = agents.Stuck()
        one = compacting_agent(db, writer := FakeSummarizer(), hooks=hooked("before", stuck, limit=60.0), lease_ttl=0.3)
        attempt = asyncio.create_task(one.compress_context())
        await stuck.reached.wait()
        (held,) = await db.leases()
        await db.acquire_lease("talk", "compact", held.holder)
        assert (await attempt).outcome is Outcome.BUSY
        assert (stuck.cancelled, writer.requests) == (True, [])


async def test_who_stops_waiting_after_the_commit_has_moved_all_the_same(db: AsyncSessionDB) -> None:
    await fill(db)
    stuck = agents.Stuck()
    one = compacting_agent(db, hooks=hooked("after", stuck))
    attempt = asyncio.create_task(one.compress_context())
    await stuck.reached.wait()
    attempt.cancel()
    await asyncio.wait([attempt])
    assert (attempt.cancelled(), stuck.cancelled) == (True, True)
    assert one.session_id == (await db.head("talk")).id != "talk"
    assert tuple(await one.context_cache.messages()) == (await db.context("talk")).messages


async def test_a_model_is_asked_only_after_hooks_were_told(db: AsyncSessionDB) -> None:
    await fill(db)
    order: list[str] = []

    async def before(_: str) -> None:
        await asyncio.sleep(0)
        order.append("hook")

    def say(request: base.SummaryRequest) -> str:
        order.append("model")
        return "In short. " + " ".join(request.must_keep)

    await compacting_agent(db, FakeSummarizer(say), hooks=hooked("before", before)).compress_context()
    assert order == ["hook", "model"]
