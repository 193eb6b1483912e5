"""Steps of many tasks that share a commit: each runs once, and fails alone."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast import AsyncSessionDB, SessionDB, errors, fault_points
from holdfast.store import group_commit, write_step
from holdfast.store.driver import Tx
from holdfast.store.sqlite import wal_sync
from tests.support import conversations, mail, polling, postgres, two_hosts

Step = write_step.WriteStep[Any]


@pytest.fixture
def db() -> Iterator[SessionDB]:
    with SessionDB(":memory:") as made:
        yield made


@pytest.fixture
async def group(db: SessionDB) -> AsyncIterator[group_commit.GroupCommit]:
    made = group_commit.GroupCommit(db.driver)
    yield made
    await made.drain()
    made.close()


class FirstCommit:
    """Holds the first commit, so that the steps that come meanwhile are one group."""

    def __init__(self) -> None:
        self._reached, self._released = threading.Event(), threading.Event()

    def __call__(self, point: str) -> None:
        if point == "arrive.committing" and not self._reached.is_set():
            self._reached.set()
            assert self._released.wait(60)

    async def run(self, group: group_commit.GroupCommit, first: Step, *rest: Step) -> list[Any]:
        """Commit the first step, and all others together; return their results and errors."""
        tasks = [asyncio.create_task(group.write(first))]
        await asyncio.to_thread(self._reached.wait, 60)
        tasks += [asyncio.create_task(group.write(step)) for step in rest]
        await asyncio.sleep(0)
        self._released.set()
        async with asyncio.timeout(60):
            return await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
def first(monkeypatch: pytest.MonkeyPatch) -> FirstCommit:
    made = FirstCommit()
    monkeypatch.setattr(fault_points, "hook", made)
    return made


def arrivals(db: SessionDB, keys: str) -> list[Step]:
    return [conversations.prepared(db.mail.add_inbound, mail.new(key)) for key in keys]


def refused_arrival(db: SessionDB, key: str) -> Step:
    """A step that the database refuses."""
    (step,) = arrivals(db, key)
    return step._replace(run=partial(step.run, values={**step.run.keywords["values"], "sender": ""}))


@pytest.mark.parametrize(
    "error",
    [None, errors.StoreCorrupt("a damaged row"), RuntimeError("a bug"), StopIteration(), errors.LeaseLost()],
    ids=["refused by the database", "StoreCorrupt", "RuntimeError", "StopIteration", "LeaseLost"],
)
async def test_failing_step_fails_alone(
    db: SessionDB, group: group_commit.GroupCommit, first: FirstCommit, error: BaseException | None
) -> None:
    a, b, c, d, e = arrivals(db, "abcde")

    def fail(tx: Tx) -> None:
        c.run(tx)
        raise error

    bad = refused_arrival(db, "c") if error is None else c._replace(run=fail)
    outcomes = await first.run(group, a, b, bad, d)
    assert [type(outcome) is tuple for outcome in outcomes] == [True, True, False, True]
    expected = errors.StoreRefused if error is None else type(error)
    assert expected.__name__ in f"{outcomes[2]!r} {outcomes[2].__cause__!r}"
    with contextlib.suppress(BaseException):
        await group.write(bad)
    await group.write(e)
    assert [arrival.key for arrival in db.mail.open_inbound(mail.ROUTE)] == ["a", "b", "d", "e"]


@pytest.mark.parametrize("has_durable_step", [False, True])
async def test_group_is_synced_if_any_step_requires_it(
    has_durable_step: bool, path: Path, first: FirstCommit, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = list[int]()
    with SessionDB(path) as file:
        leases = [conversations.prepared(file.mail.acquire_chat_lease, name) for name in ("one", "two")]
        durable = arrivals(file, "a") if has_durable_step else []
        monkeypatch.setattr(wal_sync, "_sync_data", syncs.append)
        group = group_commit.GroupCommit(file.driver)
        await first.run(group, *arrivals(file, "f"), *leases, *durable)
        group.close()
    assert len(syncs) == 1 + has_durable_step  # the first commit is synced by itself


@pytest.mark.parametrize("other_sends", ["several parts", "a question"])
def test_parts_of_a_reply_are_consecutive(pair: two_hosts.Pair, other_sends: str) -> None:
    one, other = mail.came(pair.one, "1", "2")
    parts = [mail.reply("part")] * 3
    several = conversations.prepared(pair.one.mail.settle_inbound, None, one.id, "answered", outgoing=parts)

    def send() -> object:
        if other_sends == "a question":
            return pair.other.mail.post(mail.reply(kind="question"), key="q", inbound_id=other.id)
        return pair.other.mail.settle_inbound(None, other.id, "answered", outgoing=parts)

    assert pair.meanwhile(several.run, send)
    first, second = (pair.one.mail.replies(arrival.id) for arrival in (one, other))
    assert max(each.id for each in first) < min(each.id for each in second)


def count_blocked(pair: two_hosts.Pair, longer_than: str) -> int:
    """Count the connections of the other host that have waited for a lock for so long."""
    blocked = """SELECT 1 FROM pg_stat_activity WHERE application_name = %s AND cardinality(pg_blocking_pids(pid)) > 0
        AND clock_timestamp() - query_start >= %s::interval"""
    return len(postgres.admin().execute(blocked, (pair.name, longer_than)).fetchall())


@pytest.mark.parametrize("has_refused_step", [True, False])
async def test_blocked_step_of_a_group_delays_no_other(pair: two_hosts.Pair, has_refused_step: bool) -> None:
    pair.one.mail.acquire_chat_lease("locked", holder="me")
    async with AsyncSessionDB(pair.other) as db, asyncio.timeout(60):
        with postgres.psycopg.connect(pair.one.driver.target) as holder:
            holder.execute("SELECT 1 FROM claims WHERE key = 'locked' FOR UPDATE")
            refused = [db.share(refused_arrival(pair.other, "r"))] if has_refused_step else []
            calls = [*refused, *(db.mail.acquire_chat_lease(name) for name in ("locked", "one", "two"))]
            *tried, locked, one, two = [asyncio.create_task(call) for call in calls]
            await asyncio.gather(one, two)
            for each in tried:
                with pytest.raises(errors.StoreRefused):
                    await each
            assert not locked.done()
        await asyncio.gather(locked, return_exceptions=True)


async def test_step_of_unknown_outcome_is_not_repeated(pair: two_hosts.Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    (waiting,) = mail.came(pair.one, "1")
    locked = threading.Event()

    def hold(tx: Tx) -> None:
        tx.one("claim_row", key=mail.CLAIM)
        locked.set()
        polling.until(lambda: count_blocked(pair, "100 ms") == 1, "it waits longer than a group does")

    def lose_answer(point: str) -> None:
        if point == "begin.committed" and not locked.is_set():
            holding.append(threads.submit(pair.one.driver.write, "test", hold))
            assert locked.wait(60)
            raise errors.StoreUnreachable("there", "the answer was lost")

    with ThreadPoolExecutor(1) as threads:
        holding = list[Future[None]]()
        monkeypatch.setattr(fault_points, "hook", lose_answer)
        async with AsyncSessionDB(pair.other) as db, asyncio.timeout(60):
            begun = (await db.mail.begin_next_inbound(mail.ROUTE, lambda *_: (waiting.id, "talk", []))).begun
        holding[0].result()
    assert (begun.attempts, mail.again(pair.one, waiting).attempts) == (1, 1)
