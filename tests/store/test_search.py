"""Search: any text can be searched for, and a damaged, missing, locked or foreign index in SQLite is rebuilt."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import SessionDB, errors, types
from holdfast.store.search import fts5_index, query_parser
from tests.store.conftest import killed_at
from tests.support import backends

SIDE = ("", "-wal", "-shm", ".queue")


@pytest.fixture
def path(path: Path) -> str:
    """A store with one message, indexed and closed."""
    with SessionDB(path) as db:
        chat = db.create_session("c", source="test").id
        db.append_message(chat, role="user", content="the heron stands still")
        assert not Path(f"{path}.search").exists()  # before the first search
        assert db.search("heron")
    return str(path)


def _still_works(path: str) -> None:
    with SessionDB(path) as db:
        db.append_message("c", role="user", content="a second heron")
        assert sorted(hit.seq for hit in db.search("heron")) == [1, 2]
        assert db.admin.fsck().ok
        _remove_index(path)
        assert sorted(hit.seq for hit in db.search("heron")) == [1, 2]


def _remove_index(path: str) -> None:
    for suffix in SIDE:
        Path(path + ".search" + suffix).unlink(missing_ok=True)


def test_damaged_message_is_reported_and_the_index_kept(path: str, caplog: pytest.LogCaptureFixture) -> None:
    with SessionDB(path) as db, caplog.at_level(logging.WARNING):
        backends.drop_triggers(db)
        backends.rewrite_bodies(db, b"{broken")
        with pytest.raises(errors.StoreCorrupt, match="holdfast doctor"):
            db.search("heron")
        assert "made again" not in caplog.text


@pytest.mark.parametrize("content", [None, b"", b"not a database" * 300])
def test_missing_or_damaged_index_is_rebuilt(path: str, content: bytes | None) -> None:
    if content is None:
        _remove_index(path)
    else:
        Path(path + ".search").write_bytes(content)
    _still_works(path)


@pytest.mark.parametrize("page", range(0, 10, 2))
def test_overwritten_index_page_does_not_prevent_a_rebuild(path: str, page: int) -> None:
    with open(path + ".search", "r+b") as side:
        side.seek(page * 4096 + 8)
        side.write(b"\xa5" * 200)
    with SessionDB(path) as db:
        db.admin.rebuild_search_index()
    _still_works(path)


def test_index_of_another_store_is_rebuilt(path: str, tmp_path: Path) -> None:
    other = str(tmp_path / "other.db")
    with SessionDB(other) as db:
        db.create_session("z", source="test")
        db.append_message("z", role="user", content="the bittern booms")
        assert db.search("bittern")
    os.replace(other + ".search", path + ".search")
    _still_works(path)
    with SessionDB(path) as db:
        assert db.search("bittern") == []


def test_index_of_another_version_is_rebuilt(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with SessionDB(path) as db:
        assert db.admin.update_search_index() == 0
        monkeypatch.setattr(query_parser, "INDEX_VERSION", query_parser.INDEX_VERSION + 1)
        assert db.admin.update_search_index() == 1
        assert db.admin.update_search_index() == 0


def test_scrub_removes_words_of_a_deletion_that_did_not_reach_the_index(path: str) -> None:
    def is_found() -> bool:
        files = (Path(path + ".search" + suffix) for suffix in SIDE)
        return any(b"xylograph" in file.read_bytes() for file in files if file.exists())

    with SessionDB(path) as db:
        db.create_session("doomed", source="test")
        db.append_message("doomed", role="user", content="xylographer")
        assert db.search("xylographer")
        with killed_at("delete.committed"):
            db.delete_conversation("doomed")
        assert is_found()
        db.admin.scrub()
        assert not is_found()
        assert [hit.seq for hit in db.search("heron")] == [1]


def test_locked_index_stops_no_write_and_no_search_and_is_updated_later(path: str) -> None:
    with SessionDB(path) as db:
        db.append_message("c", role="user", content="a second heron")
        assert len(db.search("heron")) == 2
    other = apsw.Connection(path + ".search")
    other.execute("BEGIN IMMEDIATE")
    with SessionDB(path, write_timeout=0.05) as db:
        db.append_message("c", role="user", content="a third heron")
        db.redact("c", 1)
        assert [hit.seq for hit in db.search("heron", own=True)] == [2]
        other.execute("ROLLBACK")
        other.close()
        assert sorted(hit.seq for hit in db.search("heron", own=True)) == [2, 3]


def test_text_of_a_message_has_content_and_calls() -> None:
    call = types.ToolCall("c1", "shell", {"command": "ls"})
    parts = [{"type": "text", "text": "look"}, {"type": "image", "data": "zzz"}]
    text = query_parser.message_text(types.Body(tool_calls=(call,), content=parts))
    assert text.splitlines() == ["look", 'shell {"command":"ls"}']


@given(st.text())
def test_any_question_holds_only_quoted_words(text: str) -> None:
    asked = query_parser.parse(text)
    if asked is not None:
        outside = fts5_index.match_expressions(asked)[1].split('"')[::2]
        assert not {letter for piece in outside for letter in piece} - set("{textaround} :(ANDOR, NEAR8)*")


@given(st.text(), st.lists(st.text(min_size=1)))
def test_snippet_of_any_text_is_a_part_of_it_in_one_line(text: str, terms: list[str]) -> None:
    cut = query_parser.snippet(text, terms, width=40)
    assert cut.strip("…") in " ".join(text.split()) or cut == ""
    assert len(cut) <= 42


def test_snippet_shows_most_terms_and_tags_are_single_words() -> None:
    text = "alpha " + "x " * 200 + "alpha beta gamma " + "y " * 200
    assert "alpha beta gamma" in query_parser.snippet(text, ("alpha", "beta", "gamma"))
    assert query_parser.tag("o", "a b*\"'").isalnum()
    assert query_parser.tag("o", "a") != query_parser.tag("t", "a")
