"""A lock subsystem that fails in any way stops neither a compaction nor a turn, and lets no conversation fork."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast import AsyncSessionDB, SessionDB, errors
from holdfast.compaction import base, hooks
from holdfast.compaction.base import Outcome
from holdfast.model import ScriptedModel
from holdfast.store import leases, write_step
from tests.support import agents, backends, conversations, rival_agents
from tests.support.compaction import FakeSummarizer, compacting_agent, fill

MISSING = "missing"
FAILURES: tuple[Any, ...] = (
    *(AttributeError, TypeError, RuntimeError, OSError, KeyError),
    *(errors.LeasesUnavailable, MISSING),
)
TTL = 0.15


class Broken:
    """A call of the lock subsystem that raises, or is missing."""

    def __init__(self, how: Any) -> None:
        self._how = how
        self.asked = asyncio.Event()

    def __get__(self, *_: object) -> Any:
        if self._how == MISSING:
            self.asked.set()
            raise AttributeError("broken")
        return self._call

    async def _call(self, *_: object, **__: object) -> None:
        self.asked.set()
        raise self._how("broken")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize("name", ["begin_compaction", "renew_lease", "release_lease"])
@pytest.mark.parametrize("how", FAILURES)
async def test_compaction_stands_however_the_lock_fails(
    name: str, how: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = conversations.Clock()

    async with agents.store(clock=clock) as db:
        await fill(db)
        broken = Broken(how)
        monkeypatch.setattr(AsyncSessionDB, name, broken)

        async def outlive(request: base.SummaryRequest) -> str:
            await broken.asked.wait()
            clock.advance(2 * TTL)
            return "In short. " + " ".join(request.must_keep)

        one = compacting_agent(db, FakeSummarizer(outlive if name == "renew_lease" else None), lease_ttl=TTL)
        assert (await one.compress_context()).outcome is Outcome.COMPACTED
        assert (await one.compress_context()).outcome is Outcome.NOTHING_TO_DO
        assert broken.asked.is_set()
        assert len(await db.sessions("talk")) == 2
        monkeypatch.undo()
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize("name", ["acquire_lease", "begin_conversation", "renew_lease", "release_lease"])
@pytest.mark.parametrize("how", FAILURES)
async def test_turn_is_answered_however_the_lock_fails(
    name: str, how: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = conversations.Clock()

    async with agents.store(clock=clock) as db:
        broken = Broken(how)
        monkeypatch.setattr(AsyncSessionDB, name, broken)

        async def outlive(_: object) -> str:
            if name == "renew_lease":
                await broken.asked.wait()
                clock.advance(2 * TTL)
            return "done"

        model = ScriptedModel([agents.calls("outlive"), "One.", "Two."])
        one = agents.agent(db, model, session_id="talk", lease_ttl=TTL, tools=[agents.tool("outlive", outlive)])
        answers = [await one.run_conversation(text) for text in ("First", "Second")]
        assert [answer.final_response for answer in answers] == ["One.", "Two."]
        assert broken.asked.is_set()
        assert len(await db.transcript("talk")) == 6
        monkeypatch.undo()
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize("threads", [True, False], ids=["threads", "processes"])
@pytest.mark.parametrize("backend", backends.SHARED, ids=lambda backend: backend.name)
def test_of_two_agents_without_locks_one_compacts_and_both_answer(
    backend: backends.Backend, threads: bool, tmp_path: Path
) -> None:
    target = backend.target(tmp_path, "store")
    with SessionDB(target) as db:
        asyncio.run(_fill(db))
        parts = rival_agents.compete(str(target), threads)
        assert sorted(part.outcome for part in parts) == [Outcome.BUSY, Outcome.COMPACTED]
        assert [(part.completed, part.answer) for part in parts] == [(True, "ok")] * 2
        assert [session.ordinal for session in db.sessions("talk")] == [1, 2]
        assert sorted(message.role for message in db.transcript("talk")[80:]) == ["assistant"] * 2 + ["user"] * 2
        assert db.admin.fsck().ok


async def _fill(db: SessionDB) -> None:
    await fill(AsyncSessionDB(db))


def test_sync_calls_go_on_without_a_lock_and_still_refuse_bad_arguments(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with SessionDB(":memory:") as db:
        conversations.begin(db, "talk", "a")
        monkeypatch.delattr(leases.LeaseMixin, "acquire_lease")
        db.commit_compaction(db.begin_compaction("talk"), summary="gist", cut_seq=1)
        assert db.try_acquire_compression_lock("talk", "me")
        with pytest.raises(errors.InvalidArgument):
            db.begin_compaction("talk", ttl=-1)
        with pytest.raises(errors.NoSuchSession):
            db.begin_compaction("nobody")
        assert db.admin.fsck().ok
    (said,) = warnings(caplog)
    assert "AttributeError" in said
    assert "holdfast doctor" in said


@pytest.mark.parametrize("backend", backends.SHARED, ids=lambda backend: backend.name)
async def test_turns_and_compactions_survive_the_loss_of_the_lease_table_and_restore_it(
    backend: backends.Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_step, "RESTORE_PAUSE_SECONDS", 0.0)

    async with agents.store(str(backend.target(tmp_path, "store"))) as db:

        def lose(*_: object) -> str:
            backends.break_leases(db.db, "missing")
            return "In short."

        async def drop(_: object) -> str:
            return await asyncio.to_thread(lose)

        await fill(db)
        replies = [agents.calls("drop"), "One.", agents.calls("drop"), "Two.", "Three.", "Four."]
        one = agents.agent(db, ScriptedModel(replies), session_id="talk", tools=[agents.tool("drop", drop)])
        answers = [await one.run_conversation(text) for text in ("First", "Second", "Third")]
        assert [answer.final_response for answer in answers] == ["One.", "Two.", "Three."]
        assert await db.leases() == []
        assert (await compacting_agent(db, FakeSummarizer(drop)).compress_context()).outcome is Outcome.COMPACTED
        assert (await one.run_conversation("Fourth")).error is None
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


async def test_hooks_after_a_rotation_run_under_the_lease_and_one_that_hangs_is_stopped(db: AsyncSessionDB) -> None:
    await fill(db)
    seen, stuck = list[object](), agents.Stuck()

    async def look(head: str) -> None:
        assert (await db.head("talk")).id == head
        seen.append((await compacting_agent(db).compress_context(force=True)).outcome)

    async def note(_: str) -> None:
        seen.append(stuck.cancelled)

    # The limit of the first is the default: it reads the store, which may take a while on a busy machine.
    for how in (hooks.Hooks(after=(look,)), hooks.Hooks(after=(stuck, note), limit=0.2)):
        assert (await compacting_agent(db, hooks=how).compress_context(force=True)).outcome is Outcome.COMPACTED
        assert await db.leases() == []
    assert seen == [Outcome.BUSY, True]


async def test_lease_is_renewed_while_hooks_run_and_losing_it_then_changes_nothing() -> None:
    async with agents.store(clock=conversations.Clock()) as db:
        await fill(db)
        works, renewed = db.renew_lease, asyncio.Event()

        async def renew(lease: Any) -> None:
            await works(lease)
            await db.release_lease(lease)
            with pytest.raises(errors.LeaseLost):
                await works(lease)
            renewed.set()
            raise errors.LeaseLost

        async def wait(_: str) -> None:
            db.renew_lease = renew  # type: ignore[method-assign]
            await renewed.wait()

        made = await compacting_agent(
            db, hooks=hooks.Hooks(after=(wait,), limit=30.0), lease_ttl=TTL
        ).compress_context()
        assert (made.outcome, renewed.is_set()) == (Outcome.COMPACTED, True)
