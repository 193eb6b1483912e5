"""The single-statement append on PostgreSQL: when it is used, and how it predicts the next seq."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast import SessionDB, types
from holdfast.store import log
from tests.support import conversations, two_hosts

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


# --- outcomes that are unknown ---------------------------------------------------------------------------


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
