"""What another process writes is known here at once by a hint, and no later than before where every hint is lost.

Where a test says that a hint did it, nothing else could have: whoever looks now and then looks after an hour.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from holdfast import AsyncSessionDB, SessionDB, events
from holdfast.agent import context_window, turn_lease
from holdfast.model import ScriptedModel
from holdfast.store import notifications
from holdfast.store.postgres import notify
from tests.support import agents, conversations, postgres
from tests.support.compaction import WINDOW, FakeSummarizer, fill
from tests.support.runtimes import events_until, open_runtime

HOUR = 3600.0

_ELSEWHERE = """
import sys
from holdfast import SessionDB

db, leases = SessionDB(sys.argv[1]), {}
for line in sys.stdin:
    match line.split():
        case ["say", talk]:
            db.append_message(talk, role="user", content="there")
        case ["notice", talk]:
            db.mail.add_inbox_entry(talk, f"of {talk}", "built")
        case ["take", talk, purpose]:
            leases[talk] = db.acquire_lease(talk, purpose, "elsewhere", 300)
        case ["free", talk]:
            db.release_lease(leases.pop(talk))
        case ["compact", talk]:
            db.commit_compaction(leases.pop(talk), summary="What they wrote.", cut_seq=170, child_id="theirs")
    print("done", flush=True)
"""

Elsewhere = Callable[[str], object]


@pytest.fixture(scope="module")
def process() -> Iterator[tuple[str, Elsewhere]]:
    """A store, and another process that does in it what it is told. Each test has a conversation of its own."""
    address = postgres.kept()
    command = [sys.executable, "-c", _ELSEWHERE, address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        asking, answering = other.stdin, other.stdout

        def do(line: str) -> None:
            print(line, file=asking)
            assert answering.readline() == "done\n"

        yield address, do
        asking.close()


@pytest.fixture
def address(process: tuple[str, Elsewhere]) -> str:
    return process[0]


@pytest.fixture
def elsewhere(process: tuple[str, Elsewhere]) -> Elsewhere:
    return process[1]


@contextlib.asynccontextmanager
async def hearing(db: AsyncSessionDB) -> AsyncIterator[list[notifications.Hint]]:
    """What is heard, from when something can be."""
    heard: list[notifications.Hint] = []
    with db.notifications.listen(heard.append):
        await soon(lambda: heard == [notifications.LOST])
        yield heard


async def soon(condition: Callable[[], object]) -> None:
    """For what another process or task brings about."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.002)


# --- by a hint -----------------------------------------------------------------------------------------


async def test_a_turn_begins_when_the_one_of_another_process_ends(
    address: str, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_lease, "MIN_POLL_SECONDS", HOUR)
    monkeypatch.setattr(turn_lease, "MAX_POLL_SECONDS", HOUR)

    async with agents.store(address) as db:
        await db.create_session("turn", source="test")
        await asyncio.to_thread(elsewhere, "take turn turn")
        seen: list[events.AnyEvent] = []
        agent = agents.agent(db, ScriptedModel(["Here."]), session_id="turn")
        async with hearing(db):
            waiting = asyncio.create_task(agent.run_conversation("Hello", emit=seen.append))
            await soon(lambda: "TurnQueued" in agents.kinds(seen))
            await asyncio.to_thread(elsewhere, "free turn")
            assert (await waiting).final_response == "Here."
        await agent.close()


async def test_a_turn_that_waits_for_room_goes_on_when_another_process_has_made_it(
    address: str, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context_window, "POLL_SECONDS", HOUR)

    async with agents.store(address) as db:
        await fill(db, exchanges=90, name="room")
        await asyncio.to_thread(elsewhere, "take room compact")
        looks, works = 0, db.get_compression_lock_holder

        async def looked(conversation_id: str) -> str | None:
            nonlocal looks
            found = await works(conversation_id)
            looks += 1
            return found

        db.get_compression_lock_holder = looked  # type: ignore[method-assign]
        model = ScriptedModel(["ok"], window=WINDOW)
        agent = agents.agent(db, model, session_id="room", summarizer=FakeSummarizer())
        async with hearing(db):
            waiting = asyncio.create_task(agent.run_conversation("Hello"))
            await soon(lambda: looks)
            await asyncio.to_thread(elsewhere, "compact room")
            assert (await waiting).session_id == "theirs"
        await agent.close()


