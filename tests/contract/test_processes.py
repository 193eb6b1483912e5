"""Processes: known before they run, ended once, and told of once, in the transaction that ends them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast import SessionDB, errors, types
from tests.support import conversations

MakeDb = Callable[..., SessionDB]


def begun(db: SessionDB, *names: str) -> None:
    if db.get_session("talk") is None:
        conversations.begin(db, "talk", "a", "b")
    for name in names:
        db.processes.record_start(conversations.process(name, "talk"))


def test_process_is_returned_as_it_was_recorded(db: SessionDB) -> None:
    begun(db, "p", "p", "q")
    assert db.processes.all("talk") == [conversations.process(name, "talk") for name in "pq"]
    head = conversations.compact(db, "talk", 1)
    assert db.processes.all(head.id) == db.processes.all("talk") == db.processes.all()


def test_process_belongs_to_the_conversation_of_any_session(db: SessionDB) -> None:
    begun(db)
    head = conversations.compact(db, "talk", 1)
    db.processes.record_start(conversations.process("p", head.id))
    assert db.processes.all("talk")[0].conversation_id == "talk"
    db.processes.record_start(conversations.process("p", "talk"))
    assert len(db.processes.all()) == 1


def test_id_of_another_process_is_refused(db: SessionDB) -> None:
    begun(db, "p")
    conversations.begin(db, "other", "a")
    for other in (conversations.process("p", "talk", "rm -r x"), conversations.process("p", "other")):
        with conversations.nothing_changes(db), pytest.raises(errors.IdTaken):
            db.processes.record_start(other)


def test_end_and_notice_are_written_together_and_once(db: SessionDB, clock: conversations.Clock) -> None:
    begun(db, "p", "q")
    assert db.processes.record_end("p", "exited", 3, "p ended with 3")
    assert not db.processes.record_end("p", "killed", 9, "p was killed")
    (ended,) = [each for each in db.processes.all("talk") if each.state != "running"]
    assert (ended.id, ended.state, ended.exit_code, ended.ended_at) == ("p", "exited", 3, clock())
    assert (
        db.processes.all(running_only=True)
        == db.processes.all("talk", running_only=True)
        == [conversations.process("q", "talk")]
    )
    (notice,) = db.mail.inbox_entries("talk")
    assert (notice.key, notice.kind, notice.text) == ("process:p", "process", "p ended with 3")


def test_end_has_its_own_time_and_the_notice_the_current_time(db: SessionDB, clock: conversations.Clock) -> None:
    begun(db, "p")
    db.processes.record_end("p", "gone", None, "it is gone", at=7.0)
    assert (db.processes.all()[0].ended_at, db.mail.inbox_entries()[0].at) == (7.0, clock())


def test_end_of_an_unknown_process_is_ignored(db: SessionDB) -> None:
    begun(db, "p")
    db.delete_conversation("talk")
    assert not db.processes.record_end("p", "exited", 0, "ended")
    assert (db.processes.all(), db.mail.inbox_entries()) == ([], [])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", ""), ("id", "x" * 195), ("id", "a\nb"), ("command", ""), ("command", "\ud800"), ("folder", 5),
        ("place", "here"), ("place", ""), ("started_at", "now"), ("started_at", -1.0), ("state", "exited"),
        ("ended_at", 1.0), ("exit_code", 0), ("conversation_id", None), ("conversation_id", "nobody"),
    ],
)  # fmt: skip
def test_invalid_process_is_refused(db: SessionDB, field: str, value: Any) -> None:
    begun(db)
    bad = msgspec.structs.replace(conversations.process("p", "talk"), **{field: value})
    with conversations.nothing_changes(db), pytest.raises(errors.HoldfastError):
        db.processes.record_start(bad)


@pytest.mark.parametrize(
    ("state", "code", "text"),
    [("running", None, "x"), ("napping", 0, "x"), ("exited", True, "x"), ("exited", 2**40, "x"), ("exited", 0, "")],
)
def test_invalid_end_is_refused(db: SessionDB, state: Any, code: Any, text: str) -> None:
    begun(db, "p")
    with conversations.nothing_changes(db), pytest.raises(errors.HoldfastError):
        db.processes.record_end("p", state, code, text)


def test_conversation_with_a_running_process_is_not_pruned(db: SessionDB, clock: conversations.Clock) -> None:
    begun(db, "p")
    clock.advance(100 * conversations.DAY)
    (needed,) = db.admin.plan_prune(older_than_days=30).needed
    assert "running processes" in str(needed)
    db.processes.record_end("p", "exited", 0, "ended")
    db.mail.settle_inbox_entry(db.mail.inbox_entries()[0].id, "completed")
    assert len(db.admin.plan_prune(older_than_days=30).going) == 1


def test_redacting_the_call_redacts_the_command_and_its_notice(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    for name, key in (("p", "KEY=1"), ("q", "KEY=2"), ("r", "other")):
        call = {"id": name, "name": "start_process", "arguments": f'{{"command": "{key} make"}}'}
        db.append_message("talk", role="assistant", tool_calls=[call])
        db.processes.record_start(conversations.process(name, "talk", f"{key} make"))
    db.processes.record_end("p", "exited", 0, "ended: KEY=1 make")
    db.processes.record_end("r", "exited", 0, "ended: other make")
    for seq in (2, 3):
        db.redact("talk", seq)
    assert [each.command for each in db.processes.all()] == ["", "", "other make"]
    # What nobody can read is not delivered any more; what was running goes on, and its end is told.
    assert [each.text for each in db.mail.inbox_entries()] == ["ended: other make"]
    # Whoever reports it may have read its command and its output before.
    assert db.processes.record_end("q", "exited", 0, "ended: KEY=2 make\n> the key is 2")
    notice = db.mail.inbox_entries()[-1]
    assert (notice.key, notice.kind) == ("process:q", "process")
    assert "process q ended" in notice.text
    assert "redacted" in notice.text
    assert "key" not in notice.text.lower()
    assert db.admin.fsck().ok


def test_redacting_the_notice_redacts_the_command_of_that_process_only(db: SessionDB) -> None:
    """The notice quotes what the process wrote: who may not read that any more sees it by the command being gone."""
    begun(db, "p", "q")
    for name in ("p", "q"):
        db.processes.record_end(name, "exited", 0, f"{name} ended")
    for notice in db.mail.inbox_entries():
        receipt = db.append_message("talk", role="user", content=notice.text)
        db.mail.settle_inbox_entry(notice.id, "completed", receipt.seq)
    db.redact("talk", 3)
    assert [(each.id, bool(each.command)) for each in db.processes.all()] == [("p", False), ("q", True)]
    assert db.admin.fsck().ok


def test_concurrent_watchers_record_one_end(db: SessionDB) -> None:
    begun(db, *(f"p{number}" for number in range(10)))
    for number in range(10):
        ends = [
            lambda n=n, i=number: db.processes.record_end(f"p{i}", "exited", n, f"told by {n}") for n in range(6)
        ]  # fmt: skip
        outcomes = conversations.at_once(*ends)
        assert sorted(outcomes) == [False] * 5 + [True]
        (notice,) = [each for each in db.mail.inbox_entries() if each.key == f"process:p{number}"]
        assert notice.text == f"told by {outcomes.index(True)}"


def test_running_processes_are_listed_for_other_programs(make_db: MakeDb) -> None:
    one, other = make_db(), make_db()
    begun(one, "p")
    assert other.processes.all(running_only=True) == [conversations.process("p", "talk")]
    assert other.processes.record_end("p", "killed", None, "killed")
    assert not one.processes.record_end("p", "exited", 0, "ended")
    assert isinstance(one.processes.all()[0], types.Process)
