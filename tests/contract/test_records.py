"""Memories, permissions and processes: records linked to conversations, deleted and redacted with them."""

from __future__ import annotations

import pytest

from holdfast import SessionDB, errors
from holdfast.store import deletion
from holdfast.store.records import memory
from tests.support import backends, conversations
from tests.support.conversations import Clock


@pytest.fixture(autouse=True)
def _talks(request: pytest.FixtureRequest) -> None:
    if "db" in request.fixturenames:
        for name in ("talk", "other"):
            conversations.begin(request.getfixturevalue("db"), name, "a", "b")


def memories(db: SessionDB, owner: str = "o") -> list[str]:
    return [each.text for each in db.memory.all(owner)]


def test_memories_are_listed_by_owner_oldest_first(db: SessionDB, clock: Clock) -> None:
    first, *_ = (db.memory.add("o", text) for text in ("likes tea", "a", "c"))
    other = db.memory.add("", "a")
    clock.advance(5)
    assert db.memory.add("o", "likes\u200b   tea\n") == first
    assert (memories(db), memories(db, "")) == (["likes tea", "a", "c"], ["a"])
    assert not db.memory.delete("o", other.id)
    with pytest.raises(errors.NotFound):
        db.memory.update("o", other.id, "mine now")
    assert [db.memory.delete("o", first.id) for _ in range(2)] == [True, False]
    assert db.memory.add("o", "likes tea").id > first.id
    assert memories(db, "") == ["a"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (" likes \t tea \r\n", "likes tea"),
        ("te\u200ba\u202e \x00\x1b[31m\ufeff", "tea [31m"),
        ("né e\u0301 🚀", "né e\u0301 🚀"),
        (" " * 5_000 + "x" * 500, "x" * 500),
    ],
)
def test_invisible_characters_of_a_memory_are_dropped_and_spaces_folded(db: SessionDB, given: str, kept: str) -> None:
    assert db.memory.add("o", given).text == kept


@backends.on_memory
def test_number_of_memories_of_an_owner_is_limited(db: SessionDB) -> None:
    for number in range(memory.MAX_MEMORIES):
        db.memory.add("o", f"fact {number}")
    with pytest.raises(errors.LimitReached):
        db.memory.add("o", "one more")
    assert db.memory.add("o", "fact 7").text == "fact 7"
    assert db.memory.add("other", "one more")
    assert db.memory.delete("o", db.memory.all("o")[0].id)
    assert db.memory.add("o", "one more")
    assert len(memories(db)) == memory.MAX_MEMORIES


def test_revised_memory_keeps_its_id_and_its_age(db: SessionDB, clock: Clock) -> None:
    first = db.memory.add("o", "likes tea", source="talk")
    assert db.driver.read(deletion.unscrubbed_since) is None
    clock.advance(5)
    revised = db.memory.update("o", first.id, "likes coffee")
    assert (revised.id, revised.text, revised.at, revised.source) == (first.id, "likes coffee", first.at, "talk")
    assert revised.updated_at == first.updated_at + 5 == db.driver.read(deletion.unscrubbed_since)
    clock.advance(5)
    assert db.memory.update("o", first.id, "likes coffee") == revised
    other = db.memory.add("o", "likes cake")
    # Revised to the text of another, they are one.
    assert db.memory.update("o", other.id, "likes coffee") == revised
    assert db.memory.all("o") == [revised]
    with pytest.raises(errors.NotFound):
        db.memory.update("o", other.id, "likes coffee")


def test_memory_outlives_its_source(db: SessionDB) -> None:
    known = db.memory.add("o", "likes tea", source=conversations.compact(db, "talk", 1).id)
    assert known.source == "talk"
    db.redact("talk", 1)
    db.delete_conversation("talk")
    assert [(each.id, each.text, each.source) for each in db.memory.all("o")] == [(known.id, "likes tea", None)]
    assert [db.memory.add("o", name, source=name).source for name in ("talk", "to come")] == [None, None]


def rules(db: SessionDB, *where: str, owner: str = "o") -> list[str]:
    return [each.rule for each in db.permissions.grants(owner, *where)]


