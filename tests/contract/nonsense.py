"""What no caller should give, and every public method with what it should be given instead."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

from holdfast import NewConversation, NewMessage, SessionDB, errors, types
from tests.contract import mail, steps

JUNK = [
    None, 5, -1, 2**70, 1.5, float("nan"), float("inf"), True, b"bytes", "", " ", "\ud800", "a\0b", "x" * 1_000_000,
    "../../etc/passwd", "'; DROP TABLE messages; --", [], [None], [5], ["talk"], {}, {"a": 1}, {5: 5}, (), set(),
    object(), type,
]  # fmt: skip

Arguments = dict[str, Any]


def with_lease(db: SessionDB) -> Arguments:
    return {"lease": db.acquire_lease("talk", "turn", "me")}


def with_claim(db: SessionDB) -> Arguments:
    return {"claim": db.claim(mail.CLAIM)}


def with_arrival(db: SessionDB) -> Arguments:
    return {"arrival_id": mail.came(db, "open")[0].id, **with_claim(db)}


def with_outgoing(db: SessionDB) -> Arguments:
    return {"outgoing_id": db.replies(mail.answered(db, "talk").id)[0].id}


def first(waiting: Sequence[types.Arrival], _: types.Route) -> tuple[int, str, list[int]]:
    return waiting[0].id, "talk", [each.id for each in waiting[1:]]


CALLS: dict[str, Arguments | Callable[[SessionDB], Arguments]] = {
    "create_session": {
        "session_id": "new", "source": "s", "model": "m", "parent_session_id": "talk", "title": "t", "owner": "o",
        "folder": "/f",
    },
    "get_session": {"session_id": "talk"},
    "conversation": {"session_id": "talk"},
    "head": {"session_id": "talk"},
    "sessions": {"session_id": "talk"},
    "continuations": {"session_id": "talk"},
    "branches": {"session_id": "talk"},
    "list_sessions": {
        "owner": None, "source": None, "live": None, "folder": None, "every": False, "limit": 5, "skip": 0,
    },
    "resolve": {"text": "talk", "owner": None},
    "end_session": {"session_id": "talk", "end_reason": "done"},
    "end_conversation": {"session_id": "talk", "end_reason": "done"},
    "resume": {"session_id": "talk"},
    "branch": {"session_id": "talk", "at_seq": 1, "branch_id": "new", "title": "t", "folder": "/f"},
    "set_session_folder": {"session_id": "talk", "folder": "/f"},
    "set_session_title": {"session_id": "talk", "title": "t"},
    "append_message": lambda db: {
        "session_id": "talk", "role": "user", "content": "x", "uid": "new", "tool_calls": [], "tool_call_id": None,
        "at": 1.0, "expect_head": False, "create": NewConversation(source="s"), **with_lease(db),
    },
    "append_messages": lambda db: {
        "session_id": "talk", "messages": [NewMessage(role="user")], "expect_head": False,
        "create": NewConversation(source="s"), **with_lease(db),
    },
    "begin_conversation": {
        "session_id": "new", "message": NewMessage(role="user"), "create": NewConversation(source="s"), "ttl": 5,
    },
    "context": {"session_id": "talk", "upto": 1},
    "transcript": {"session_id": "talk", "after": 0, "upto": 2},
    "usage": {"session_id": "talk"},
    "hide": {"session_id": "talk", "from_seq": 1, "to_seq": 2},
    "show": {"session_id": "talk", "hide_epoch": None},
    "hides": {"session_id": "talk"},
    "pin": {"session_id": "talk", "seq": 2},
    "unpin": {"session_id": "talk", "seq": 1},
    "pins": {"session_id": "talk"},
    "redact": {"session_id": "talk", "seq": 1},
    "delete_conversation": {"session_id": "talk"},
    "acquire_lease": {"session_id": "talk", "purpose": "turn", "holder": "me", "ttl": 5},
    "renew_lease": with_lease,
    "release_lease": with_lease,
    "snapshot": {"session_id": "talk"},
    "begin_compaction": {"session_id": "talk", "holder": "me", "ttl": 5},
    "try_acquire_compression_lock": {"session_id": "talk", "holder": "me", "ttl_seconds": 5},
    "refresh_compression_lock": {"session_id": "talk", "holder": "me", "ttl_seconds": 5},
    "release_compression_lock": {"session_id": "talk", "holder": "me"},
    "get_compression_lock_holder": {"session_id": "talk"},
    "commit_compaction": lambda db: {
        "work": db.snapshot("talk"), "summary": "s", "cut_seq": 3, "pinned": [1], "seen_seq": 3, "child_id": "new",
        "ledger": {"a": 1}, "model": "m",
    },
    "undo_compaction": {"session_id": "talk"},
    "redo_compaction": {"session_id": "talk"},
    "compactions": {"session_id": "talk"},
    "budget": {"session_id": "talk"},
    "spend": {"session_id": "talk", "version": 0, "body": {"a": 1}},
    "remember": {"owner": "o", "text": "likes rain", "source": "talk"},
    "memories": {"owner": "o"},
    "revise_memory": {"owner": "o", "memory_id": 1, "text": "likes cake"},
    "forget_memory": {"owner": "o", "memory_id": 1},
    "receive": {"session_id": "talk", "key": "new", "text": "x", "kind": "notice"},
    "waiting": {"session_id": "talk", "limit": 3},
    "settle": {"inbound_id": 2, "outcome": "completed", "seq": 1, "outgoing": [mail.reply()]},
    "process_started": {"process": steps.process("new", "talk")},
    "process_ended": {"process_id": "running", "state": "exited", "exit_code": 0, "text": "x", "at": 1.0},
    "processes": {"session_id": "talk", "running_only": True},
    "grant": {"owner": "o", "rule": "shell(ls)", "session_id": "talk", "by": "me"},
    "grants": {"owner": "o", "session_id": "talk"},
    "revoke": {"grant_id": 1},
    "audit_begin": {
        "session_id": "talk", "call_id": "c", "tool": "t", "summary": "s", "allowed": True, "by": "me",
    },
    "audit_end": {"audit_id": 1, "ok": True},
    "audit": {"session_id": "talk", "since": 1.0, "denied": False, "limit": 3},
    "route": {"key": "r"},
    "routes": {"session_id": "talk"},
    "bind_route": {"key": "r", "session_id": "talk", "version": 0},
    "finalize_orphaned_compression_sessions": {"older_than_days": 7},
    "get_blob": {"digest": "0" * 64},
    "open_blob": {"digest": "0" * 64},
    "collect_blobs": {"older_than_hours": 24},
    "search": {
        "query": "a", "session_id": "talk", "limit": 3, "role": "user", "tool": "t", "owner": "o", "after": 1.0,
        "before": 2.0, "neighbours": 1, "own": True,
    },
    "export_to": lambda _: {"write": io.StringIO(), "session_ids": ["talk"]},
    "export_pages": lambda _: {"write": io.StringIO(), "session_ids": ["talk"], "form": "markdown"},
    "import_from": lambda _: {"read": io.StringIO(), "revive": False},
    "arrive": {"new": mail.new()},
    "arrival": {"arrival_id": 1},
    "arrival_by_key": {"platform": "far", "key": "1"},
    "arrivals_with_prefix": {"platform": "far", "prefix": "1", "limit": 3},
    "last_arrival": {"session_id": "talk", "platform": "far"},
    "arrivals_joined": {"arrival_id": 1},
    "arrivals_since": {"route": mail.ROUTE, "at": 1.0},
    "arrivals_from": {"platform": "telegram", "sender": "42", "at": 1.0},
    "open_arrivals": {"route": mail.ROUTE, "limit": 3},
    "open_routes": {"limit": 3},
    "waiting_homes": {"limit": 3},
    "seq_of": {"session_id": "talk", "uid": "u"},
    "take_up": lambda db: {
        "route": mail.came(db, "open", "other")[0].route, "choose": first, "claim": None, "idle": True, "ttl": 5,
        "limit": 3,
    },
    "begin_arrival": lambda db: {
        "target": "talk", "joined": [each.id for each in mail.came(db, "joined")], **with_arrival(db),
    },
    "settle_arrival": lambda db: {
        "outcome": "answered", "seq": mail.said(db, "talk", "open"), "conversation_id": "talk",
        "outgoing": [mail.reply()], "release": False, **with_arrival(db),
    },
    "home_of": {"session_id": "talk"},
    "forget_arrivals": {"older_than_days": 30},
    "claim": {"key": "new", "ttl": 5, "holder": "me"},
    "renew_claim": with_claim,
    "release_claim": with_claim,
    "questions": {"conversation_id": "talk", "limit": 5},
    "post": lambda db: {
        "new": mail.reply(), "key": "k", "arrival": mail.came(db, "open")[0].id, "conversation_id": "talk",
    },
    "outgoing": {"outgoing_id": 1},
    "replies": {"arrival_id": 1},
    "due_outgoing": {"platform": "far", "limit": 3, "now": 1.0},
    "begin_sending": lambda db: {**with_outgoing(db), **with_claim(db)},
    "delivered": lambda db: {**with_outgoing(db), "external": "there"},
    "send_failed": lambda db: {**with_outgoing(db), "error": "busy", "retry_at": 1.0},
    "person": {"platform": "far", "sender": "7"},
    "people": {"platform": "far"},
    "allow_person": {"platform": "far", "sender": "7", "role": "user", "by": "me", "name": "Ada"},
    "deny_person": {"platform": "far", "sender": "7", "by": "me"},
    "forget_person": {"platform": "far", "sender": "7"},
    "strangers_told": {"platform": "far", "sender": "7", "now": 1.0},
    "ask_to_pair": {"platform": "far", "sender": "7", "name": "Ada", "now": 1.0},
    "pair": lambda db: {"platform": "far", "code": db.ask_to_pair("far", "7"), "by": "me"},
    "meta": {"key": "note"},
    "set_meta": {"key": "note", "value": "x"},
}  # fmt: skip


def refused(call: Callable[[], object]) -> errors.HoldfastError | None:
    """How it was refused, if it was; any other error is the test's failure."""
    try:
        call()
    except errors.HoldfastError as error:
        return error
    return None
