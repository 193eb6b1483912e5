"""Undo and redo of a compaction: messages come back as they were, and nothing is redone that would hide one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast import SessionDB, errors
from tests.support import conversations

Change = Callable[[SessionDB], object]


def test_undo_brings_the_messages_back_and_redo_takes_it_back(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abc")
    head = conversations.compact(db, "talk", 2, "gist")
    assert db.undo_compaction("talk").summary == "gist"
    assert (conversations.seen(db, "talk"), db.head("talk").id) == (["a", "b", "c"], head.id)
    conversations.say(db, "talk", "d")
    assert db.redo_compaction("talk").summary == "gist"
    assert conversations.seen(db, "talk") == ["gist", "c", "d"]


def test_undo_stands_on_what_the_compaction_stood_on(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abc")
    conversations.compact(db, "talk", 1, "one")
    conversations.compact(db, "talk", 3, "two")
    db.undo_compaction("talk")
    assert conversations.seen(db, "talk") == ["one", "b", "c"]
    db.undo_compaction("talk")
    assert conversations.seen(db, "talk") == ["a", "b", "c"]
    db.redo_compaction("talk")
    assert conversations.seen(db, "talk") == ["one", "b", "c"]


def test_each_of_them_raises_the_epoch(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    conversations.compact(db, "talk", 1)
    epochs = [db.conversation("talk").epoch]
    for change in (db.undo_compaction, db.redo_compaction, db.undo_compaction):
        change("talk")
        epochs.append(db.conversation("talk").epoch)
    assert epochs == [2, 3, 4, 5]


def test_nothing_to_undo_or_redo_is_said(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    with conversations.nothing_changes(db):
        with pytest.raises(errors.NothingToUndo):
            db.undo_compaction("talk")
        with pytest.raises(errors.NothingToUndo):
            db.redo_compaction("talk")


VOIDING: dict[str, Change] = {
    "commit": lambda db: conversations.compact(db, "talk", 2),
    "hide": lambda db: db.hide("talk", 4),
    "show": lambda db: db.show("talk"),
    "redaction": lambda db: db.redact("talk", 1),
    "redo": lambda db: db.redo_compaction("talk"),
}


@pytest.mark.parametrize("change", VOIDING)
def test_redo_is_void_after(db: SessionDB, change: str) -> None:
    conversations.begin(db, "talk", *"abcd")
    db.hide("talk", 3, 3)
    conversations.compact(db, "talk", 1)
    db.undo_compaction("talk")
    VOIDING[change](db)
    with conversations.nothing_changes(db), pytest.raises(errors.NothingToUndo):
        db.redo_compaction("talk")


HARMLESS: dict[str, Change] = {
    "a message": lambda db: conversations.say(db, "talk", "x"),
    "a folder": lambda db: db.set_session_folder("talk", "/work"),
    "a title": lambda db: db.set_session_title("talk", "new"),
    "a route": lambda db: db.bind_route("r", "talk", version=0),
    "a branch": lambda db: db.branch("talk"),
    "a lease": lambda db: db.acquire_lease("talk", "turn"),
}


@pytest.mark.parametrize("change", HARMLESS)
def test_redo_outlives(db: SessionDB, change: str) -> None:
    conversations.begin(db, "talk", "a", "b")
    conversations.compact(db, "talk", 1)
    db.undo_compaction("talk")
    HARMLESS[change](db)
    db.redo_compaction("talk")


def test_redo_outlives_an_end(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a", "b")
    conversations.compact(db, "talk", 1, "gist")
    db.undo_compaction("talk")
    db.end_conversation("talk", "done")
    conversations.say(db, "talk", "c")
    db.redo_compaction("talk")
    assert conversations.seen(db, "talk") == ["gist", "b", "c"]


def test_redo_cannot_bring_back_a_summary_made_without_a_shown_message(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abc")
    db.hide("talk", 2, 2)
    conversations.compact(db, "talk", 3, "without b")
    db.undo_compaction("talk")
    db.show("talk")
    with pytest.raises(errors.NothingToUndo):
        db.redo_compaction("talk")
    assert conversations.seen(db, "talk") == ["a", "b", "c"]
