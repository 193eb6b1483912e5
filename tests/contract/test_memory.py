"""Memories: kept once, cleaned, within limits, and their owner's alone, whatever becomes of conversations."""

from __future__ import annotations

import io
from typing import Any

import pytest

from holdfast import SessionDB, errors
from holdfast.store import deletion
from holdfast.store.records import memory
from tests.support import conversations


def texts(db: SessionDB, owner: str = "o") -> list[str]:
    return [each.text for each in db.memory.all(owner)]


def test_fact_added_again_is_the_same_memory(db: SessionDB, clock: conversations.Clock) -> None:
    first = db.memory.add("o", "likes tea")
    clock.advance(5)
    assert db.memory.add("o", "likes\u200b   tea\n") == first
    assert db.memory.all("o") == [first]


def test_memories_are_listed_by_owner_oldest_first(db: SessionDB) -> None:
    for text in ("b", "a", "c"):
        db.memory.add("o", text)
    other = db.memory.add("", "a")
    assert (texts(db), texts(db, "")) == (["b", "a", "c"], ["a"])
    assert not db.memory.delete("o", other.id)
    with pytest.raises(errors.NotFound):
        db.memory.update("o", other.id, "mine now")
    assert texts(db, "") == ["a"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (" likes \t tea \r\n", "likes tea"),
        ("te\u200ba\u202e \x00\x1b[31m\ufeff", "tea [31m"),
        ("né e\u0301 🚀", "né e\u0301 🚀"),
        ("x" * 500, "x" * 500),
        (" " * 5_000 + "x", "x"),
    ],
)
def test_invisible_characters_are_dropped_and_spaces_folded(db: SessionDB, given: str, kept: str) -> None:
    assert db.memory.add("o", given).text == kept


@pytest.mark.parametrize("given", ["", " \n ", "\u200b\u202e\x07", "x" * 501, "x" * 100_000, None, 5, b"x", ["x"]])
def test_invalid_memory_is_refused(db: SessionDB, given: Any) -> None:
    known = db.memory.add("o", "likes tea")
    for call in (lambda: db.memory.add("o", given), lambda: db.memory.update("o", known.id, given)):
        with pytest.raises(errors.InvalidArgument):
            call()
    assert db.memory.all("o") == [known]


def test_an_owner_has_500_memories_and_not_one_more(db: SessionDB) -> None:
    for number in range(memory.MAX_MEMORIES):
        db.memory.add("o", f"fact {number}")
    with pytest.raises(errors.LimitReached):
        db.memory.add("o", "one more")
    assert db.memory.add("o", "fact 7").text == "fact 7"
    assert db.memory.add("other", "one more")
    assert db.memory.delete("o", db.memory.all("o")[0].id)
    assert db.memory.add("o", "one more")
    assert len(texts(db)) == memory.MAX_MEMORIES


def test_revised_memory_keeps_its_id_and_its_age(db: SessionDB, clock: conversations.Clock) -> None:
    conversations.begin(db, "talk", "a")
    first = db.memory.add("o", "likes tea", source="talk")
    clock.advance(5)
    revised = db.memory.update("o", first.id, "likes coffee")
    assert (revised.id, revised.text, revised.at, revised.source) == (first.id, "likes coffee", first.at, "talk")
    assert revised.updated_at == first.updated_at + 5
    clock.advance(5)
    assert db.memory.update("o", first.id, "likes coffee") == revised
    assert db.memory.all("o") == [revised]


def test_memory_revised_to_the_text_of_another_is_merged(db: SessionDB) -> None:
    tea, coffee = (db.memory.add("o", f"likes {what}") for what in ("tea", "coffee"))
    assert db.memory.update("o", coffee.id, "likes tea") == tea
    assert db.memory.all("o") == [tea]
    with pytest.raises(errors.NotFound):
        db.memory.update("o", coffee.id, "likes tea")


def test_forget_returns_whether_the_memory_existed(db: SessionDB) -> None:
    known = db.memory.add("o", "likes tea")
    assert [db.memory.delete("o", known.id) for _ in range(2)] == [True, False]
    assert db.memory.add("o", "likes tea").id > known.id


def test_memory_outlives_the_conversation_it_was_learnt_in(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a", "b")
    head = conversations.compact(db, "talk", 1)
    known = db.memory.add("o", "likes tea", source=head.id)
    assert known.source == "talk"
    db.redact("talk", 1)
    db.delete_conversation("talk")
    assert [(each.id, each.text, each.source) for each in db.memory.all("o")] == [(known.id, "likes tea", None)]


def test_memory_with_an_unknown_source_is_stored(db: SessionDB) -> None:
    conversations.begin(db, "gone", "a")
    db.delete_conversation("gone")
    assert [db.memory.add("o", name, source=name).source for name in ("gone", "to come")] == [None, None]


def test_memories_are_not_in_exports_or_branches(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    before, after = io.StringIO(), io.StringIO()
    db.admin.export_to(before)
    db.memory.add("o", "likes tea", source="talk")
    db.admin.export_to(after)
    assert before.getvalue() == after.getvalue()
    db.branch("talk", branch_id="branch")
    assert len(db.memory.all("o")) == 1


def test_forgetting_marks_the_store_for_a_scrub(db: SessionDB, clock: conversations.Clock) -> None:
    known = db.memory.add("o", "likes tea")
    assert db.driver.read(deletion.unscrubbed_since) is None
    clock.advance(1)
    db.memory.update("o", known.id, "likes coffee")
    assert db.driver.read(deletion.unscrubbed_since) == clock()
