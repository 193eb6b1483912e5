"""The search index in PostgreSQL: updated by one host at a time, whole after a kill, without removed words."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from holdfast import SessionDB, errors, fault_points
from holdfast.store import queries
from holdfast.store.search import postgres_index, query_parser
from tests.store.conftest import killed_at
from tests.support import conversations


def _talk(db: SessionDB, name: str, *contents: str) -> None:
    db.create_session(name, source="test")
    db.append_messages(name, [{"role": "user", "content": content} for content in contents])


def _rows(address: str, sql: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(address) as connection:
        return connection.execute(sql).fetchall()


def _whole(address: str) -> tuple[list[tuple[Any, ...]], ...]:
    """Everything in the index, in an order that does not depend on when it was indexed."""
    places = (
        "SELECT w.*, ARRAY(SELECT unnest(places) ORDER BY 1) FROM search_words w ORDER BY word, conversation, block"
    )
    return (
        [row[:4] + row[5:] for row in _rows(address, places)],
        _rows(address, "SELECT b.*, array_remove(lengths, 0) FROM search_blocks b ORDER BY conversation, block"),
        _rows(address, "SELECT messages, words FROM search_totals"),
        _rows(address, "SELECT * FROM search_progress ORDER BY conversation"),
    )


def _words(address: str, pattern: str) -> list[str]:
    return [word for (word,) in _rows(address, f"SELECT word FROM search_words WHERE word LIKE '{pattern}'")]


@pytest.fixture
def short_lock_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait only briefly for another host that updates the index."""
    monkeypatch.setattr(postgres_index, "_BEGIN", postgres_index._BEGIN.replace("'2s'", "'20ms'"))


def test_concurrent_hosts_index_each_message_once(address: str) -> None:
    with SessionDB(address) as one, SessionDB(address) as two:
        for number in range(6):
            _talk(one, f"c{number}", *[f"gull {n} of {number}" for n in range(20)])
        done = conversations.at_once(one.admin.update_search_index, two.admin.update_search_index)
        assert sum(done) == 120
        assert _rows(address, "SELECT messages FROM search_totals") == [(120,)]
        assert len(one.search("gull", limit=1000)) == 120


@pytest.mark.parametrize("point", ["index.index_put", "index.committed"])
def test_search_continues_an_update_that_was_killed(address: str, point: str) -> None:
    with SessionDB(address) as db:
        for number in range(3):
            _talk(db, f"c{number}", f"the gull {number}", "and more")
        with killed_at(point, times=2):
            db.search("gull")
    with SessionDB(address) as db:
        behind = 2 if point == "index.committed" else 4
        assert db.admin.search_status() == {"exists": True, "behind": behind, "errors": []}
        assert len(db.search("gull")) == 6
        found = _whole(address)
        assert db.admin.rebuild_search_index() == 6
        assert _whole(address) == found


def test_index_updated_step_by_step_equals_a_rebuilt_one(address: str, caplog: pytest.LogCaptureFixture) -> None:
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
        assert not caplog.records  # it was never discarded
        assert db.admin.rebuild_search_index() == 546
        assert _whole(address) == found


def test_scrub_removes_words_of_a_deletion_that_did_not_reach_the_index(address: str) -> None:
    with SessionDB(address) as db:
        _talk(db, "c", "xylographer")
        assert db.admin.search_status() == {"exists": False, "behind": None, "errors": []}
        assert db.search("xylographer")
        with killed_at("delete.committed"):
            db.delete_conversation("c")
    assert len(_words(address, "xylo%")) == 1
    with SessionDB(address) as db:
        db.admin.scrub()
    assert _words(address, "%") == []