def test_grant_applies_to_its_owner_and_conversation_or_to_all(db: SessionDB, clock: Clock) -> None:
    here = db.permissions.grant("o", "here", session_id="talk", by="terminal")
    everywhere = db.permissions.grant("o", "everywhere", by="terminal")
    assert (here.conversation_id, everywhere.conversation_id, here.by) == ("talk", None, "terminal")
    assert rules(db, "talk") == ["here", "everywhere"]
    assert rules(db, "other") == rules(db) == ["everywhere"]
    assert rules(db, "talk", owner="another") == rules(db, "talk", owner="") == []
    clock.advance(1)
    assert db.permissions.grant("o", "here", session_id="talk", by="another") == here
    assert db.permissions.grant("o", "everywhere", by="another") == everywhere
    head = conversations.compact(db, "talk", 1)
    db.branch("talk", branch_id="branch")
    assert (rules(db, head.id), rules(db, "branch")) == (["here", "everywhere"], ["everywhere"])


def test_revoked_or_deleted_grant_is_gone(db: SessionDB) -> None:
    made = db.permissions.grant("o", "everywhere", by="me")
    db.permissions.grant("o", "here", session_id="talk", by="me")
    db.delete_conversation("talk")
    assert rules(db) == ["everywhere"]
    with pytest.raises(errors.ConversationDeleted):
        db.permissions.grant("o", "here", session_id="talk", by="me")
    assert [db.permissions.revoke(made.id), db.permissions.revoke(made.id)] == [True, False]
    assert rules(db) == []
    assert db.permissions.grant("o", "everywhere", by="me").id > made.id


def begin_audit(db: SessionDB, summary: str, where: str = "talk", call: str = "c", allowed: bool = True) -> int:
    return db.permissions.begin_audit(where, call, "shell", summary, allowed, "a rule")


def test_tool_call_is_logged_before_it_runs_and_ends_once(db: SessionDB, clock: Clock) -> None:
    began = clock()
    id_ = begin_audit(db, "make")
    (open_,) = db.permissions.audit_log("talk")
    assert (open_.id, open_.at, open_.ended_at, open_.ok) == (id_, began, None, None)
    clock.advance(3)
    assert [db.permissions.end_audit(id_, False), db.permissions.end_audit(id_, True)] == [True, False]
    (ended,) = db.permissions.audit_log("talk")
    assert (ended.ended_at, ended.ok) == (began + 3, False)
    assert (ended.call_id, ended.tool, ended.summary, ended.allowed, ended.by) == ("c", "shell", "make", True, "a rule")
    assert not db.permissions.end_audit(begin_audit(db, "rm", allowed=False), True), "a denied call has no end"
    assert not db.permissions.end_audit(99, True)


def test_audit_log_is_newest_first_and_can_be_filtered(db: SessionDB, clock: Clock) -> None:
    for number in range(4):
        begin_audit(db, f"{number}", where="talk" if number % 2 else "other", allowed=number != 1)
        clock.advance(10)
    for filters, summaries in (
        ({}, "3210"),
        ({"limit": 2}, "32"),
        ({"session_id": "talk"}, "31"),
        ({"denied": True}, "1"),
        ({"since": clock() - 20}, "32"),
    ):
        assert [each.summary for each in db.permissions.audit_log(**filters)] == list(summaries)
    for summary in ("", "x" * 100_000, "\ud800\0\x1b[31m", "é" * 4_000):
        db.permissions.begin_audit("talk", summary, summary, summary, True, summary)
        assert len(db.permissions.audit_log(limit=1)[0].summary) <= 4_000


def test_audit_log_is_redacted_and_deleted_with_its_conversation(db: SessionDB) -> None:
    calls = [{"id": name, "name": "shell", "arguments": "{}"} for name in ("one", "x" * 5_000)]
    seq = db.append_message("talk", role="assistant", tool_calls=calls).seq
    ids = [begin_audit(db, f"secret of {call}"[:40], call=call) for call in ("one", "x" * 5_000, "another")]
    begin_audit(db, "elsewhere", where="other", call="one")
    db.redact("talk", seq)
    assert [each.summary for each in db.permissions.audit_log()] == ["elsewhere", "secret of another", "", ""]
    assert db.permissions.end_audit(ids[0], True), "a running call ends after its redaction"
    db.delete_conversation("talk")
    assert [each.summary for each in db.permissions.audit_log()] == ["elsewhere"]
    assert not db.permissions.end_audit(ids[1], True)


