"""The search index in tables: brought on by one host at a time, whole whatever is killed, and no trace of what went."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import SessionDB, errors, fault_points
from holdfast.store import queries
from holdfast.store.search import postgres_index, query_parser
from tests.support import postgres

CORPUS = Path(__file__).parent.parent.parent / "bench" / "corpus"


@pytest.fixture
def address() -> Iterator[str]:
    dsn = postgres.fresh()
    yield dsn
    postgres.give_back(dsn)


def _talk(db: SessionDB, name: str, *contents: str) -> None:
    db.create_session(name, source="test")
    db.append_messages(name, [{"role": "user", "content": content} for content in contents])


def _rows(address: str, sql: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(address) as connection:
        return connection.execute(sql).fetchall()


def _whole(address: str) -> tuple[list[tuple[Any, ...]], ...]:
    """All that the index says of messages, whatever the order in which it learnt it."""
    places = (
        "SELECT w.*, ARRAY(SELECT unnest(places) ORDER BY 1) FROM search_words w ORDER BY word, conversation, block"
    )
    return (
        [row[:4] + row[5:] for row in _rows(address, places)],
        _rows(address, "SELECT b.*, array_remove(lengths, 0) FROM search_blocks b ORDER BY conversation, block"),
        _rows(address, "SELECT messages, words FROM search_totals"),
        _rows(address, "SELECT * FROM search_progress ORDER BY conversation"),
    )


def test_two_hosts_that_search_at_once_index_each_message_once(address: str) -> None:
    with SessionDB(address) as one, SessionDB(address) as two:
        for number in range(6):
            _talk(one, f"c{number}", *[f"gull {n} of {number}" for n in range(20)])
        start, done = threading.Barrier(2), []

        def catch_up(db: SessionDB) -> None:
            start.wait()
            done.append(db.admin.update_search_index())

        hosts = [threading.Thread(target=catch_up, args=(db,)) for db in (one, two)]
        for host in hosts:
            host.start()
        for host in hosts:
            host.join()
        assert sum(done) == 120
        assert _rows(address, "SELECT messages FROM search_totals") == [(120,)]
        assert len(one.search("gull", limit=1000)) == 120


class Killed(BaseException):
    """The process is gone: nothing catches it, and the server takes back what was not committed."""


@pytest.mark.parametrize("point", ["index.begun", "index.index_put", "index.committing", "index.committed"])
def test_killed_while_it_catches_up_the_next_search_goes_on(
    address: str, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(reached: str) -> None:
        times.append(reached)
        if times.count(point) == 2:
            raise Killed

    times: list[str] = []
    with SessionDB(address) as db:
        for number in range(3):
            _talk(db, f"c{number}", f"the gull {number}", "and more")
        monkeypatch.setattr(fault_points, "hook", kill)
        with pytest.raises(Killed):
            db.search("gull")
    monkeypatch.setattr(fault_points, "hook", None)
    with SessionDB(address) as db:
        behind = 2 if point == "index.committed" else 4
        assert db.admin.search_status() == {"exists": True, "behind": behind, "errors": []}
        assert len(db.search("gull")) == 6
        found = _whole(address)
        assert db.admin.rebuild_search_index() == 6
        assert _whole(address) == found


def test_who_cannot_bring_the_index_on_searches_what_is_indexed(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_index, "_BEGIN", postgres_index._BEGIN.replace("'2s'", "'20ms'"))
    with SessionDB(address) as db, psycopg.connect(address) as other:
        _talk(db, "c", "the first gull")
        assert len(db.search("gull")) == 1
        other.execute(postgres_index._BEGIN)
        db.append_message("c", role="user", content="a second gull")
        assert [hit.seq for hit in db.search("gull")] == [1]
        other.rollback()
        assert sorted(hit.seq for hit in db.search("gull")) == [1, 2]


def test_an_index_brought_on_bit_by_bit_is_the_one_made_at_once(address: str, caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(8)
    texts = [f"{chance.choice('abcde')} gull {n % 7} und 东京塔 {'flies ' * (n % 20)}" for n in range(700)]
    with SessionDB(address) as db:
        for name, begun in (("a", 0), ("b", 300)):
            _talk(db, name, *texts[begun : begun + 270])
            db.admin.update_search_index()
        for step in range(6):
            db.append_message(chance.choice("ab"), role="user", content=texts[600 + step])
            db.redact("a", chance.choice([1, 2, 255, 256, 257, 269]) + step % 2)
            db.admin.update_search_index()
        _talk(db, "d", "of another", "that goes")
        db.admin.update_search_index()
        db.delete_conversation("d")
        db.admin.update_search_index()
        found = _whole(address)
        assert len(found[0]) > 20
        assert not caplog.records  # it was never thrown away
        assert db.admin.rebuild_search_index() == 546
        assert _whole(address) == found


def test_no_word_of_what_was_redacted_or_deleted_is_left(address: str) -> None:
    with SessionDB(address) as db:
        _talk(db, "c", "the xylographer came", "and went")
        _talk(db, "d", "a xylophonist came")
        assert db.search("xylographer")
        db.redact("c", 1)
        db.delete_conversation("d")
        db.admin.scrub()
        assert db.search("went")
    assert _rows(address, "SELECT word FROM search_words WHERE word LIKE 'xylo%%'") == []
    assert _rows(address, "SELECT count(*) FROM search_words WHERE word = 'came'") == [(0,)]
    assert _rows(address, "SELECT count(*) FROM search_words WHERE word = 'went'") == [(1,)]


def test_words_of_a_deletion_whose_index_was_not_told_are_gone_after_a_scrub(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(point: str) -> None:
        if point == "delete.committed":
            raise Killed

    with SessionDB(address) as db:
        _talk(db, "c", "xylographer")
        assert db.search("xylographer")
        monkeypatch.setattr(fault_points, "hook", kill)
        with pytest.raises(Killed):
            db.delete_conversation("c")
    monkeypatch.setattr(fault_points, "hook", None)
    assert _rows(address, "SELECT count(*) FROM search_words WHERE word LIKE 'xylo%%'") == [(1,)]
    with SessionDB(address) as db:
        db.admin.scrub()
    assert _rows(address, "SELECT count(*) FROM search_words") == [(0,)]


def test_a_store_nobody_searched_has_no_index(address: str) -> None:
    with SessionDB(address) as db:
        _talk(db, "c", "text")
        db.redact("c", 1)
        assert db.admin.search_status() == {"exists": False, "behind": None, "errors": []}


def test_a_role_that_may_make_nothing_searches_and_makes_the_index_again(address: str) -> None:
    schema = _rows(address, "SELECT current_schema()::text")[0][0]
    role = postgres.empty_schema()  # a name nobody has
    postgres.admin().execute(f"CREATE ROLE {role} NOLOGIN")
    try:
        with SessionDB(address) as db:
            db.driver.allow(role)
        with SessionDB(postgres.with_schema(postgres.dsn(), schema, role)) as db:
            _talk(db, "c", "the first gull")
            assert len(db.search("gull")) == 1
            assert db.admin.rebuild_search_index() == 1
            db.redact("c", 1)
            assert db.search("gull") == []
    finally:
        postgres.admin().execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.parametrize("query", ["index_find", "index_find_at"])
def test_a_question_is_answered_through_the_index_of_words(address: str, query: str) -> None:
    asked = query_parser.parse('gull "w7x1 w7x2"')
    assert asked is not None
    with SessionDB(address) as db:
        _talk(db, "c", *[f"gull {' '.join(f'w{n}x{m}' for m in range(8))}" for n in range(500)])
        db.admin.update_search_index()
        asks = db.driver.read(lambda tx: postgres_index.search_parameters(tx, asked))
    assert asks is not None
    values = {"first": 0, "last": 2**63 - 1, "limit": 60, "around": 0.35, "near": 2, "places": "[4294967304]"}
    sql = queries.load(postgres_index.FOLDER)[query]
    with psycopg.connect(address) as connection:
        plan = connection.execute(f"EXPLAIN {sql}", {**values, **asks[1]}).fetchall()
    told = "\n".join(row[0] for row in plan)
    assert "search_words_pkey" in told
    assert "Seq Scan on search_words" not in told
    assert "search_words_by_block" not in told


def _chats() -> list[dict[str, Any]]:
    files = sorted(CORPUS.glob("*.jsonl"))[:2]
    return [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]


def test_as_much_is_found_as_in_sqlite(address: str, tmp_path: Path) -> None:
    found = {}
    for target in (address, tmp_path / "store.db"):
        with SessionDB(target, durability="process-crash") as db:
            for chat in _chats():
                _talk(db, chat["id"], *(message["content"] for message in chat["messages"]))
            found[target] = sum(
                any(hit.conversation_id == chat["id"] and hit.seq in asked["answers"] for hit in db.search(asked["q"]))
                for chat in _chats()
                for asked in chat["questions"]
            )
    asked = sum(len(chat["questions"]) for chat in _chats())
    assert asked > 50
    assert found[address] >= found[tmp_path / "store.db"] - 0.03 * asked


def test_a_busy_index_is_told_later_of_what_was_removed(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_index, "_BEGIN", postgres_index._BEGIN.replace("'2s'", "'20ms'"))
    with SessionDB(address) as db, psycopg.connect(address) as other:
        _talk(db, "c", "the xylographer came", "and went")
        _talk(db, "d", "a xylophonist came")
        assert db.search("xylographer")
        before = _whole(address)
        other.execute(postgres_index._BEGIN)
        db.redact("c", 1)
        db.delete_conversation("d")
        with pytest.raises(errors.StoreBusy):
            db.admin.scrub()
        assert _whole(address) == before
        assert db.search("xylographer", own=True) == []
        other.rollback()
        db.search("went")
        assert _rows(address, "SELECT word FROM search_words WHERE word LIKE 'xylo%%'") == []
        assert _rows(address, "SELECT count(*) FROM search_words WHERE word = 'went'") == [(1,)]
        assert db.admin.search_status()["behind"] == 0


def test_what_was_redacted_while_it_was_cut_is_cut_again(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_index, "_BEGIN", postgres_index._BEGIN.replace("'2s'", "'20ms'"))
    with SessionDB(address) as db, SessionDB(address) as other:

        def redact(point: str) -> None:
            if point == "index.begun":
                monkeypatch.setattr(fault_points, "hook", None)
                other.redact("c", 1)

        _talk(db, "c", "the xylographer came", "and went")
        monkeypatch.setattr(fault_points, "hook", redact)
        db.admin.update_search_index()
        assert _rows(address, "SELECT word FROM search_words WHERE word LIKE 'xylo%%'") == []
        assert db.admin.search_status()["behind"] == 0


def test_a_server_that_lets_nobody_bring_the_index_on_still_searches(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SessionDB(address) as db:
        _talk(db, "c", "the first gull")
        assert len(db.search("gull")) == 1
        db.append_message("c", role="user", content="a second gull")
    gone = postgres_index._BEGIN + "; SELECT pg_terminate_backend(pg_backend_pid())"
    with monkeypatch.context() as patch, SessionDB(address, write_timeout=0.2) as db:
        patch.setattr(postgres_index, "_BEGIN", gone)
        assert [hit.seq for hit in db.search("gull")] == [1]
    only_read = address.replace("search_path%3D", "default_transaction_read_only%3Don%20-csearch_path%3D")
    assert only_read != address
    with SessionDB(only_read) as db:
        assert [hit.seq for hit in db.search("gull")] == [1]
        assert [hit.seq for hit in db.search("gull", session_id="c")] == [1]
        with pytest.raises(errors.StoreUnusable, match="does not permit writes"):
            db.admin.update_search_index()
    with SessionDB(address) as db:
        assert sorted(hit.seq for hit in db.search("gull")) == [1, 2]
