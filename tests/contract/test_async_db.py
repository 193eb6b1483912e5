"""AsyncSessionDB: the methods of SessionDB awaited, and group commits of concurrent appends."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import pytest

from holdfast import AsyncSessionDB, NewConversation, SessionDB, errors, fault_points, types
from tests.support import async_stubs, conversations
from tests.support.backends import AtPoint, MakeDb


class Gate:
    """Counts the points that appends reach, and holds the next append at its commit until it is opened."""

    def __init__(self) -> None:
        self.passed: Counter[str] = Counter()
        self._is_holding = False
        self._reached = threading.Event()
        self._open = threading.Event()

    def __call__(self, point: str) -> None:
        self.passed[point] += 1
        if point == "append.committing" and self._is_holding:
            self._is_holding = False
            self._reached.set()
            assert self._open.wait(60)

    async def hold(self, adb: AsyncSessionDB, content: str = "held", **more: object) -> asyncio.Task[types.Receipt]:
        """Start an append and hold it at its commit."""
        self._is_holding = True
        task = append(adb, content, **more)
        await asyncio.to_thread(self._reached.wait, 20)
        return task

    def open(self) -> None:
        self._open.set()


@pytest.fixture
async def adb(db: SessionDB) -> AsyncIterator[AsyncSessionDB]:
    """A store with an empty conversation "talk"."""
    conversations.begin(db, "talk")
    adb = AsyncSessionDB(db)
    yield adb
    adb._pool.close()


@pytest.fixture
def gate(adb: AsyncSessionDB, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate()
    monkeypatch.setattr(fault_points, "hook", gate)
    yield gate
    gate.open()


def append(adb: AsyncSessionDB, content: str, **more: object) -> asyncio.Task[types.Receipt]:
    return asyncio.create_task(adb.append_message("talk", role="user", content=content, **more))


def texts(db: SessionDB) -> list[types.Content]:
    return conversations.contents(db.transcript("talk"))


async def run_pending() -> None:
    """Let tasks come as far as they can without the store."""
    for _ in range(4):
        await asyncio.sleep(0)


async def test_concurrent_appends_return_after_a_shared_commit(adb: AsyncSessionDB, db: SessionDB, gate: Gate) -> None:
    tasks = [await gate.hold(adb), *(append(adb, str(number)) for number in range(50))]
    await run_pending()
    assert not any(task.done() for task in tasks)
    gate.open()
    assert [receipt.seq for receipt in await asyncio.gather(*tasks)] == list(range(1, 52))
    assert gate.passed["append.committed"] == 2
    assert texts(db) == ["held", *map(str, range(50))]


async def test_refused_append_of_a_group_fails_alone(adb: AsyncSessionDB, db: SessionDB, gate: Gate) -> None:
    db.append_message("talk", role="user", content="x", uid="taken")
    conversations.begin(db, "gone", "a")
    db.delete_conversation("gone")
    before = gate.passed["append.committed"]
    appends = (
        adb.append_message("talk", role="user", content="good 1"),
        adb.append_message("talk", role="user", content="other", uid="taken"),
        adb.append_message("nobody", role="user", content="lost"),
        adb.append_message("gone", role="user", content="lost", create=NewConversation(source="s")),
        adb.append_messages("talk", [{"role": "user", "content": "half"}, {"role": "user", "uid": "taken"}]),
        adb.append_message("talk", role="user", content="good 2"),
    )
    tasks = [await gate.hold(adb), *map(asyncio.create_task, appends)]
    await run_pending()  # All fall into one group.
    gate.open()
    outcomes = [type(each).__name__ for each in await asyncio.gather(*tasks, return_exceptions=True)]
    assert outcomes[1:] == ["Receipt", "UidReused", "NoSuchSession", "ConversationDeleted", "UidReused", "Receipt"]
    # A server looks up the conversations of "nobody" and "gone", which may split the group in two.
    assert gate.passed["append.committed"] - before in ((2, 3) if db.driver.concurrent_writes else (2,))
    assert texts(db) == ["x", "held", "good 1", "good 2"]


@pytest.mark.parametrize("error", [errors.StoreFull(), errors.StoreBusy(), RuntimeError("unforeseen")])
async def test_failed_commit_is_raised_to_every_task_of_the_group(
    adb: AsyncSessionDB, db: SessionDB, at_point: AtPoint, error: Exception
) -> None:
    failures = [error]

    def fail_once(point: str) -> None:
        if point == "append.committing" and failures:
            raise failures.pop()

    at_point(fail_once)
    outcomes = await asyncio.gather(*(append(adb, "x") for _ in range(10)), return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {type(error)}
    assert texts(db) == []
    assert (await append(adb, "after")).seq == 1


async def test_cancelled_appends_are_stored_once(adb: AsyncSessionDB, db: SessionDB, gate: Gate) -> None:
    running = await gate.hold(adb, "running", uid="a")
    queued, other = append(adb, "queued", uid="b"), append(adb, "other", uid="c")
    await run_pending()
    queued.cancel()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(running, 0.01)
    gate.open()
    assert (await other).seq == 3
    with pytest.raises(asyncio.CancelledError):
        await queued
    assert texts(db) == ["running", "queued", "other"]
    again = await asyncio.gather(append(adb, "running", uid="a"), append(adb, "queued", uid="b"))
    assert [(receipt.seq, receipt.duplicate) for receipt in again] == [(1, True), (2, True)]


@pytest.mark.parametrize("moment", ["running", "queued", "just given"])
async def test_cancelling_all_tasks_of_the_loop_cancels_no_write(adb: AsyncSessionDB, gate: Gate, moment: str) -> None:
    others = asyncio.all_tasks()  # of the test runner
    given = [] if moment == "just given" else [await gate.hold(adb)]
    if moment != "running":
        given.append(append(adb, "queued"))

    def cancel_all() -> None:
        for task in asyncio.all_tasks() - others:
            task.cancel()

    if moment == "running":
        cancel_all()
    else:
        # The append is given to the store in the first step of its task.
        asyncio.get_running_loop().call_soon(cancel_all)
        await run_pending()
    gate.open()
    outcomes = await asyncio.gather(*given, return_exceptions=True)
    assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
    assert (await append(adb, "last")).seq == len(given) + 1


async def test_close_writes_all_given_appends(make_db: MakeDb, at_point: AtPoint) -> None:
    adb, gate = AsyncSessionDB(make_db()), Gate()
    conversations.begin(adb.db, "talk")
    at_point(gate)
    tasks = [await gate.hold(adb), *(append(adb, str(number)) for number in range(100))]
    await run_pending()
    cancelled = asyncio.create_task(adb.close())
    await run_pending()
    cancelled.cancel()
    closing = asyncio.create_task(adb.close())
    await run_pending()
    gate.open()
    await closing
    assert [task.result().seq for task in tasks] == list(range(1, 102))
    assert len(make_db().transcript("talk")) == 101


async def test_closed_store_refuses_every_call(make_db: MakeDb) -> None:
    db = make_db()
    async with AsyncSessionDB(db) as adb:
        await adb.create_session("talk", source="test")
    await adb.close()
    for call in (append(adb, "x"), adb.context("talk"), adb.append_messages("talk", []), adb.admin.fsck()):
        with pytest.raises(errors.StoreClosed):
            await call
    db.close()
    for call in (lambda: db.context("talk"), lambda: conversations.say(db, "talk", "a"), db.admin.fsck, db.admin.info):
        with pytest.raises(errors.StoreClosed):
            call()


async def test_reads_go_on_during_a_commit(make_db: MakeDb, at_point: AtPoint) -> None:
    async with AsyncSessionDB(make_db()) as adb:
        conversations.begin(adb.db, "talk", "a")
        gate = Gate()
        at_point(gate)
        waiting = await gate.hold(adb, "b")
        assert conversations.contents(await adb.context("talk")) == ["a"]
        gate.open()
        await waiting
        assert conversations.contents(await adb.context("talk")) == ["a", "b"]


def test_types_of_the_methods_are_up_to_date() -> None:
    assert async_stubs.PATH.read_text("utf-8") == async_stubs.generate(), "Run `python -m tests.support.async_stubs`."


async def test_overriding_method_is_called_each_time_and_may_call_the_overridden_one() -> None:
    calls = list[str]()

    class Recording(AsyncSessionDB):
        async def release_lease(self, lease: types.Lease) -> bool:
            calls.append(lease.conversation_id)
            return await super().release_lease(lease)

    async with Recording(SessionDB(":memory:")) as adb:
        await adb.create_session("talk", source="test")
        for _ in range(3):
            assert await adb.release_lease(await adb.acquire_lease("talk", "turn"))
    assert calls == ["talk"] * 3
