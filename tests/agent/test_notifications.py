"""Changes of another process are noticed at once by a notification, and by polling if notifications are lost.

Where a notification must do it, the polling intervals are an hour.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator

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
PROGRAM = """
import sys
from holdfast import SessionDB

db, leases = SessionDB(sys.argv[1]), {}
for line in sys.stdin:
    match line.split():
        case ["notice", talk]:
            db.mail.add_inbox_entry(talk, f"of {talk}", "built")
        case ["take", talk, purpose]:
            leases[talk] = db.acquire_lease(talk, purpose, "elsewhere", 300)
        case ["free", talk]:
            db.release_lease(leases.pop(talk))
    print("done", flush=True)
"""


class OtherProcess:
    """Another process that works on the same store; each test has its own conversation."""

    def __init__(self, address: str, process: subprocess.Popen[str]) -> None:
        self.address, self._process = address, process

    async def do(self, line: str) -> None:
        await asyncio.to_thread(self._do, line)

    def _do(self, line: str) -> None:
        print(line, file=self._process.stdin)
        assert self._process.stdout.readline() == "done\n"


@pytest.fixture(scope="module")
def other() -> Iterator[OtherProcess]:
    address = postgres.kept()
    command = [sys.executable, "-c", PROGRAM, address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        yield OtherProcess(address, process)


@contextlib.asynccontextmanager
async def listening(db: AsyncSessionDB) -> AsyncIterator[list[notifications.Hint]]:
    """Collect notifications, from when the connection listens."""
    received: list[notifications.Hint] = []
    with db.notifications.listen(received.append):
        await polling.until_async(lambda: received == [notifications.LOST])
        yield received


@pytest.mark.parametrize("notified", [True, False])
async def test_turn_follows_foreign_turn(notified: bool, other: OtherProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"turn-{notified}"
    if notified:
        monkeypatch.setattr(turn_lease, "MIN_POLL_SECONDS", HOUR)
        monkeypatch.setattr(turn_lease, "MAX_POLL_SECONDS", HOUR)
    else:
        monkeypatch.setattr(notifications, "decode", lambda *_: None)
    async with agents.store(other.address) as db:
        await db.create_session(name, source="test")
        await other.do(f"take {name} turn")
        seen: list[events.AnyEvent] = []
        agent = agents.agent(db, ScriptedModel(["Here."]), session_id=name)
        async with listening(db) as received:
            work = agent.run_conversation("Hello", emit=seen.append)
            waiting = await polling.start(work, lambda: "TurnQueued" in agents.kinds(seen))
            await other.do(f"free {name}")
            assert (await waiting).final_response == "Here."
            assert notified or received == [notifications.LOST]
        await agent.close()


@pytest.mark.parametrize("lost", [False, True])
async def test_inbox_entry_of_another_process_is_delivered_also_after_a_lost_connection(
    lost: bool, other: OtherProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation, application = f"notice-{lost}", f"deaf{os.getpid()}-{lost}"
    async with agents.store(f"{other.address}&application_name={application}") as db:
        await db.create_session(conversation, source="test")
        async with listening(db) as received, open_runtime(db, ScriptedModel(["Saw it."])) as run:
            with run.subscribe(conversation) as stream, monkeypatch.context() as patched:
                await polling.until_async(lambda: not run._inbox_checks)  # the inbox was empty
                if lost:
                    patched.setattr(notifications, "decode", lambda *_: None)
                await other.do(f"notice {conversation}")
                if lost:
                    assert postgres.admin().execute(LISTENERS, (application,)).fetchall() == [(True,)]
                    await polling.until_async(lambda: received == [notifications.LOST] * 2)
                finished = (await events_until(stream, events.TurnFinished))[-1].event
                assert finished.result.final_response == "Saw it."
        assert (notifications.Hint("came", conversation) in received) is not lost
