"""Appends on PostgreSQL: concurrent, in order per conversation, one statement each; a blocked one delays no other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from holdfast import AsyncSessionDB, SessionDB, errors, types
from holdfast.store import log
from tests.support import conversations, postgres, two_hosts

Connection = postgres.psycopg.Connection[tuple[object, ...]]
NAMES = ("stuck", "one", "two", "three")
CONTINUED = """
INSERT INTO sessions (conversation, ordinal, id, parent, live, source, started_at, first_seq)
SELECT conversation, 2, 'other', 1, 1, source, 2, 2 FROM sessions WHERE id = 'one'
"""


LOCK = "SELECT 1 FROM conversations WHERE id = 'stuck' FOR UPDATE"


@pytest.fixture
def other_host(address: str) -> Iterator[Connection]:
    """The connection of a host that stands still in the middle of a write."""
    with postgres.psycopg.connect(address) as made:
        yield made


@pytest.fixture
async def adb(address: str) -> AsyncIterator[AsyncSessionDB]:
    """A store whose appends may wait for longer than a test."""
    async with AsyncSessionDB(SessionDB(address, write_timeout=60.0)) as opened:
        for name in NAMES:
            await opened.create_session(name, source="test")
        yield opened


async def append(adb: AsyncSessionDB, name: str, content: str = "x", **more: object) -> types.Receipt:
    async with asyncio.timeout(60):
        return await adb.append_message(name, role="user", content=content, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("known", [True, False], ids=["appended to before", "not seen before"])
async def test_locked_conversation_delays_no_other(adb: AsyncSessionDB, other_host: Connection, known: bool) -> None:
    for name in NAMES if known else ():
        await append(adb, name)
    other_host.execute(LOCK)
    waiting = [asyncio.create_task(append(adb, "stuck", str(number))) for number in range(3)]
    await asyncio.gather(*(append(adb, name) for name in NAMES[1:]))
    for name in NAMES[1:] * 2:
        await append(adb, name)
    waiting += [asyncio.create_task(append(adb, "stuck", str(number))) for number in range(3, 6)]
    await append(adb, "one")
    assert not any(task.done() for task in waiting)
    other_host.rollback()
    seqs = [receipt.seq for receipt in await asyncio.gather(*waiting)]
    assert seqs == list(range(1 + known, 7 + known))
    said = conversations.contents(await adb.transcript("stuck"))
    assert said[known:] == [str(number) for number in range(6)]
    assert (await adb.admin.fsck()).ok


async def test_only_the_blocked_append_times_out(adb: AsyncSessionDB, address: str, other_host: Connection) -> None:
    other_host.execute(LOCK)
    kinds = list[type]()
    for timeout in (0.2, 2.0, 20.0):  # On a busy machine the appends that are not blocked may be late, too.
        async with AsyncSessionDB(SessionDB(address, write_timeout=timeout)) as hasty:
            appends = (append(hasty, name) for name in NAMES)
            kinds = [type(each) for each in await asyncio.gather(*appends, return_exceptions=True)]
        if kinds[1:] == [types.Receipt] * 3:
            break
    assert kinds == [errors.StoreBusy] + [types.Receipt] * 3
    other_host.rollback()
    assert (await append(adb, "stuck")).seq == 1


@pytest.mark.parametrize("known", ["talk", "child", ""])
async def test_appends_to_several_ids_of_one_conversation_keep_their_order(adb: AsyncSessionDB, known: str) -> None:
    """One id is the conversation's first session, the other its head; `known` was appended to before."""
    await adb.create_session("talk", source="test")
    lease = await adb.acquire_lease("talk", "compact", "me", 30)
    await adb.commit_compaction(lease, child_id="child", cut_seq=0, seen_seq=0, summary="s")
    if known:
        await append(adb, known)
    for _ in range(5):
        receipts = await asyncio.gather(*(append(adb, name) for name in ("talk", "child", "talk", "child")))
        seqs = [receipt.seq for receipt in receipts]
        assert seqs == sorted(seqs)


