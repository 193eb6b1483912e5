"""Failing leases stop neither a compaction nor a turn, and cause no fork."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast import AsyncSessionDB, SessionDB, errors
from holdfast.compaction import base, hooks
from holdfast.compaction.base import Outcome
from holdfast.model import ScriptedModel
from holdfast.store import write_step
from tests.support import agents, backends, conversations
from tests.support.compaction import FakeSummarizer, brief_summary, compact, compacting_agent, fill

FAILURES: tuple[Any, ...] = (TypeError, OSError, errors.LeasesUnavailable, "missing")
TTL = 0.15


def break_call(error: Any, called: asyncio.Event) -> Any:
    """Return a method of the store that raises this, or that is missing."""

    def get(_: object) -> Any:
        called.set()
        raise AttributeError("broken")

    async def call(*_: object, **__: object) -> None:
        called.set()
        raise error("broken")

    return property(get) if error == "missing" else call


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize("name", ["begin_compaction", "renew_lease", "release_lease"])
@pytest.mark.parametrize("error", FAILURES)
async def test_compaction_succeeds_with_broken_leases(
    name: str, error: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, called = conversations.Clock(), asyncio.Event()

    async def outlive_lease(request: base.SummaryRequest) -> str:
        await called.wait()
        clock.advance(2 * TTL)
        return brief_summary(request)

    async with agents.store(clock=clock) as db:
        await fill(db)
        monkeypatch.setattr(AsyncSessionDB, name, break_call(error, called))
        agent = compacting_agent(db, FakeSummarizer(outlive_lease if name == "renew_lease" else None), lease_ttl=TTL)
        assert (await agent.compress_context()).outcome is Outcome.COMPACTED
        assert (await agent.compress_context()).outcome is Outcome.NOTHING_TO_DO
        assert called.is_set()
        assert len(await db.sessions("talk")) == 2
        monkeypatch.undo()
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize("name", ["acquire_lease", "begin_conversation", "renew_lease", "release_lease"])
@pytest.mark.parametrize("error", FAILURES)
async def test_turn_is_answered_with_broken_leases(
    name: str, error: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, called = conversations.Clock(), asyncio.Event()

    async def outlive_lease(_: object) -> str:
        if name == "renew_lease":
            await called.wait()
            clock.advance(2 * TTL)
        return "done"

    async with agents.store(clock=clock) as db:
        monkeypatch.setattr(AsyncSessionDB, name, break_call(error, called))
        model = ScriptedModel([agents.calls("outlive"), "One.", "Two."])
        tools = [agents.tool("outlive", outlive_lease)]
        agent = agents.agent(db, model, session_id="talk", lease_ttl=TTL, tools=tools)
        answers = [await agent.run_conversation(text) for text in ("First", "Second")]
        assert [answer.final_response for answer in answers] == ["One.", "Two."]
        assert called.is_set()
        assert len(await db.transcript("talk")) == 6
        monkeypatch.undo()
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize("backend", backends.SHARED, ids=lambda backend: backend.name)
async def test_lost_lease_table_is_restored_during_turns_and_compactions(
    backend: backends.Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_step, "RESTORE_PAUSE_SECONDS", 0.0)
    async with agents.store(str(backend.target(tmp_path, "store"))) as db:

        async def drop_table(_: object) -> str:
            await asyncio.to_thread(backends.break_leases, db.db, "missing")
            return "In short."

        await fill(db)
        replies: list[Any] = [agents.calls("drop"), "One.", agents.calls("drop"), "Two.", "Three.", "Four."]
        tools = [agents.tool("drop", drop_table)]
        agent = agents.agent(db, ScriptedModel(replies), session_id="talk", tools=tools)
        answers = [await agent.run_conversation(text) for text in ("First", "Second", "Third")]
        assert [answer.final_response for answer in answers] == ["One.", "Two.", "Three."]
        assert await db.leases() == []
        assert (await compact(db, drop_table)).outcome is Outcome.COMPACTED
        assert (await agent.run_conversation("Fourth")).error is None
        assert await db.leases() == []


def test_lost_lease_table_is_restored_at_most_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    repairs = list[bool]()
    with SessionDB(":memory:") as db:
        conversations.begin(db, "talk", "a")
        backends.break_leases(db, "missing")
        monkeypatch.setattr(db.driver, "repair_schema", lambda: repairs.append(True))
        for _ in range(3):
            with pytest.raises(errors.LeasesUnavailable):
                db.acquire_lease("talk", "turn")
    assert repairs == [True]


async def test_lease_is_held_and_renewed_during_hooks_and_losing_it_changes_nothing(
    still_talk: AsyncSessionDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    renew, renewed, seen = still_talk.renew_lease, asyncio.Event(), list[Outcome]()

    async def renew_and_lose(lease: Any) -> None:
        await renew(lease)
        await still_talk.release_lease(lease)
        renewed.set()
        raise errors.LeaseLost

    async def compact_again(head: str) -> None:
        assert (await still_talk.head("talk")).id == head
        seen.append((await compact(still_talk, force=True)).outcome)
        monkeypatch.setattr(still_talk, "renew_lease", renew_and_lose)
        await renewed.wait()

    chosen = hooks.Hooks(after=(compact_again,), limit=30.0)
    made = await compact(still_talk, hooks=chosen, lease_ttl=TTL)
    assert (made.outcome, seen, renewed.is_set()) == (Outcome.COMPACTED, [Outcome.BUSY], True)
    assert await still_talk.leases() == []