async def test_a_notice_that_another_process_left_is_delivered_to_whoever_listens(
    address: str, elsewhere: Elsewhere
) -> None:
    async with agents.store(address) as db:
        await db.create_session("notice", source="test")
        async with hearing(db) as heard, open_runtime(db, ScriptedModel(["Saw it."])) as run:
            with run.subscribe("notice") as listening:
                await soon(lambda: not run._inbox_checks)  # it was empty when they came
                await asyncio.to_thread(elsewhere, "notice notice")
                finished = (await events_until(listening, events.TurnFinished))[-1].event
                assert isinstance(finished, events.TurnFinished)
                assert finished.result.final_response == "Saw it."
            assert notifications.Hint("came", "notice") in heard


async def test_what_came_in_while_nothing_could_be_heard_is_delivered_when_it_can_again(
    address: str, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"deaf{os.getpid()}"

    async with agents.store(f"{address}&application_name={name}") as db:
        await db.create_session("missed", source="test")
        async with hearing(db) as heard, open_runtime(db, ScriptedModel(["Saw it."])) as run:
            with run.subscribe("missed") as listening:
                await soon(lambda: not run._inbox_checks)
                with monkeypatch.context() as lost:
                    lost.setattr(notifications, "decode", lambda *_: None)
                    await asyncio.to_thread(elsewhere, "notice missed")
                    _cut(name)
                    await soon(lambda: heard == [notifications.LOST, notifications.LOST])
                    await events_until(listening, events.TurnFinished)


def _cut(name: str) -> None:
    """The connection that listens is lost."""
    find = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s AND query LIKE 'LISTEN%%'"
    )
    assert postgres.admin().execute(find, (name,)).fetchall() == [(True,)]


# --- with every hint lost ------------------------------------------------------------------------------


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is ever told anything; what is heard at the beginning says so."""
    monkeypatch.setattr(notify.Notifier, "notify", lambda *_: None)


@pytest.mark.usefixtures("silent")
async def test_without_hints_a_cached_agent_is_compared_when_it_is_asked_for() -> None:
    async with (
        agents.store(postgres.fresh()) as db,
        hearing(db) as heard,
        open_runtime(db, ScriptedModel(["One.", "Two."])) as run,
    ):
        await run.submit("talk", events.Submit("Hello"))
        with SessionDB(db.db.driver.target) as other:  # type: ignore[attr-defined]
            conversations.say(other, "talk", "there")
        agent = await run.agents.get("talk")
        assert agent.context_cache.mark is None
        await run.submit("talk", events.Submit("And?"))
        assert ("user", "there") in agents.shape(await agent.context_cache.messages())
        assert heard == [notifications.LOST]


@pytest.mark.usefixtures("silent")
async def test_without_hints_a_turn_begins_when_it_looks_next() -> None:
    async with agents.store(postgres.fresh()) as db:
        await db.create_session("talk", source="test")
        with SessionDB(db.db.driver.target) as other:  # type: ignore[attr-defined]
            lease = other.acquire_lease("talk", "turn", "elsewhere", 300)
            seen: list[events.AnyEvent] = []
            agent = agents.agent(db, ScriptedModel(["Here."]), session_id="talk")
            async with hearing(db) as heard:
                waiting = asyncio.create_task(agent.run_conversation("Hello", emit=seen.append))
                await soon(lambda: "TurnQueued" in agents.kinds(seen))
                other.release_lease(lease)
                assert (await waiting).final_response == "Here."
                assert heard == [notifications.LOST]
        await agent.close()


@pytest.mark.usefixtures("silent")
async def test_without_hints_a_turn_that_waits_for_room_goes_on_when_it_looks_next() -> None:
    async with agents.store(postgres.fresh()) as db:
        await fill(db, exchanges=90)
        with SessionDB(db.db.driver.target) as other:  # type: ignore[attr-defined]
            lease = other.acquire_lease("talk", "compact", "elsewhere", 300)
            model = ScriptedModel(["ok"], window=WINDOW)
            agent = agents.agent(db, model, session_id="talk", summarizer=FakeSummarizer())
            waiting = asyncio.create_task(agent.run_conversation("Hello"))
            await soon(lambda: db.notifications._handlers)
            other.commit_compaction(lease, summary="What they wrote.", cut_seq=170, child_id="theirs")
            assert (await waiting).session_id == "theirs"
        await agent.close()


@pytest.mark.usefixtures("silent")
async def test_without_hints_a_notice_waits_for_whoever_looks_next() -> None:
    async with agents.store(postgres.fresh()) as db:
        await db.create_session("talk", source="test")
        async with hearing(db) as heard, open_runtime(db, ScriptedModel(["Saw it."])) as run:
            with run.subscribe("talk") as listening:
                await soon(lambda: not run._inbox_checks)
                with SessionDB(db.db.driver.target) as other:  # type: ignore[attr-defined]
                    other.mail.add_inbox_entry("talk", "built", "built")
                run.check_inbox("talk")
                await events_until(listening, events.TurnFinished)
            assert heard == [notifications.LOST]
