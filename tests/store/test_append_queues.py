"""Appends of many tasks on PostgreSQL: concurrent, in order per conversation, and a blocked one holds up no other."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from holdfast import AsyncSessionDB, NewConversation, NewMessage, SessionDB, errors, types
from holdfast.store import group_commit
from tests.support import conversations, postgres

NAMES = ("stuck", "one", "two", "three")
CONTINUED = """
INSERT INTO sessions (conversation, ordinal, id, parent, live, source, started_at, first_seq)
SELECT conversation, 2, 'other', 1, 1, source, 2, 2 FROM sessions WHERE id = 'one'
"""


class Elsewhere:
    """Somebody who stands still in the middle of a write."""

    def __init__(self, address: str) -> None:
        self._connection = postgres.psycopg.connect(address)

    def hold(self, name: str) -> None:
        self._connection.execute("SELECT 1 FROM conversations WHERE id = %s FOR UPDATE", (name,))

    def title(self, name: str, title: str) -> None:
        self._connection.execute("UPDATE conversations SET title = %s WHERE id = %s", (title, name))

    def let_go(self) -> None:
        self._connection.rollback()

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def address() -> str:
    return postgres.fresh()


@pytest.fixture
def elsewhere(address: str) -> Iterator[Elsewhere]:
    with contextlib.closing(Elsewhere(address)) as made:
        yield made


def tell(address: str, story: Callable[[AsyncSessionDB], Awaitable[object]], write_timeout: float = 60.0) -> SessionDB:
    """A story with a store whose appends may wait for longer than the story may take."""

    async def told() -> None:
        async with asyncio.timeout(50), AsyncSessionDB(SessionDB(address, write_timeout=write_timeout)) as adb:
            for name in NAMES:
                await adb.create_session(name, source="test")
            await story(adb)

    asyncio.run(told())
    return SessionDB(address)


async def taken() -> None:
    """Let tasks come as far as they can without the store."""
    for _ in range(5):
        await asyncio.sleep(0)


async def append(adb: AsyncSessionDB, name: str, content: str = "x", **more: object) -> types.Receipt:
    return await adb.append_message(name, role="user", content=content, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("known", [True, False], ids=["whose end is known", "not seen before"])
@pytest.mark.parametrize("many", [True, False], ids=["in one group", "one by one"])
def test_a_conversation_that_is_held_elsewhere_holds_up_no_other(
    address: str, elsewhere: Elsewhere, known: bool, many: bool
) -> None:
    async def story(adb: AsyncSessionDB) -> None:
        for name in NAMES if known else ():
            await append(adb, name)
        elsewhere.hold("stuck")
        first = 3 if many else 1
        waiting = [asyncio.create_task(append(adb, "stuck", str(number))) for number in range(first)]
        if not many:
            await taken()
        else:
            await asyncio.gather(*(append(adb, name) for name in NAMES[1:]))
        for name in NAMES[1:] * 2:
            await append(adb, name)
        waiting += [asyncio.create_task(append(adb, "stuck", str(number))) for number in range(first, 6)]
        await append(adb, "one")
        assert not any(task.done() for task in waiting)
        elsewhere.let_go()
        seqs = [receipt.seq for receipt in await asyncio.gather(*waiting)]
        assert seqs == list(range(1 + known, 7 + known))

    with tell(address, story) as db:
        assert conversations.contents(db.transcript("stuck"))[known:] == [str(number) for number in range(6)]
        assert db.admin.fsck().ok


def test_whatever_else_an_append_waits_for_holds_up_no_other(address: str, elsewhere: Elsewhere) -> None:
    """A title that somebody is about to take is known only to the index that keeps titles apart."""
    titled = NewConversation(source="test", title="taken")

    async def story(adb: AsyncSessionDB) -> None:
        elsewhere.title("stuck", "taken")
        waiting = asyncio.create_task(append(adb, "new", create=titled))
        await asyncio.gather(*(append(adb, name) for name in NAMES[1:]))
        assert not waiting.done()
        elsewhere.let_go()
        assert (await waiting).seq == 1

    with tell(address, story) as db:
        assert db.conversation("new").title == "taken"


def test_who_waits_too_long_is_busy_alone(address: str, elsewhere: Elsewhere) -> None:
    async def story(adb: AsyncSessionDB) -> None:
        elsewhere.hold("stuck")
        kinds = list[type]()
        for patience in (0.2, 2.0, 20.0):  # On a busy machine those that nobody holds may be late, too.
            async with AsyncSessionDB(SessionDB(address, write_timeout=patience)) as hasty:
                appends = (append(hasty, name) for name in NAMES)
                kinds = [type(each) for each in await asyncio.gather(*appends, return_exceptions=True)]
            assert kinds[0] is errors.StoreBusy
            if kinds[1:] == [types.Receipt] * 3:
                break
        assert kinds == [errors.StoreBusy] + [types.Receipt] * 3
        elsewhere.let_go()
        assert (await append(adb, "stuck")).seq == 1

    tell(address, story).close()


def test_append_behind_one_that_waited_in_vain_does_not_wait_as_long_again(
    address: str, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(adb: AsyncSessionDB) -> None:
        groups: list[int] = []
        writes = adb._writes
        commit = writes._commit

        def counted(group: list[group_commit.Pending]) -> list[Any]:
            groups.append(len(group))
            return commit(group)

        await append(adb, "stuck")
        monkeypatch.setattr(writes, "_commit", counted)
        elsewhere.hold("stuck")
        first = asyncio.create_task(append(adb, "stuck"))
        await append(adb, "one")
        later = [asyncio.create_task(append(adb, "stuck")) for _ in range(5)]
        waiting = writes._appends.waiting
        while len(waiting) < len(later):
            await asyncio.sleep(0)
        writes._appends.waiting = deque(each._replace(deadline=0.0) for each in waiting)
        outcomes = await asyncio.gather(first, *later, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {errors.StoreBusy}
        assert sum(groups) == 2

    tell(address, story, write_timeout=3.0).close()


def test_as_many_blocked_conversations_as_there_are_threads_hold_up_no_other(
    address: str, elsewhere: Elsewhere
) -> None:
    held = [f"held {number}" for number in range(group_commit.MAX_THREADS - 1)]

    async def story(adb: AsyncSessionDB) -> None:
        for name in held:
            await adb.create_session(name, source="test")
            elsewhere.hold(name)
        await append(adb, "one")
        waiting = [asyncio.create_task(append(adb, name)) for name in held]
        await append(adb, "two")
        assert (await append(adb, "one")).seq == 2
        assert not any(each.done() for each in waiting)
        elsewhere.let_go()
        await asyncio.gather(*waiting)

    tell(address, story).close()


@pytest.mark.parametrize("known", ["talk", "child", "neither"])
def test_appends_to_several_ids_of_one_conversation_keep_the_order_of_the_calls(address: str, known: str) -> None:
    """One id is the conversation's first session, the other its head; `known` was appended to before."""

    async def story(adb: AsyncSessionDB) -> None:
        await adb.create_session("talk", source="test")
        lease = await adb.acquire_lease("talk", "compact", "me", 30)
        await adb.commit_compaction(lease, child_id="child", cut_seq=0, seen_seq=0, summary="s")
        if known != "neither":
            await append(adb, known)
        for _ in range(10):
            receipts = await asyncio.gather(*(append(adb, name) for name in ("talk", "child", "talk", "child")))
            numbers = [receipt.seq for receipt in receipts]
            assert numbers == sorted(numbers)

    tell(address, story).close()