def record_starts(db: SessionDB, *names: str) -> None:
    for name in names:
        db.processes.record_start(conversations.process(name, "talk"))


def test_process_is_recorded_once(db: SessionDB) -> None:
    record_starts(db, "p", "p", "q")
    assert db.processes.all("talk") == [conversations.process(name, "talk") for name in "pq"]
    head = conversations.compact(db, "talk", 1)
    db.processes.record_start(conversations.process("p", head.id))
    assert db.processes.all(head.id) == db.processes.all("talk") == db.processes.all()
    for other in (conversations.process("p", "talk", "rm -r x"), conversations.process("p", "other")):
        with conversations.nothing_changes(db), pytest.raises(errors.IdTaken):
            db.processes.record_start(other)
    with pytest.raises(errors.NoSuchSession):
        db.processes.record_start(conversations.process("new", "nobody"))


def test_end_and_notice_are_written_together_and_once(db: SessionDB, clock: Clock) -> None:
    record_starts(db, "p", "q")
    assert db.processes.record_end("p", "exited", 3, "p ended with 3")
    assert not db.processes.record_end("p", "killed", 9, "p was killed")
    (ended,) = [each for each in db.processes.all("talk") if each.state != "running"]
    assert (ended.id, ended.state, ended.exit_code, ended.ended_at) == ("p", "exited", 3, clock())
    running = [conversations.process("q", "talk")]
    assert db.processes.all(running_only=True) == db.processes.all("talk", running_only=True) == running
    (notice,) = db.mail.inbox_entries("talk")
    assert (notice.key, notice.kind, notice.text) == ("process:p", "process", "p ended with 3")
    db.processes.record_end("q", "gone", None, "it is gone", at=7.0)
    assert (db.processes.all()[1].ended_at, db.mail.inbox_entries()[1].at) == (7.0, clock())
    record_starts(db, "r")
    db.delete_conversation("talk")
    assert not db.processes.record_end("r", "exited", 0, "ended")
    assert (db.processes.all(), db.mail.inbox_entries()) == ([], [])


def test_redacting_the_call_redacts_the_command_and_its_notice(db: SessionDB) -> None:
    for name, key in (("p", "KEY=1"), ("q", "KEY=2"), ("r", "other")):
        call = {"id": name, "name": "start_process", "arguments": f'{{"command": "{key} make"}}'}
        db.append_message("talk", role="assistant", tool_calls=[call])
        db.processes.record_start(conversations.process(name, "talk", f"{key} make"))
    db.processes.record_end("p", "exited", 0, "ended: KEY=1 make")
    db.processes.record_end("r", "exited", 0, "ended: other make")
    for seq in (3, 4):
        db.redact("talk", seq)
    assert [each.command for each in db.processes.all()] == ["", "", "other make"]
    # A redacted notice is not delivered; the end of a running process is.
    assert [each.text for each in db.mail.inbox_entries()] == ["ended: other make"]
    # The watcher may have read the command and its output before.
    assert db.processes.record_end("q", "exited", 0, "ended: KEY=2 make\n> the key is 2")
    notice = db.mail.inbox_entries()[-1]
    assert (notice.key, notice.kind) == ("process:q", "process")
    assert "process q ended" in notice.text
    assert "redacted" in notice.text
    assert "key" not in notice.text.lower()


def test_redacting_the_notice_redacts_the_command_of_that_process_only(db: SessionDB) -> None:
    record_starts(db, "p", "q")
    for name in ("p", "q"):
        db.processes.record_end(name, "exited", 0, f"{name} ended")
    for notice in db.mail.inbox_entries():
        receipt = db.append_message("talk", role="user", content=notice.text)
        db.mail.settle_inbox_entry(notice.id, "completed", receipt.seq)
    db.redact("talk", 3)
    assert [(each.id, bool(each.command)) for each in db.processes.all()] == [("p", False), ("q", True)]
