"""AsyncSessionDB: the same names awaited, and appends of many tasks that share their commits."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

import pytest

from holdfast import AsyncSessionDB, NewConversation, SessionDB, errors, fault_points, types
from holdfast.store import async_db, notifications
from tests.contract.conftest import MakeDb
from tests.support import backends, conversations

# What only the bridge itself uses, or is.
INSIDE = {"driver", "db", "run", "share"}


def run(story: Callable[[AsyncSessionDB], Awaitable[object]], db: SessionDB) -> None:
    """Tell a story with a bridge over this store; none of them may take for ever."""

    async def told() -> None:
        adb = AsyncSessionDB(db)
        try:
            async with asyncio.timeout(60):
                await story(adb)
        finally:
            adb._pool.close()

    asyncio.run(told())


class Gate:
    """Counts the write transactions of appends, and can hold the next one at a point until it is opened."""

    def __init__(self) -> None:
        self.passed: Counter[str] = Counter()
        self._held: str | None = None
        self.reached = threading.Event()
        self._open = threading.Event()

    def __call__(self, point: str) -> None:
        self.passed[point] += 1
        if point == self._held:
            self._held = None
            self.reached.set()
            assert self._open.wait(60)

    def hold(self, point: str) -> None:
        self._held = point

    def open(self) -> None:
        self._open.set()

    async def is_reached(self) -> None:
        await asyncio.to_thread(self.reached.wait, 20)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate()
    monkeypatch.setattr(fault_points, "hook", gate)
    yield gate
    gate.open()


def append(adb: AsyncSessionDB, content: str, **more: object) -> asyncio.Task[types.Receipt]:
    return asyncio.create_task(adb.append_message("talk", role="user", content=content, **more))


async def queued(count: int = 1) -> None:
    """Let tasks come as far as they can without the store."""
    for _ in range(3 + count):
        await asyncio.sleep(0)


# --- the same names --------------------------------------------------------------------------------------


def test_both_have_the_same_public_names() -> None:
    def names(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")} - INSIDE

    assert names(AsyncSessionDB) == names(SessionDB)


@pytest.mark.parametrize("name", ["append_message", "append_messages"])
def test_appends_take_the_same_arguments(name: str) -> None:
    ours, theirs = (inspect.signature(getattr(kind, name)) for kind in (AsyncSessionDB, SessionDB))
    assert ours.parameters == theirs.parameters


def test_every_name_does_what_its_namesake_does(db: SessionDB) -> None:
    async def story(adb: AsyncSessionDB) -> None:
        await adb.create_session("talk", source="test", title="T")
        receipts = await adb.append_messages("talk", [{"role": "user", "content": text} for text in "abc"])
        assert [receipt.seq for receipt in receipts] == [1, 2, 3]
        lease = await adb.acquire_lease("talk", "compact")
        await adb.renew_lease(lease)
        child = await adb.commit_compaction(lease, summary="gist", cut_seq=2)
        assert conversations.contents(await adb.context("talk")) == ["gist", "c"]
        await adb.undo_compaction("talk")
        await adb.hide("talk", 3)
        assert conversations.contents(await adb.context("talk", upto=2)) == ["a", "b"]
        assert (await adb.head("talk")).id == child.id
        assert await adb.try_acquire_compression_lock("talk", "me")
        assert await adb.append_messages("talk", []) == []
        assert (await adb.admin.fsck()).ok

    run(story, db)


def test_errors_reach_the_one_who_asked(db: SessionDB) -> None:
    async def story(adb: AsyncSessionDB) -> None:
        for call in (adb.context("nobody"), adb.append_message("nobody", role="user"), adb.resume("nobody")):
            with pytest.raises(errors.NoSuchSession):
                await call
        with pytest.raises(errors.InvalidArgument):
            await adb.append_message("nobody", role="user", content=5)

    run(story, db)


# --- shared commits -----------------------------------------------------------------------------------------


def test_concurrent_appends_share_commits(db: SessionDB, gate: Gate) -> None:
    conversations.begin(db, "talk")

    async def story(adb: AsyncSessionDB) -> None:
        before = gate.passed["append.committed"]
        receipts = await asyncio.gather(*(append(adb, str(number)) for number in range(200)))
        assert sorted(receipt.seq for receipt in receipts) == list(range(1, 201))
        assert gate.passed["append.committed"] - before <= 5
        assert sorted(map(int, conversations.contents(db.transcript("talk")))) == list(range(200))

    run(story, db)


def test_append_is_acknowledged_only_after_its_commit(db: SessionDB, gate: Gate) -> None:
    conversations.begin(db, "talk")

    async def story(adb: AsyncSessionDB) -> None:
        gate.hold("append.committing")
        waiting = [append(adb, str(number)) for number in range(3)]
        await gate.is_reached()
        await queued()
        assert not any(task.done() for task in waiting)
        gate.open()
        await asyncio.gather(*waiting)

    run(story, db)


def test_what_arrives_during_a_commit_shares_the_next_one(db: SessionDB, gate: Gate) -> None:
    conversations.begin(db, "talk")

    async def story(adb: AsyncSessionDB) -> None:
        gate.hold("append.committing")
        first = append(adb, "first")
        await gate.is_reached()
        rest = [append(adb, str(number)) for number in range(50)]
        await queued()
        gate.open()
        await asyncio.gather(first, *rest)
        assert gate.passed["append.committed"] == 2

    run(story, db)


def test_each_tasks_messages_stay_in_its_order(db: SessionDB) -> None:
    conversations.begin(db, "talk")

    async def task(adb: AsyncSessionDB, name: int) -> list[int]:
        return [(await append(adb, f"{name}:{number}")).seq for number in range(20)]

    async def story(adb: AsyncSessionDB) -> None:
        seqs = await asyncio.gather(*(task(adb, name) for name in range(8)))
        assert all(own == sorted(own) for own in seqs)

    run(story, db)
    for name in range(8):
        mine = [text for text in conversations.contents(db.transcript("talk")) if text.startswith(f"{name}:")]
        assert mine == [f"{name}:{number}" for number in range(20)]


def test_unawaited_appends_of_one_task_are_written_in_order(db: SessionDB) -> None:
    conversations.begin(db, "talk")

    async def story(adb: AsyncSessionDB) -> None:
        await asyncio.gather(*(append(adb, str(number)) for number in range(300)))

    run(story, db)
    assert conversations.contents(db.transcript("talk")) == [str(number) for number in range(300)]


def test_batch_stays_together_in_a_group(db: SessionDB) -> None:
    conversations.begin(db, "talk")

    async def story(adb: AsyncSessionDB) -> None:
        batches = [[{"role": "user", "content": f"{name}{number}"} for number in range(4)] for name in "abcdef"]
        receipts = await asyncio.gather(*(adb.append_messages("talk", batch) for batch in batches))
        for batch in receipts:
            assert [receipt.seq for receipt in batch] == list(range(batch[0].seq, batch[0].seq + 4))

    run(story, db)


# --- one bad append -----------------------------------------------------------------------------------------


async def together(adb: AsyncSessionDB, gate: Gate, *appends: Coroutine[Any, Any, object]) -> list[object]:
    """Give appends to the store such that they all fall into one group; what became of each."""
    gate.hold("append.committing")
    first = append(adb, "first")
    await gate.is_reached()
    group = [asyncio.create_task(each) for each in appends]
    await queued()
    gate.open()
    await first
    return await asyncio.gather(*group, return_exceptions=True)


def test_bad_append_in_a_group_fails_alone(db: SessionDB, gate: Gate) -> None:
    conversations.begin(db, "talk")
    db.append_message("talk", role="user", content="x", uid="taken")
    conversations.begin(db, "gone", "a")
    db.delete_conversation("gone")
    before = gate.passed["append.committed"]

    async def story(adb: AsyncSessionDB) -> None:
        outcomes = await together(
            adb,
            gate,
            adb.append_message("talk", role="user", content="good 1"),
            adb.append_message("talk", role="user", content="other", uid="taken"),
            adb.append_message("nobody", role="user", content="lost"),
            adb.append_message("gone", role="user", content="lost", create=NewConversation(source="s")),
            adb.append_messages("talk", [{"role": "user", "content": "half"}, {"role": "user", "uid": "taken"}]),
            adb.append_message("talk", role="user", content="good 2"),
        )
        kinds = [type(outcome).__name__ for outcome in outcomes]
        assert kinds == ["Receipt", "UidReused", "NoSuchSession", "ConversationDeleted", "UidReused", "Receipt"]
        # A server looks up the conversations of "nobody" and "gone", which may split the group in two.
        assert gate.passed["append.committed"] - before in ((2, 3) if db.driver.concurrent_writes else (2,))

    run(story, db)
    assert conversations.contents(db.transcript("talk")) == ["x", "first", "good 1", "good 2"]


def test_append_with_a_lease_that_cannot_be_looked_up_fails_alone(db: SessionDB, gate: Gate) -> None:
    conversations.begin(db, "talk")
    lease = db.acquire_lease("talk", "turn")
    backends.break_leases(db, "missing")

    async def story(adb: AsyncSessionDB) -> None:
        outcomes = await together(
            adb,
            gate,
            adb.append_message("talk", role="user", content="free"),
            adb.append_message("talk", role="user", content="fenced", lease=lease),
        )
        assert [type(outcome).__name__ for outcome in outcomes] == ["Receipt", "LeasesUnavailable"]

    run(story, db)


def test_same_uid_from_many_tasks_is_one_message(db: SessionDB) -> None:
    conversations.begin(db, "talk")

    async def story(adb: AsyncSessionDB) -> None:
        receipts = await asyncio.gather(*(append(adb, "x", uid="u") for _ in range(20)))
        assert {receipt.seq for receipt in receipts} == {1}
        assert sum(not receipt.duplicate for receipt in receipts) == 1

    run(story, db)


@pytest.mark.parametrize("error", [errors.StoreFull(), errors.StoreBusy(), RuntimeError("unforeseen")])
def test_failed_commit_reaches_everybody_in_the_group(db: SessionDB, gate: Gate, error: Exception) -> None:
    conversations.begin(db, "talk")

    async def story(adb: AsyncSessionDB) -> None:
        fail_once = iter([error])

        def fail(point: str) -> None:
            if point == "append.committing":
                for trouble in fail_once:
                    raise trouble

        fault_points.hook = fail
        outcomes = await asyncio.gather(*(append(adb, "x") for _ in range(10)), return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {type(error)}
        assert db.transcript("talk") == []
        assert (await append(adb, "after")).seq == 1

    run(story, db)


# --- cancelling ----------------------------------------------------------------------------------------------


def test_cancelled_waiter_loses_and_doubles_nothing(db: SessionDB, gate: Gate) -> None:
    conversations.begin(db, "talk")

    async def story(adb: AsyncSessionDB) -> None:
        gate.hold("append.committing")
        under_way = append(adb, "under way", uid="a")
        await gate.is_reached()
        in_line, other = append(adb, "in line", uid="b"), append(adb, "other", uid="c")
        await queued()
        under_way.cancel()
        in_line.cancel()
        gate.open()
        assert (await other).seq == 3
        for task in (under_way, in_line):
            with pytest.raises(asyncio.CancelledError):
                await task
        assert conversations.contents(db.transcript("talk")) == ["under way", "in line", "other"]
        again = await asyncio.gather(append(adb, "under way", uid="a"), append(adb, "in line", uid="b"))
        assert [(receipt.seq, receipt.duplicate) for receipt in again] == [(1, True), (2, True)]

    run(story, db)


def test_timeout_of_a_waiter_is_a_cancelled_waiter(db: SessionDB, gate: Gate) -> None:
    conversations.begin(db, "talk")

    async def story(adb: AsyncSessionDB) -> None:
        gate.hold("append.committing")
        waiter = append(adb, "x")
        await gate.is_reached()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(waiter, 0.01)
        gate.open()
        assert (await append(adb, "y")).seq == 2

    run(story, db)


@pytest.mark.parametrize("moment", ["running", "waiting", "just given"])
def test_cancelling_all_tasks_of_the_loop_cancels_no_write(db: SessionDB, gate: Gate, moment: str) -> None:
    conversations.begin(db, "talk")

    async def story(adb: AsyncSessionDB) -> None:
        given = []
        if moment != "just given":
            gate.hold("append.committing")
            given.append(append(adb, "running"))
            await gate.is_reached()
        if moment != "running":
            given.append(append(adb, "waiting"))
            # The append is given to the store in the first step of its task.
            asyncio.get_running_loop().call_soon(cancel_others, asyncio.current_task())
            await queued()
        else:
            cancel_others(asyncio.current_task())
        gate.open()
        assert (await append(adb, "last")).seq == len(given) + 1
        assert all(
            isinstance(each, asyncio.CancelledError) for each in await asyncio.gather(*given, return_exceptions=True)
        )
        await adb.close()

    def cancel_others(current: asyncio.Task[Any] | None) -> None:
        for task in asyncio.all_tasks():
            if task is not current:
                task.cancel()

    run(story, db)


# --- closing ---------------------------------------------------------------------------------------------------


def test_close_writes_what_was_given(make_db: MakeDb, gate: Gate) -> None:
    db = make_db()
    conversations.begin(db, "talk")

    async def story(adb: AsyncSessionDB) -> None:
        gate.hold("append.committing")
        tasks = [append(adb, "first")]
        await gate.is_reached()
        tasks += [append(adb, str(number)) for number in range(300)]
        await queued()
        closing = asyncio.create_task(adb.close())
        await queued()
        gate.open()
        await closing
        assert [task.result().seq for task in tasks] == list(range(1, 302))

    run(story, db)
    assert len(make_db().transcript("talk")) == 301


def test_cancelled_close_cancels_no_append(db: SessionDB, gate: Gate) -> None:
    conversations.begin(db, "talk")

    async def story(adb: AsyncSessionDB) -> None:
        gate.hold("append.committing")
        task = append(adb, "x")
        await gate.is_reached()
        closing = asyncio.create_task(adb.close())
        await queued()
        closing.cancel()
        await queued()
        gate.open()
        assert (await task).seq == 1

    run(story, db)


def test_closed_store_says_so_and_keeps_nobody_waiting(make_db: MakeDb) -> None:
    db = make_db()
    conversations.begin(db, "talk")

    async def story(adb: AsyncSessionDB) -> None:
        await adb.close()
        await adb.close()
        for call in (append(adb, "x"), adb.context("talk"), adb.append_messages("talk", []), adb.admin.fsck()):
            with pytest.raises(errors.StoreClosed):
                await call

    run(story, db)


def test_leaving_the_block_closes_the_store(make_db: MakeDb) -> None:
    db = make_db()

    async def story(adb: AsyncSessionDB) -> None:
        async with adb as entered:
            await entered.create_session("talk", source="test")
        with pytest.raises(errors.StoreClosed):
            db.context("talk")

    run(story, db)


def test_reads_go_on_while_a_commit_waits_for_the_disk(make_db: MakeDb, gate: Gate) -> None:
    db = make_db()
    conversations.begin(db, "talk", "a")

    async def story(adb: AsyncSessionDB) -> None:
        gate.hold("append.committing")
        waiting = append(adb, "b")
        await gate.is_reached()
        assert conversations.contents(await adb.context("talk")) == ["a"]
        gate.open()
        await waiting
        assert conversations.contents(await adb.context("talk")) == ["a", "b"]

    run(story, db)


def test_a_name_may_be_any_argument_of_its_namesake(db: SessionDB) -> None:
    db.create_session("hers", source="test", owner="ann")
    db.create_session("his", source="test", owner="bob")

    async def story(adb: AsyncSessionDB) -> None:
        assert [each.id for each in await adb.list_sessions(owner="ann")] == ["hers"]

    run(story, db)


async def test_what_overrides_a_name_is_called_each_time_and_may_call_what_it_overrides() -> None:
    calls = Counter[str]()

    class Counting(AsyncSessionDB):
        async def leases(self) -> list[types.LeaseHeld]:
            calls["leases"] += 1
            return await super().leases()

        async def release_lease(self, lease: types.Lease) -> bool:
            calls["release_lease"] += 1
            return await super().release_lease(lease)

    async with Counting(SessionDB(":memory:")) as adb:
        await adb.create_session("talk", source="test")
        for _ in range(3):
            assert await adb.leases() == []
            assert await adb.release_lease(await adb.acquire_lease("talk", "turn"))
    assert calls == {"leases": 3, "release_lease": 3}


async def test_subscription_after_a_failed_one_starts_the_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    hints: list[str] = []

    def refuse(_: object) -> bool:
        raise RuntimeError("can't start new thread")

    with SessionDB(":memory:") as db:
        hub = async_db.NotificationHub(db.driver)
        monkeypatch.setattr(db.driver, "listen", refuse)
        with pytest.raises(RuntimeError), hub.listen(lambda _: hints.append("first")):
            pass
        monkeypatch.setattr(db.driver, "listen", lambda handler: handler(notifications.LOST))
        with hub.listen(lambda _: hints.append("second")):
            await asyncio.sleep(0)
    assert hints == ["second"]