@pytest.mark.parametrize("together", [False, True], ids=["alone", "with others"])
def test_numbers_that_were_given_out_again_lead_to_nobody_elses_conversation(address: str, together: bool) -> None:
    """As after a failover that lost a conversation: its number is another's by now, and as long."""

    async def story(adb: AsyncSessionDB) -> None:
        for _ in range(2):
            await append(adb, "one")
            await append(adb, "two")
        with postgres.psycopg.connect(address) as behind:
            behind.execute("SET session_replication_role = replica")
            behind.execute("UPDATE conversations SET id = 'theirs' WHERE id = 'one'")
            behind.execute("UPDATE sessions SET id = 'theirs' WHERE id = 'one'")
        others = [append(adb, "two")] if together else []
        outcome, *_ = await asyncio.gather(append(adb, "one", "a secret"), *others, return_exceptions=True)
        assert isinstance(outcome, errors.NoSuchSession)
        assert "a secret" not in conversations.contents(await adb.transcript("theirs"))

    tell(address, story).close()


@pytest.mark.parametrize("together", [False, True], ids=["alone", "with others"])
def test_a_head_that_is_another_than_was_known_is_the_one_that_is_told(address: str, together: bool) -> None:
    async def story(adb: AsyncSessionDB) -> None:
        await append(adb, "one")
        await append(adb, "two")
        with postgres.psycopg.connect(address) as behind:
            behind.execute("SET session_replication_role = replica")
            ended = "UPDATE sessions SET live = NULL, ended_at = 2, end_reason = 'x', last_seq = 1 WHERE id = 'one'"
            behind.execute(ended)
            behind.execute(CONTINUED)
            behind.execute("UPDATE conversations SET head = 2 WHERE id = 'one'")
        others = [append(adb, "two")] if together else []
        receipt, *_ = await asyncio.gather(append(adb, "one"), *others)
        assert (receipt.seq, receipt.session_id, receipt.moved_from) == (2, "other", "one")

    tell(address, story).close()


