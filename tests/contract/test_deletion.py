"""Redaction of a message with every summary and title made from it, and deletion of conversations."""

from __future__ import annotations

import pytest

from holdfast import SessionDB, errors, types
from tests.support import backends, conversations

SECRET = "the secret"


def assert_secret_is_gone(db: SessionDB) -> None:
    assert SECRET not in str(conversations.everything(db))


def test_redacted_text_is_gone_and_its_place_stays(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    db.append_message("talk", role="user", content=SECRET, uid="u")
    conversations.say(db, "talk", "c")
    db.redact("talk", 2)
    message = db.transcript("talk")[1]
    assert (message.seq, message.role, message.content, message.redacted) == (2, "user", "", True)
    assert [other.redacted for other in db.transcript("talk")] == [False, True, False]
    assert db.conversation("talk").epoch == 2
    assert db.append_message("talk", role="user", content=SECRET, uid="u").duplicate
    before = db.transcript("talk")
    db.redact("talk", 2)
    assert db.transcript("talk") == before
    assert_secret_is_gone(db)


def test_summaries_that_may_hold_the_text_are_blanked_and_keep_their_pins(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"ab", SECRET, "d")
    conversations.compact(db, "talk", 1, "before", seen_seq=2)
    conversations.compact(db, "talk", 2, SECRET, seen_seq=3, pinned=[1], ledger={"asks": SECRET})
    conversations.compact(db, "talk", 3, SECRET)
    db.undo_compaction("talk")
    lease = db.acquire_lease("talk", "compact")
    db.redact("talk", 3)
    before, blanked, undone = db.compactions("talk")
    assert (before.summary, blanked.summary, blanked.pinned, blanked.ledger) == ("before", "", (1,), {})
    assert (blanked.cut_seq, blanked.seen_seq, undone.summary) == (2, 3, "")
    assert conversations.seen(db, "talk") == ["a", "", "d"]
    with pytest.raises(errors.NothingToUndo):
        db.redo_compaction("talk")
    with pytest.raises(errors.Superseded):
        db.commit_compaction(lease, summary=SECRET, cut_seq=3)
    assert_secret_is_gone(db)


@pytest.mark.parametrize("redacted_in", ["one", "two", "three"])
def test_redaction_reaches_every_conversation_that_reads_the_message(db: SessionDB, redacted_in: str) -> None:
    conversations.begin(db, "one", "a", SECRET, "c")
    conversations.compact(db, "one", 2, SECRET)
    db.branch("one", 1, branch_id="before")
    db.branch("one", 2, branch_id="two")
    db.branch("two", branch_id="three")
    conversations.say(db, "before", "own text")
    for name in ("two", "three"):
        conversations.say(db, name, "x")
        conversations.compact(db, name, 3, SECRET)
    epochs = {name: db.conversation(name).epoch for name in ("one", "before", "two", "three")}
    works = [db.snapshot(name) for name in ("two", "three")]
    db.redact(redacted_in, 2)
    raised = [name for name, epoch in epochs.items() if db.conversation(name).epoch > epoch]
    assert raised == ["one", "two", "three"]
    assert conversations.seen(db, "before") == ["a", "own text"], "another message of the same number stays"
    assert_secret_is_gone(db)
    for work in works:
        with pytest.raises(errors.Superseded):
            db.commit_compaction(work, summary=SECRET, cut_seq=work.last_seq)


def test_titles_made_from_the_text_are_removed_in_every_branch(db: SessionDB) -> None:
    conversations.begin(db, "one", "a", f"My word is {SECRET}, for the bank", title=f"My word is {SECRET}")
    conversations.begin(db, "other", "a", title=f"{SECRET} of another")
    for at, name in ((0, "nothing"), (1, "before"), (2, "after")):
        db.branch("one", at, branch_id=name)
    db.branch("after", branch_id="deeper")
    db.set_session_title("before", "Renamed")
    db.redact("deeper", 2)
    names = ("one", "nothing", "before", "after", "deeper", "other")
    assert [db.conversation(name).title for name in names] == [
        None, None, "Renamed", None, None, f"{SECRET} of another",
    ]  # fmt: skip
    db.set_session_title("one", "My new word")
    db.redact("one", 2)
    assert db.conversation("one").title == "My new word", "a title given after the redaction stays"


def test_title_made_from_parts_or_calls_is_removed(db: SessionDB) -> None:
    call = {"id": "1", "name": "look", "arguments": {"at": SECRET}}
    parts = [{"type": "text", "text": SECRET}]
    for name, message in (
        ("parts", {"role": "user", "content": parts}),
        ("call", {"role": "assistant", "tool_calls": [call]}),
    ):
        conversations.begin(db, name, title=f"{name} about {SECRET}")
        db.append_messages(name, [message])
        db.redact(name, 1)
        assert db.conversation(name).title is None


@pytest.mark.parametrize("body", [b'{"content":"the secret', b"\xff\xfe the secret", b""])
def test_damaged_message_is_redacted_with_its_title(db: SessionDB, body: bytes) -> None:
    conversations.begin(db, "talk", SECRET, title="secret")
    backends.drop_triggers(db)
    backends.rewrite_bodies(db, body)
    db.redact("talk", 1)
    assert db.transcript("talk")[0].redacted
    assert db.conversation("talk").title == (None if body else "secret")


def test_deleted_conversation_leaves_its_ids_only(db: SessionDB) -> None:
    conversations.begin(db, "talk", SECRET, "b", title="plan")
    head = conversations.compact(db, "talk", 1, SECRET)
    db.hide("talk", 2)
    db.acquire_lease("talk", "turn")
    conversations.begin(db, "other", "kept")
    conversations.begin(db, "empty")
    for name in ("talk", "other"):
        db.bind_route(name, name, version=0)
    for name in (head.id, "empty"):
        db.delete_conversation(name)
    assert [session.id for session in db.list_sessions(every=True)] == ["other"]
    assert db.leases() == []
    assert db.route("talk") == types.Route("talk", None, 2)
    assert db.route("other") == types.Route("other", "other", 1)
    for name in ("talk", head.id, "empty"):
        assert db.get_session(name) is None
        for call in (db.context, db.delete_conversation, lambda name: db.create_session(name, source="test")):
            with pytest.raises(errors.ConversationDeleted):
                call(name)


def test_origin_is_deleted_after_its_branches_only(db: SessionDB) -> None:
    conversations.begin(db, "trunk", "a")
    for name in ("one", "two"):
        db.branch("trunk", branch_id=name)
        conversations.say(db, name, "b")
    db.create_session("child", source="test", parent_session_id="trunk")
    with conversations.nothing_changes(db), pytest.raises(errors.HasBranches) as refusal:
        db.delete_conversation("trunk")
    assert refusal.value.branches == ("one", "two"), "a child that reads nothing does not keep its origin"
    for name in ("one", "two"):
        db.delete_conversation(name)
    assert (conversations.seen(db, "trunk"), db.branches("trunk")) == (["a"], ["child"])
    db.delete_conversation("trunk")
    assert db.get_session("child").parent_session_id == "trunk"
    conversations.say(db, "child", "b")
    assert conversations.seen(db, "child") == ["b"]
