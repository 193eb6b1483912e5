"""Changes of another process are noticed at once by a notification, and by polling if notifications are lost.

Where a notification must do it, the polling intervals are an hour.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator

import pytest

from holdfast import AsyncSessionDB, events
from holdfast.agent import turn_lease
from holdfast.model import ScriptedModel
from holdfast.store import notifications
from tests.support import agents, polling, postgres
from tests.support.runtimes import events_until, open_runtime

HOUR = 3600.0
LISTENERS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s AND query LIKE 'LISTEN%%'"
)


@contextlib.asynccontextmanager
async def two_stores(name: str, application: str = "here") -> AsyncIterator[tuple[AsyncSessionDB, AsyncSessionDB]]:
    """Open one PostgreSQL store twice, as two processes would, with a conversation of this name."""
    address = postgres.kept()
    async with agents.store(f"{address}&application_name={application}") as db, agents.store(address) as other:
        await db.create_session(name, source="test")
        yield db, other


@contextlib.asynccontextmanager
async def listening(db: AsyncSessionDB) -> AsyncIterator[list[notifications.Hint]]:
    """Collect notifications, from when the connection listens."""
    received: list[notifications.Hint] = []
    with db.notifications.listen(received.append):
        await polling.until_async(lambda: received == [notifications.LOST])
        yield received


@pytest.mark.parametrize("notified", [True, False])
async def test_turn_follows_foreign_turn(notified: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"turn-{notified}"
    if notified:
        monkeypatch.setattr(turn_lease, "MIN_POLL_SECONDS", HOUR)
        monkeypatch.setattr(turn_lease, "MAX_POLL_SECONDS", HOUR)
    else:
        monkeypatch.setattr(notifications, "decode", lambda *_: None)
    async with two_stores(name) as (db, other):
        lease = await other.acquire_lease(name, "turn", "elsewhere", 300)
        seen: list[events.AnyEvent] = []
        agent = agents.agent(db, ScriptedModel(["Here."]), session_id=name)
        async with listening(db) as received:
            work = agent.run_conversation("Hello", emit=seen.append)
            waiting = await polling.start(work, lambda: "TurnQueued" in agents.kinds(seen))
            await other.release_lease(lease)
            assert (await waiting).final_response == "Here."
            assert notified or received == [notifications.LOST]
        await agent.close()


@pytest.mark.parametrize("lost", [False, True])
async def test_inbox_entry_arrives_also_after_a_lost_connection(lost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    conversation, application = f"notice-{lost}", f"deaf{os.getpid()}-{lost}"
    async with two_stores(conversation, application) as (db, other):
        async with listening(db) as received, open_runtime(db, ScriptedModel(["Saw it."])) as run:
            with run.subscribe(conversation) as stream, monkeypatch.context() as patched:
                await polling.until_async(lambda: not run._inbox_checks)  # the inbox was empty
                if lost:
                    patched.setattr(notifications, "decode", lambda *_: None)
                await other.mail.add_inbox_entry(conversation, f"of {conversation}", "built")
                if lost:
                    assert postgres.admin().execute(LISTENERS, (application,)).fetchall() == [(True,)]
                    await polling.until_async(lambda: received == [notifications.LOST] * 2)
                finished = (await events_until(stream, events.TurnFinished))[-1].event
                assert finished.result.final_response == "Saw it."
        assert (notifications.Hint("came", conversation) in received) is not lost