def test_a_clock_that_says_nothing_stores_nothing(address: str) -> None:
    with SessionDB(address) as db:
        db.create_session("talk", source="test")
    with SessionDB(address, clock=lambda: float("nan")) as db:
        with pytest.raises(errors.InvalidArgument):
            db.append_message("talk", role="user", content="a")
        assert db.transcript("talk") == []


def test_a_clock_of_whole_seconds_serves_a_batch_as_any_other(address: str) -> None:
    with SessionDB(address, clock=lambda: 1000) as db:
        db.append_message("talk", role="user", content="a", create=NewConversation(source="test"))
        messages = [NewMessage(role="user", content="b"), NewMessage(role="user", content="c", at=5.5)]
        assert [receipt.seq for receipt in db.append_messages("talk", messages)] == [2, 3]
        assert [message.at for message in db.transcript("talk")] == [1000.0, 1000.0, 5.5]


def test_blocked_append_is_written_before_the_store_is_closed(address: str, elsewhere: Elsewhere) -> None:
    waiting: list[asyncio.Task[types.Receipt]] = []

    async def story(adb: AsyncSessionDB) -> None:
        elsewhere.hold("stuck")
        waiting.append(asyncio.create_task(append(adb, "stuck")))
        await append(adb, "one")
        asyncio.get_running_loop().call_later(0.05, elsewhere.let_go)

    with tell(address, story) as db:
        assert waiting[0].result().seq == 1
        assert len(db.transcript("stuck")) == 1


def test_two_hosts_that_write_to_one_conversation_leave_no_gap_and_keep_the_order_of_each(address: str) -> None:
    async def story(adb: AsyncSessionDB) -> None:
        async with AsyncSessionDB(SessionDB(address)) as other:
            told = [asyncio.create_task(append(host, "stuck", f"{who} {number}")) for number in range(40)
                    for who, host in (("a", adb), ("b", other))]  # fmt: skip
            receipts = await asyncio.gather(*told)
            assert sorted(receipt.seq for receipt in receipts) == list(range(1, 81))

    with tell(address, story) as db:
        said = conversations.contents(db.transcript("stuck"))
        for who in "ab":
            assert [text for text in said if text[0] == who] == [f"{who} {number}" for number in range(40)]
        assert db.admin.fsck().ok