@pytest.mark.usefixtures("short_lock_wait")
def test_locked_index_is_searched_as_it_is_and_updated_later(address: str) -> None:
    with SessionDB(address) as db, psycopg.connect(address) as other:
        _talk(db, "c", "the xylographer came", "and went")
        _talk(db, "d", "a xylophonist came")
        assert db.search("xylographer")
        before = _whole(address)
        other.execute(postgres_index._BEGIN)
        db.append_message("c", role="user", content="all went")
        db.redact("c", 1)
        db.delete_conversation("d")
        assert [hit.seq for hit in db.search("went", own=True)] == [2]
        assert db.search("xylographer", own=True) == []
        with pytest.raises(errors.StoreBusy):
            db.admin.scrub()
        assert _whole(address) == before
        other.rollback()
        assert sorted(hit.seq for hit in db.search("went", own=True)) == [2, 3]
        assert (_words(address, "xylo%"), _words(address, "went")) == ([], ["went"])
        assert db.admin.search_status()["behind"] == 0


@pytest.mark.usefixtures("short_lock_wait")
def test_message_redacted_during_indexing_is_not_indexed(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with SessionDB(address) as db, SessionDB(address) as other:

        def redact(point: str) -> None:
            if point == "index.begun":
                monkeypatch.setattr(fault_points, "hook", None)
                other.redact("c", 1)

        _talk(db, "c", "the xylographer came", "and went")
        monkeypatch.setattr(fault_points, "hook", redact)
        db.admin.update_search_index()
        assert _words(address, "xylo%") == []
        assert db.admin.search_status()["behind"] == 0


def test_index_that_cannot_be_updated_is_searched(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with SessionDB(address) as db:
        _talk(db, "c", "the first gull")
        assert len(db.search("gull")) == 1
        db.append_message("c", role="user", content="a second gull")
    lost = postgres_index._BEGIN + "; SELECT pg_terminate_backend(pg_backend_pid())"
    with monkeypatch.context() as patch, SessionDB(address, write_timeout=0.2) as db:
        patch.setattr(postgres_index, "_BEGIN", lost)
        assert [hit.seq for hit in db.search("gull")] == [1]
    only_read = address.replace("search_path%3D", "default_transaction_read_only%3Don%20-csearch_path%3D")
    with SessionDB(only_read) as db:
        assert [hit.seq for hit in db.search("gull", session_id="c")] == [1]
        with pytest.raises(errors.StoreUnusable, match="does not permit writes"):
            db.admin.update_search_index()


CORPUS = Path(__file__).parent.parent.parent / "bench" / "corpus"


def test_both_databases_index_the_same_words() -> None:
    chats = [json.loads(line) for file in CORPUS.glob("*.jsonl") for line in file.read_text("utf-8").splitlines()]
    texts = [message["content"] for chat in chats for message in chat["messages"]]
    spaced = [text for text in texts if query_parser.index_text(text) == text]
    index = apsw.Connection(":memory:")
    index.execute(queries.schema("sqlite_search"))
    index.execute("CREATE VIRTUAL TABLE found USING fts5vocab (words, 'instance')")
    index.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", enumerate(spaced))
    theirs: list[list[str]] = [[] for _ in spaced]
    for number, word in index.execute("SELECT doc, term FROM found ORDER BY doc, offset"):
        theirs[number].append(word)
    assert len(spaced) > 900
    assert list(map(postgres_index.index_text, spaced)) == theirs


def test_very_long_word_and_posting_of_a_very_long_text_are_capped() -> None:
    assert postgres_index.index_text("x" * 500 + " ?! \0") == ["x" * 100]
    last = 2**19 + 5
    said = [*["gull"] * 20, *["x"] * last, "gull"]
    (row,) = postgres_index.index_rows(1, [query_parser.Document(255, said, [["of", "others"]], ["r1"], "o1")], 0)
    word = row["words"].split().index("gull")
    numbers = [int(number) for number in row["places"].split()[word].strip("{}").split(",")]
    assert {number >> 23 for number in numbers} == {255}
    assert [(number >> 19) & 15 for number in numbers] == [15] + [0] * 20
    assert numbers[-1] & 524287 == 524287
