"""Grants hold where they were given and nowhere else; the audit says what was done, and nothing changes it."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import SessionDB, errors
from tests.support import conversations


@pytest.fixture(autouse=True)
def talks(db: SessionDB) -> None:
    for name in ("talk", "other"):
        conversations.begin(db, name, "a", "b")


def rules(db: SessionDB, *where: str, owner: str = "o") -> list[str]:
    return [each.rule for each in db.permissions.grants(owner, *where)]


# --- grants ----------------------------------------------------------------------------------------------


def test_grant_applies_to_its_conversation_or_to_all(db: SessionDB) -> None:
    here = db.permissions.grant("o", "here", session_id="talk", by="terminal")
    everywhere = db.permissions.grant("o", "everywhere", by="terminal")
    assert (here.conversation_id, everywhere.conversation_id, here.by) == ("talk", None, "terminal")
    assert rules(db, "talk") == ["here", "everywhere"]
    assert rules(db, "other") == rules(db) == ["everywhere"]
    assert rules(db, "talk", owner="somebody") == rules(db, "talk", owner="") == []


def test_grant_survives_a_compaction_and_is_not_in_a_branch(db: SessionDB) -> None:
    db.permissions.grant("o", "here", session_id="talk", by="me")
    head = conversations.compact(db, "talk", 1)
    db.branch("talk", branch_id="branch")
    assert (rules(db, head.id), rules(db, "branch")) == (["here"], [])


def test_same_grant_again_is_the_same(db: SessionDB, clock: conversations.Clock) -> None:
    for where in ("talk", None):
        first = db.permissions.grant("o", "r", session_id=where, by="me")
        clock.advance(1)
        assert db.permissions.grant("o", "r", session_id=where, by="somebody else") == first
    assert len(rules(db, "talk")) == 2


def test_revoked_grant_is_gone(db: SessionDB) -> None:
    made = db.permissions.grant("o", "r", by="me")
    assert [db.permissions.revoke(made.id), db.permissions.revoke(made.id)] == [True, False]
    assert rules(db) == []
    assert db.permissions.grant("o", "r", by="me").id > made.id


def test_deleting_a_conversation_deletes_its_grants_only(db: SessionDB) -> None:
    db.permissions.grant("o", "here", session_id="talk", by="me")
    db.permissions.grant("o", "everywhere", by="me")
    db.delete_conversation("talk")
    assert rules(db) == ["everywhere"]
    with pytest.raises(errors.ConversationDeleted):
        db.permissions.grant("o", "here", session_id="talk", by="me")


@pytest.mark.parametrize("rule", ["", None, 5, "a\nb", "x" * 4_001])
def test_invalid_rule_is_refused(db: SessionDB, rule: Any) -> None:
    with conversations.nothing_changes(db), pytest.raises(errors.InvalidArgument):
        db.permissions.grant("o", rule, by="me")


# --- the audit -------------------------------------------------------------------------------------------


def act(db: SessionDB, summary: str, where: str = "talk", call: str = "c", allowed: bool = True) -> int:
    return db.permissions.begin_audit(where, call, "shell", summary, allowed, "a rule")


def test_tool_call_is_logged_before_it_runs_and_ends_once(db: SessionDB, clock: conversations.Clock) -> None:
    began = clock()
    id_ = act(db, "make")
    (open_,) = db.permissions.audit_log("talk")
    assert (open_.id, open_.at, open_.ended_at, open_.ok) == (id_, began, None, None)
    clock.advance(3)
    assert [db.permissions.end_audit(id_, False), db.permissions.end_audit(id_, True)] == [True, False]
    (ended,) = db.permissions.audit_log("talk")
    assert (ended.ended_at, ended.ok) == (began + 3, False)
    assert (ended.call_id, ended.tool, ended.summary, ended.allowed, ended.by) == ("c", "shell", "make", True, "a rule")


def test_denied_call_has_no_end(db: SessionDB) -> None:
    assert not db.permissions.end_audit(act(db, "rm", allowed=False), True)
    assert db.permissions.audit_log()[0].ok is None
    assert not db.permissions.end_audit(99, True)


def test_audit_is_newest_first_and_can_be_narrowed(db: SessionDB, clock: conversations.Clock) -> None:
    for number in range(4):
        act(db, f"{number}", where="talk" if number % 2 else "other", allowed=number != 1)
        clock.advance(10)
    assert [each.summary for each in db.permissions.audit_log()] == ["3", "2", "1", "0"]
    assert [each.summary for each in db.permissions.audit_log(limit=2)] == ["3", "2"]
    assert [each.summary for each in db.permissions.audit_log("talk")] == ["3", "1"]
    assert [each.summary for each in db.permissions.audit_log(denied=True)] == ["1"]
    assert [each.summary for each in db.permissions.audit_log(since=clock() - 20)] == ["3", "2"]


def test_any_text_can_be_logged(db: SessionDB) -> None:
    for summary in ("", "x" * 100_000, "\ud800\0\x1b[31m", "é" * 4_000):
        db.permissions.begin_audit("talk", summary, summary, summary, True, summary)
        assert len(db.permissions.audit_log(limit=1)[0].summary) <= 4_000


def test_redacting_a_message_clears_the_summaries_of_its_calls(db: SessionDB) -> None:
    calls = [{"id": name, "name": "shell", "arguments": "{}"} for name in ("one", "x" * 5_000)]
    seq = db.append_message("talk", role="assistant", tool_calls=calls).seq
    for call in ("one", "x" * 5_000, "another"):
        db.permissions.end_audit(act(db, f"secret of {call}"[:40], call=call), True)
    act(db, "elsewhere", where="other", call="one")
    db.redact("talk", seq)
    assert [each.summary for each in db.permissions.audit_log()] == ["elsewhere", "secret of another", "", ""]
    assert [each.ok for each in db.permissions.audit_log("talk")] == [True] * 3


def test_running_call_can_end_after_its_redaction(db: SessionDB) -> None:
    seq = db.append_message("talk", role="assistant", tool_calls=[{"id": "c", "name": "t", "arguments": "{}"}]).seq
    id_ = act(db, "secret")
    db.redact("talk", seq)
    assert db.permissions.end_audit(id_, True)


def test_deleting_a_conversation_deletes_its_audit_log(db: SessionDB) -> None:
    id_ = act(db, "make")
    act(db, "kept", where="other")
    db.delete_conversation("talk")
    assert [each.summary for each in db.permissions.audit_log()] == ["kept"]
    assert not db.permissions.end_audit(id_, True)