@pytest.mark.parametrize("together", [False, True], ids=["alone", "in a group"])
async def test_cached_conversation_is_checked_by_the_server(adb: AsyncSessionDB, address: str, together: bool) -> None:
    """After a failover, the key of a conversation may belong to another one, and its head may have moved."""
    for _ in range(2):
        for name in ("one", "two", "three"):
            await append(adb, name)
    with postgres.psycopg.connect(address) as behind:
        behind.execute("SET session_replication_role = replica")
        ended = "UPDATE sessions SET live = NULL, ended_at = 2, end_reason = 'x', last_seq = 2 WHERE id = 'one'"
        behind.execute(ended)
        behind.execute(CONTINUED.replace("2, 2 FROM", "2, 3 FROM"))
        behind.execute("UPDATE conversations SET head = 2 WHERE id = 'one'")
        for table in ("conversations", "sessions"):
            behind.execute(f"UPDATE {table} SET id = 'theirs' WHERE id = 'three'")
    others = [append(adb, "two")] if together else []
    lost, moved, *_ = await asyncio.gather(
        append(adb, "three", "a secret"), append(adb, "one"), *others, return_exceptions=True
    )
    assert isinstance(lost, errors.NoSuchSession)
    assert "a secret" not in conversations.contents(await adb.transcript("theirs"))
    assert (moved.seq, moved.session_id, moved.moved_from) == (3, "other", "one")


async def test_blocked_append_is_written_before_the_store_is_closed(address: str, other_host: Connection) -> None:
    async with AsyncSessionDB(SessionDB(address, write_timeout=60.0)) as adb:
        await adb.create_session("stuck", source="test")
        other_host.execute(LOCK)
        waiting = asyncio.create_task(append(adb, "stuck"))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.05, other_host.rollback)
    assert waiting.result().seq == 1


FAST = ["append.queued", "append.committing", "append.committed"]


@pytest.fixture
def db(address: str) -> Iterator[SessionDB]:
    with SessionDB(address, write_timeout=0.2) as made:
        conversations.begin(made, "talk", "a", "b")
        yield made


def test_append_is_one_statement(db: SessionDB, points: list[str]) -> None:
    """Also under a lease, under each id of the conversation, and after a step that appended."""
    requests = [log.AppendRequest("talk", [types.NewMessage(role="user", content=text)], 1.0) for text in "cd"]
    db.driver.write("group", lambda tx: [request(tx) for request in requests])
    child = db.commit_compaction(db.snapshot("talk"), summary="gist", cut_seq=1).id
    for name in (child, "talk"):
        db.append_message(name, role="user", content="e")
    with SessionDB(db.driver.target) as other:
        for host in (db, other):
            lease = host.acquire_lease("talk", "turn", "me")
            points.clear()
            for name in (child, "talk"):
                host.append_message(name, role="user", content="f", lease=lease)
            assert points == FAST * 2
    assert [message.seq for message in db.transcript("talk")] == list(range(1, 11))


def test_append_whose_flush_fails_is_found_by_the_transaction(
    pair: two_hosts.Pair, points: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The append is committed already: StoreBusy, as which a cancelled statement is reported, would deny it."""
    conversations.begin(pair.one, "talk", "a")
    for each in (pair.one, pair.other) * 2:
        each.append_message("talk", role="user", content="x")
    sql = "SELECT pg_cancel_backend(pg_backend_pid()), pg_sleep(60)"
    monkeypatch.setitem(pair.one.driver._sql, "flush_wal", sql)  # type: ignore[attr-defined]
    points.clear()
    receipt = pair.one.append_message("talk", role="user", content="y")
    assert (receipt.seq, receipt.duplicate) == (6, True)
    assert points[2:5] == ["append.flushing", "append.queued", "append.begun"]
    assert conversations.contents(pair.other.transcript("talk")) == ["a", "x", "x", "x", "x", "y"]
