"""Steps of many tasks that share a commit: each is done once, and fails alone."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast import AsyncSessionDB, SessionDB, errors, fault_points, types
from holdfast.store import group_commit, write_step
from holdfast.store.driver import Tx
from holdfast.store.sqlite import wal_sync
from tests.support import conversations, mail, polling, postgres, two_hosts

Group = group_commit.GroupCommit
Arrive = write_step.WriteStep[tuple[types.InboundMessage, bool]]


@pytest.fixture
def db() -> Iterator[SessionDB]:
    with SessionDB(":memory:") as made:
        yield made


class First:
    """Holds the first commit until it is let go, so that what comes meanwhile is one group; and may fail the next."""

    def __init__(self) -> None:
        self._reached, self._go_on = threading.Event(), threading.Event()
        self.next: Exception | None = None

    def __call__(self, point: str) -> None:
        if point == "arrive.committing" and not self._reached.is_set():
            self._reached.set()
            assert self._go_on.wait(60)
        elif point == "arrive.committing" and self.next is not None:
            raise self.next

    async def given(
        self, group: Group, first: write_step.WriteStep[Any], *rest: write_step.WriteStep[Any]
    ) -> list[asyncio.Task[Any]]:
        """The first is being written when this returns, and all others wait."""
        tasks = [asyncio.create_task(group.write(first))]
        await asyncio.to_thread(self._reached.wait, 20)
        tasks += [asyncio.create_task(group.write(step)) for step in rest]
        await asyncio.sleep(0)
        return tasks

    def let_go(self) -> None:
        self._go_on.set()


@pytest.fixture
def first(monkeypatch: pytest.MonkeyPatch) -> First:
    made = First()
    monkeypatch.setattr(fault_points, "hook", made)
    return made


def tell(db: SessionDB, story: Callable[[Group], Awaitable[None]]) -> list[str]:
    """A story with a group, which is drained at its end; the keys of what arrived in it."""

    async def told() -> None:
        group = Group(db.driver)
        async with asyncio.timeout(60):
            await story(group)
            await group.drain()
        group.close()

    asyncio.run(told())
    return [arrival.key for arrival in db.mail.open_inbound(mail.ROUTE)]


def test_step_that_the_database_refuses_fails_alone(db: SessionDB, first: First) -> None:
    a, b, c, d = (conversations.prepared(db.mail.add_inbound, mail.new(key)) for key in "abcd")
    assert isinstance(c.run, partial)
    refused = c._replace(run=partial(c.run, values={**c.run.keywords["values"], "sender": ""}))

    async def story(group: Group) -> None:
        tasks = await first.given(group, a, b, refused, d)
        first.let_go()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [tuple, tuple, errors.StoreRefused, tuple]

    assert tell(db, story) == ["a", "b", "d"]


@pytest.mark.parametrize(
    "wrong", [errors.StoreCorrupt("a damaged row"), RuntimeError("a bug"), StopIteration(), asyncio.CancelledError()]
)
def test_step_that_goes_wrong_in_its_own_way_fails_alone(db: SessionDB, first: First, wrong: BaseException) -> None:
    a, b, c, d = (conversations.prepared(db.mail.add_inbound, mail.new(key)) for key in "abcd")

    def goes_wrong(tx: Tx) -> tuple[types.InboundMessage, bool]:
        c.run(tx)
        raise wrong

    async def story(group: Group) -> None:
        tasks = await first.given(group, a, b, c._replace(run=goes_wrong), d)
        first.let_go()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(outcome) is tuple for outcome in outcomes] == [True, True, False, True]
        assert type(wrong).__name__ in f"{outcomes[2]!r} {outcomes[2].__cause__!r}"

    assert tell(db, story) == ["a", "b", "d"]


def test_group_goes_on_after_an_error_that_no_future_takes(db: SessionDB) -> None:
    def ends(_: Tx) -> tuple[types.InboundMessage, bool]:
        raise StopIteration

    async def story(group: Group) -> None:
        a = conversations.prepared(db.mail.add_inbound, mail.new("a"))
        with pytest.raises(RuntimeError):
            await group.write(a._replace(run=ends))
        await group.write(a)

    assert tell(db, story) == ["a"]


def test_all_who_share_a_commit_that_fails_are_told(db: SessionDB, first: First) -> None:
    a, b, c, d = (conversations.prepared(db.mail.add_inbound, mail.new(key)) for key in "abcd")

    async def story(group: Group) -> None:
        first.next = errors.StoreFull()
        tasks = await first.given(group, a, b, c)
        first.let_go()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [tuple, errors.StoreFull, errors.StoreFull]
        first.next = None
        await group.write(d)

    assert tell(db, story) == ["a", "d"]


def test_group_whose_steps_fail_as_the_store_is_unusable_is_not_tried_step_by_step(
    db: SessionDB, first: First, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, *others = (conversations.prepared(db.mail.add_inbound, mail.new(key)) for key in "abcde")
    attempts = list[str]()

    def refuse(point: str) -> None:
        first(point)
        if point == "arrive.arrival_insert":
            attempts.append(point)
            raise errors.StoreUnusable("a standby, which PostgreSQL's driver waits for in each attempt")

    async def story(group: Group) -> None:
        tasks = await first.given(group, a, *others)
        monkeypatch.setattr(fault_points, "hook", refuse)
        first.let_go()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [tuple] + 4 * [errors.StoreUnusable]

    assert tell(db, story) == ["a"]
    assert len(attempts) == 2  # of the group, and of its first step


def test_who_is_refused_is_alone_with_that(db: SessionDB, first: First) -> None:
    mine = db.mail.acquire_chat_lease("k", holder="me")
    a, b = (conversations.prepared(db.mail.add_inbound, mail.new(key)) for key in "ab")
    held, lost = (
        conversations.prepared(db.mail.acquire_chat_lease, "k", holder="other"),
        conversations.prepared(db.mail.begin_sending, types.ChatLease("k", 7, "me", 30.0), 1),
    )

    async def story(group: Group) -> None:
        tasks = await first.given(
            group, a, held, lost, b, conversations.prepared(db.mail.acquire_chat_lease, "free", holder="me")
        )
        first.let_go()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        expected = [tuple, errors.Busy, errors.LeaseLost, tuple, types.ChatLease]
        assert [type(outcome) for outcome in outcomes] == expected

    assert tell(db, story) == ["a", "b"]
    assert [each.key for each in db.mail.chat_leases()] == ["free", "k"]
    db.mail.renew_chat_lease(mine)


@pytest.mark.parametrize(("others", "synced"), [("claims", False), ("a claim and what came in", True)])
def test_group_is_synced_if_one_of_it_must_be(
    others: str, synced: bool, tmp_path: Path, first: First, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SessionDB(tmp_path / "store.db") as file:
        given = [
            conversations.prepared(file.mail.acquire_chat_lease, "one"),
            conversations.prepared(file.mail.acquire_chat_lease, "two")
            if others == "claims"
            else conversations.prepared(file.mail.add_inbound, mail.new()),
        ]
        syncs = list[int]()

        async def story(group: Group) -> None:
            tasks = await first.given(group, conversations.prepared(file.mail.add_inbound, mail.new("first")), *given)
            monkeypatch.setattr(wal_sync, "_sync_data", syncs.append)
            first.let_go()
            await asyncio.gather(*tasks)

        tell(file, story)
        assert len(syncs) == 1 + synced  # the first commit, which is held until here, is synced by itself


def test_who_stops_waiting_takes_nothing_back(db: SessionDB, first: First) -> None:
    a, b = (conversations.prepared(db.mail.add_inbound, mail.new(key)) for key in "ab")

    async def story(group: Group) -> None:
        for task in await first.given(group, a, b):
            task.cancel()
        first.let_go()

    assert tell(db, story) == ["a", "b"]


def test_two_hosts_that_bring_the_same_in_another_order_do_not_wait_in_a_circle(pair: two_hosts.Pair) -> None:
    met = threading.Barrier(2, timeout=10)

    def bring(db: SessionDB, *keys: str) -> list[tuple[types.InboundMessage, bool]]:
        first, second = (conversations.prepared(db.mail.add_inbound, mail.new(key)) for key in keys)
        apart = [True]

        def meets(tx: Tx) -> tuple[types.InboundMessage, bool]:
            found = first.run(tx)
            if apart:
                apart.pop()
                met.wait()
            return found

        async def both() -> list[tuple[types.InboundMessage, bool]]:
            group = Group(db.driver)
            found = await asyncio.gather(group.write(first._replace(run=meets)), group.write(second))
            group.close()
            return found

        return asyncio.run(both())

    one, other = conversations.at_once(lambda: bring(pair.one, "a", "b"), lambda: bring(pair.other, "b", "a"))
    # A circle would be undone by the server, and what was written before it taken for one's own.
    assert sorted(new for _, new in [*one, *other]) == [False, False, True, True]
    assert {arrival.id for arrival, _ in one} == {arrival.id for arrival, _ in other}


@pytest.mark.parametrize("says", ["several parts", "one part", "a question"])
def test_parts_of_a_reply_are_in_a_row_whatever_another_host_says_in_the_same_chat(
    pair: two_hosts.Pair, says: str
) -> None:
    one, other = mail.came(pair.one, "1", "2")
    parts = [mail.reply("part")] * 3
    several = conversations.prepared(pair.one.mail.settle_inbound, None, one.id, "answered", outgoing=parts)
    host, own = pair.other, parts[:1] if says == "one part" else parts

    def say() -> object:
        if says == "a question":
            return host.mail.post(mail.reply(kind="question"), key="q", inbound_id=other.id)
        return host.mail.settle_inbound(None, other.id, "answered", outgoing=own)

    assert pair.meanwhile(several.run, say)
    first, second = (pair.one.mail.replies(arrival.id) for arrival in (one, other))
    assert max(each.id for each in first) < min(each.id for each in second)


def waiting_of(pair: two_hosts.Pair, longer_than: str = "0 ms") -> int:
    """How many connections of the other host wait for a lock, for so long by now."""
    blocked = """SELECT 1 FROM pg_stat_activity WHERE application_name = %s AND cardinality(pg_blocking_pids(pid)) > 0
        AND clock_timestamp() - query_start >= %s::interval"""
    return len(postgres.admin().execute(blocked, (pair.name, longer_than)).fetchall())


def test_steps_that_wait_for_another_host_keep_no_reader_waiting(pair: two_hosts.Pair) -> None:
    names = [str(number) for number in range(6)]
    for name in names:
        pair.one.mail.acquire_chat_lease(name, holder="me")
    has_them, done = threading.Event(), threading.Event()

    def hold(tx: Tx) -> None:
        for name in names:
            tx.one("claim_row", key=name)
        has_them.set()
        assert done.wait(60)

    async def told() -> None:
        async with AsyncSessionDB(pair.other) as db, asyncio.timeout(60):
            waiting = [asyncio.create_task(db.mail.acquire_chat_lease(name, holder="me")) for name in names]
            await asyncio.to_thread(polling.until, lambda: waiting_of(pair) == len(names), "all of them wait")
            try:
                await asyncio.wait_for(db.contacts.all(), 30)
                assert not any(each.done() for each in waiting)
            finally:
                done.set()
            await asyncio.gather(*waiting)

    with ThreadPoolExecutor(1) as threads:
        holding = threads.submit(pair.one.driver.write, "test", hold)
        assert has_them.wait(60)
        asyncio.run(told())
        holding.result()


@contextlib.contextmanager
def row_of_chat_lease_locked(pair: two_hosts.Pair, done: threading.Event) -> Iterator[None]:
    """The row of the chat lease `locked`, locked by the first host until `done` is set."""
    pair.one.mail.acquire_chat_lease("locked", holder="me")
    is_locked = threading.Event()

    def hold(tx: Tx) -> None:
        tx.one("claim_row", key="locked")
        is_locked.set()
        assert done.wait(60)

    with ThreadPoolExecutor(1) as threads:
        holding = threads.submit(pair.one.driver.write, "test", hold)
        assert is_locked.wait(60)
        yield
        holding.result()


def test_blocked_step_of_a_group_does_not_delay_the_others(
    pair: two_hosts.Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "MAX_GROUPS", 1)
    sizes = list[int]()
    commit = Group._commit
    monkeypatch.setattr(Group, "_commit", lambda group, *args: sizes.append(len(args[0])) or commit(group, *args))
    done = threading.Event()

    async def acquire_all() -> None:
        async with AsyncSessionDB(pair.other) as db, asyncio.timeout(60):
            names = ("one", "locked", "two", "three")
            one, locked, *others = [asyncio.create_task(db.mail.acquire_chat_lease(name)) for name in names]
            try:
                await asyncio.gather(one, *others)
                assert not locked.done()
            finally:
                done.set()
            await asyncio.gather(locked, return_exceptions=True)

    with row_of_chat_lease_locked(pair, done):
        asyncio.run(acquire_all())
    assert 4 in sizes


def test_blocked_step_of_a_group_with_a_refused_step_does_not_delay_the_others(
    pair: two_hosts.Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "MAX_GROUPS", 1)
    done = threading.Event()
    given = conversations.prepared(pair.other.mail.add_inbound, mail.new("refused"))
    assert isinstance(given.run, partial)
    refused = given._replace(run=partial(given.run, values={**given.run.keywords["values"], "sender": ""}))

    async def run_all() -> None:
        async with AsyncSessionDB(pair.other) as db, asyncio.timeout(60):
            first = asyncio.create_task(db.share(refused))
            locked, other = [asyncio.create_task(db.mail.acquire_chat_lease(name)) for name in ("locked", "other")]
            try:
                with pytest.raises(errors.StoreRefused):
                    await first
                await other
                assert not locked.done()
            finally:
                done.set()
            await asyncio.gather(locked, return_exceptions=True)

    with row_of_chat_lease_locked(pair, done):
        asyncio.run(run_all())


def test_step_that_comes_just_when_the_last_one_is_answered_is_not_forgotten(db: SessionDB) -> None:
    async def story(group: Group) -> None:
        for number in range(50):
            await group.write(conversations.prepared(db.mail.add_inbound, mail.new(str(number))))

    assert tell(db, story) == [str(number) for number in range(50)]


@pytest.mark.parametrize("wrong", [(99, "talk", []), (1, "", []), (1, "talk", [-1])])
@pytest.mark.parametrize("given", [True, False], ids=["a claim that one has", "none"])
def test_who_chooses_wrongly_has_the_claim_they_had_before(
    db: SessionDB, first: First, given: bool, wrong: tuple[int, str, list[int]]
) -> None:
    had = db.mail.acquire_chat_lease(mail.CLAIM) if given else None
    step = conversations.prepared(db.mail.begin_next_inbound, mail.ROUTE, lambda *_: wrong, lease=had)

    async def story(group: Group) -> None:
        tasks = await first.given(
            group,
            conversations.prepared(db.mail.add_inbound, mail.new("a")),
            step,
            conversations.prepared(db.mail.add_inbound, mail.new("b")),
        )
        first.let_go()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(outcome, errors.HoldfastError) for outcome in outcomes] == [False, True, False]

    assert tell(db, story) == ["a", "b"]
    assert [each.token for each in db.mail.chat_leases()] == ([had.token] if had else [])
    assert [each.attempts for each in db.mail.open_inbound(mail.ROUTE)] == [0, 0]


def test_what_may_have_been_done_is_not_done_again_because_somebody_was_in_the_way(
    pair: two_hosts.Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    (waiting,) = mail.came(pair.one, "1")
    has_it = threading.Event()

    def hold(tx: Tx) -> None:
        tx.one("claim_row", key=mail.CLAIM)
        has_it.set()
        polling.until(lambda: waiting_of(pair, "100 ms") == 1, "it waits longer than a group does")

    def lost(point: str) -> None:
        if point == "begin.committed" and not has_it.is_set():
            holding.append(threads.submit(pair.one.driver.write, "test", hold))
            assert has_it.wait(60)
            raise errors.StoreUnreachable("there", "the answer was lost")

    async def told() -> types.NextInbound:
        async with AsyncSessionDB(pair.other) as db, asyncio.timeout(60):
            return await db.mail.begin_next_inbound(mail.ROUTE, lambda *_: (waiting.id, "talk", []))

    with ThreadPoolExecutor(1) as threads:
        holding = list[Future[None]]()
        monkeypatch.setattr(fault_points, "hook", lost)
        begun = asyncio.run(told()).begun
        holding[0].result()
    assert begun is not None
    assert (begun.attempts, mail.again(pair.one, waiting).attempts) == (1, 1)
