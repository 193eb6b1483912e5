"""What goes for good: a message's text with every summary made from it, or a whole conversation."""

from __future__ import annotations

import pytest

from holdfast import SessionDB, errors, types
from tests.support import backends, conversations

SECRET = "the secret"


# --- redaction -------------------------------------------------------------------------------------------


def test_redacted_text_is_gone_and_its_place_stays(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a", SECRET, "c")
    db.redact("talk", 2)
    message = db.transcript("talk")[1]
    assert (message.seq, message.role, message.content, message.redacted) == (2, "user", "", True)
    assert [other.redacted for other in db.transcript("talk")] == [False, True, False]
    assert SECRET not in str(conversations.everything(db))


def test_redaction_raises_the_epoch(db: SessionDB) -> None:
    conversations.begin(db, "talk", SECRET)
    db.redact("talk", 1)
    assert db.conversation("talk").epoch == 2


def test_summaries_that_may_hold_the_text_are_blanked_and_keep_their_pins(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"ab", SECRET, "d")
    conversations.compact(db, "talk", 1, "before", seen_seq=2)
    conversations.compact(db, "talk", 2, SECRET, seen_seq=3, pinned=[1], ledger={"asks": SECRET})
    db.redact("talk", 3)
    before, blanked = db.compactions("talk")
    assert (before.summary, blanked.summary, blanked.pinned, blanked.ledger) == ("before", "", (1,), {})
    assert (blanked.cut_seq, blanked.seen_seq) == (2, 3)
    assert conversations.seen(db, "talk") == ["a", "", "d"]
    assert SECRET not in str(conversations.everything(db))


def test_undone_summaries_are_blanked_too_and_cannot_be_redone(db: SessionDB) -> None:
    conversations.begin(db, "talk", SECRET, "b")
    conversations.compact(db, "talk", 1, SECRET)
    db.undo_compaction("talk")
    db.redact("talk", 1)
    assert db.compactions("talk")[0].summary == ""
    with pytest.raises(errors.NothingToUndo):
        db.redo_compaction("talk")


def test_compaction_in_flight_cannot_bring_the_text_back(db: SessionDB) -> None:
    conversations.begin(db, "talk", SECRET, "b")
    lease = db.acquire_lease("talk", "compact")
    db.redact("talk", 1)
    with pytest.raises(errors.Superseded):
        db.commit_compaction(lease, summary=SECRET, cut_seq=2)
    assert SECRET not in str(conversations.everything(db))


def test_redaction_reaches_every_branch_that_reads_the_message(db: SessionDB) -> None:
    conversations.begin(db, "one", "a", SECRET, "c")
    db.branch("one", 1, branch_id="before")
    db.branch("one", 3, branch_id="two")
    db.branch("two", branch_id="three")
    for name in ("two", "three"):
        conversations.say(db, name, "x")
        conversations.compact(db, name, 3, SECRET)
    epochs = {name: db.conversation(name).epoch for name in ("one", "before", "two", "three")}
    works = [db.snapshot(name) for name in ("two", "three")]
    db.redact("one", 2)
    raised = [name for name, epoch in epochs.items() if db.conversation(name).epoch > epoch]
    assert raised == ["one", "two", "three"]
    assert SECRET not in str(conversations.everything(db))
    for work in works:
        with pytest.raises(errors.Superseded):
            db.commit_compaction(work, summary=SECRET, cut_seq=work.last_seq)


def test_inherited_message_redacted_in_a_branch_is_gone_everywhere(db: SessionDB) -> None:
    conversations.begin(db, "one", SECRET, "b")
    conversations.compact(db, "one", 1, SECRET)
    db.branch("one", branch_id="two")
    db.branch("two", branch_id="three")
    db.redact("three", 1)
    assert SECRET not in str(conversations.everything(db))
    assert db.transcript("one")[0].redacted


def test_message_of_the_same_number_in_a_sibling_is_another_message(db: SessionDB) -> None:
    conversations.begin(db, "one", "a")
    for name in ("two", "three"):
        db.branch("one", branch_id=name)
        conversations.say(db, name, name)
    db.redact("two", 2)
    assert (conversations.seen(db, "two"), conversations.seen(db, "three")) == (["a", ""], ["a", "three"])


def test_redacting_again_changes_nothing_of_the_message(db: SessionDB) -> None:
    conversations.begin(db, "talk", SECRET)
    db.redact("talk", 1)
    before = db.transcript("talk")
    db.redact("talk", 1)
    assert db.transcript("talk") == before


def test_repeated_append_of_a_redacted_message_does_not_bring_it_back(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    db.append_message("talk", role="user", content=SECRET, uid="u")
    db.redact("talk", 1)
    assert db.append_message("talk", role="user", content=SECRET, uid="u").duplicate
    assert SECRET not in str(conversations.everything(db))


def test_a_title_made_from_the_text_goes_with_it(db: SessionDB) -> None:
    conversations.begin(db, "talk", f"My word is {SECRET}, for the bank", "b", title=f"My word is {SECRET}")
    conversations.begin(db, "other", "a", title=f"{SECRET} of another")
    db.redact("talk", 1)
    assert db.conversation("talk").title is None
    assert db.conversation("other").title == f"{SECRET} of another"


def test_titles_of_branches_go_whether_they_read_the_message_or_not(db: SessionDB) -> None:
    conversations.begin(db, "one", "a", SECRET, title=SECRET)
    db.branch("one", 0, branch_id="nothing")
    db.branch("one", 1, branch_id="before")
    db.branch("one", 2, branch_id="after")
    db.branch("after", branch_id="deeper")
    db.set_session_title("before", "Renamed")
    db.redact("deeper", 2)
    names = ("one", "nothing", "before", "after", "deeper")
    assert [db.conversation(name).title for name in names] == [None, None, "Renamed", None, None]
    assert SECRET not in str(conversations.everything(db))


@pytest.mark.parametrize("title", ["Trip to the sea #2", "Plan B"])
def test_redaction_keeps_a_title_that_shares_only_common_words_and_letters(db: SessionDB, title: str) -> None:
    conversations.begin(db, "talk", "Trip to Lisbon", "the password to my bank is hunter2", title=title)
    db.branch("talk", 2, branch_id="branch")
    db.redact("talk", 2)
    assert db.conversation("talk").title == title
    assert db.conversation("branch").title is not None


def test_a_title_goes_with_what_was_given_to_a_tool_and_with_parts(db: SessionDB) -> None:
    for name, message in {
        "parts": {"role": "user", "content": [{"type": "text", "text": SECRET}]},
        "call": {"role": "assistant", "tool_calls": [{"id": "1", "name": "look", "arguments": {"at": SECRET}}]},
    }.items():
        db.create_session(name, source="test", title=f"{SECRET} of {name}")
        db.append_messages(name, [message])
        db.redact(name, 1)
        assert db.conversation(name).title is None


def test_a_title_given_after_a_redaction_stays_when_it_is_repeated(db: SessionDB) -> None:
    conversations.begin(db, "talk", SECRET)
    db.redact("talk", 1)
    db.set_session_title("talk", "About it")
    db.redact("talk", 1)
    assert db.conversation("talk").title == "About it"


@pytest.mark.parametrize("body", [b'{"content":"the secret', b"\xff\xfe the secret", b""])
def test_a_damaged_message_is_redacted_with_its_title(db: SessionDB, body: bytes) -> None:
    conversations.begin(db, "talk", SECRET, title="secret")
    backends.drop_triggers(db)
    backends.rewrite_bodies(db, body)
    db.redact("talk", 1)
    assert db.transcript("talk")[0].redacted
    assert db.conversation("talk").title == (None if body else "secret")


@pytest.mark.parametrize("seq", [0, -1, 3, 2**70, "1", 1.0, None, True, b"1"])
def test_redaction_of_no_message_is_refused(db: SessionDB, seq: object) -> None:
    conversations.begin(db, "talk", "a", "b")
    with conversations.nothing_changes(db), pytest.raises(errors.InvalidArgument):
        db.redact("talk", seq)


# --- deletion ----------------------------------------------------------------------------------------------


def test_deleted_conversation_leaves_only_its_ids(db: SessionDB) -> None:
    conversations.begin(db, "talk", SECRET, "b", title="plan")
    head = conversations.compact(db, "talk", 1, SECRET)
    db.hide("talk", 2)
    db.acquire_lease("talk", "turn")
    conversations.begin(db, "other", "kept")
    db.delete_conversation(head.id)
    assert [session.id for session in db.list_sessions(every=True)] == ["other"]
    assert db.leases() == []
    for name in ("talk", head.id):
        assert db.get_session(name) is None
        with pytest.raises(errors.ConversationDeleted):
            db.context(name)


def test_ids_of_a_deleted_conversation_are_never_used_again(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    head = conversations.compact(db, "talk", 1)
    db.delete_conversation("talk")
    for name in ("talk", head.id):
        with pytest.raises(errors.ConversationDeleted):
            db.create_session(name, source="test")
    with pytest.raises(errors.ConversationDeleted):
        db.delete_conversation("talk")


def test_routes_of_a_deleted_conversation_name_nothing(db: SessionDB) -> None:
    for name in ("talk", "other"):
        conversations.begin(db, name, "a")
        db.bind_route(name, name, version=0)
    db.delete_conversation("talk")
    assert db.route("talk") == types.Route("talk", None, 2)
    assert db.route("other") == types.Route("other", "other", 1)


def test_origin_of_branches_is_not_deleted_and_they_are_listed(db: SessionDB) -> None:
    conversations.begin(db, "trunk", "a")
    for name in ("one", "two"):
        db.branch("trunk", branch_id=name)
    with conversations.nothing_changes(db), pytest.raises(errors.HasBranches) as refusal:
        db.delete_conversation("trunk")
    assert refusal.value.branches == ("one", "two")
    for name in ("one", "two", "trunk"):
        db.delete_conversation(name)


def test_child_that_reads_nothing_does_not_keep_its_origin(db: SessionDB) -> None:
    conversations.begin(db, "parent", "a")
    db.create_session("child", source="test", parent_session_id="parent")
    db.delete_conversation("parent")
    assert db.get_session("child").parent_session_id == "parent"
    conversations.say(db, "child", "b")
    assert conversations.seen(db, "child") == ["b"]


def test_empty_conversation_is_deleted_with_its_tombstone(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    db.delete_conversation("talk")
    with pytest.raises(errors.ConversationDeleted):
        db.create_session("talk", source="test")


def test_branch_is_deleted_without_harm_to_its_origin(db: SessionDB) -> None:
    conversations.begin(db, "trunk", "a")
    db.branch("trunk", branch_id="branch")
    conversations.say(db, "branch", "b")
    db.delete_conversation("branch")
    assert (conversations.seen(db, "trunk"), db.branches("trunk")) == (["a"], [])


def test_deletion_and_append_at_once_leave_all_or_nothing(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    deleted, appended = conversations.at_once(
        lambda: db.delete_conversation("talk"), lambda: db.append_message("talk", role="user", content="b")
    )
    assert deleted is None
    assert isinstance(appended, types.Receipt | errors.ConversationDeleted)
    assert db.get_session("talk") is None
