"""Junk values, and every public method with valid arguments."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

from holdfast import NewConversation, NewMessage, SessionDB, errors, types
from holdfast.store.mail import queue_status
from tests.support import conversations, mail

HOSTILE: list[Any] = ["'; DROP TABLE messages; --", "a\0b", "\ud800", 2**63, float("nan"), None]
"""Values that Python may accept and a database may not."""
JUNK = [
    *HOSTILE, 5, -1, 2**70, 1.5, float("inf"), True, b"bytes", "", " ", "x" * 1_000_000, "../../etc/passwd", [], [None],
    [5], ["talk"], {}, {"a": 1}, {5: 5}, (), set(), object(), type,
]  # fmt: skip

Arguments = dict[str, Any]


def with_lease(db: SessionDB) -> Arguments:
    return {"lease": db.acquire_lease("talk", "turn", "me")}


def with_chat_lease(db: SessionDB) -> Arguments:
    return {"lease": db.mail.acquire_chat_lease(mail.CLAIM)}


def with_inbound(db: SessionDB) -> Arguments:
    return {"inbound_id": mail.came(db, "open")[0].id, **with_chat_lease(db)}


def with_outgoing(db: SessionDB) -> Arguments:
    return {"outgoing_id": db.mail.replies(mail.answered(db, "talk").id)[0].id}


def first(waiting: Sequence[types.InboundMessage], _: types.Route) -> tuple[int, str, list[int]]:
    return waiting[0].id, "talk", [each.id for each in waiting[1:]]


CALLS: dict[str, Arguments | Callable[[SessionDB], Arguments]] = {
    **{
        call: {"session_id": "talk"}
        for call in (
            "get_session", "conversation", "head", "sessions", "continuations", "resume", "usage", "hides", "pins",
            "delete_conversation", "snapshot", "get_compression_lock_holder", "undo_compaction", "redo_compaction",
            "compactions", "budget", "routes", "mail.linked_chats", "contacts.create_link_code",
        )
    },
    **{f"mail.{call}": {"limit": 3} for call in ("open_routes", "open_inboxes", "backlog", "failures")},
    **{f"mail.{call}": {"inbound_id": 1} for call in ("inbound", "joined_inbound", "replies")},
    **{f"mail.{call}": {"outgoing_id": 1} for call in ("resend", "outgoing")},
    **{
        f"contacts.{call}": {"platform": "far", "sender": "7"}
        for call in ("get", "delete", "renew_pairing_code", "linked_owner", "unlink")
    },
    "blobs.referenced_by": {"session_id": "talk", "digest": "0" * 64},
    **{f"blobs.{call}": {"digest": "0" * 64} for call in ("get", "open")},
    "create_session": {
        "session_id": "new", "source": "s", "model": "m", "parent_session_id": "talk", "title": "t", "owner": "o",
        "folder": "/f", "metadata": {"a": 1},
    },
    "branches": {"session_id": "talk", "reading": True},
    "list_sessions": {
        "owner": None, "source": None, "live": None, "folder": None, "every": False, "limit": 5, "skip": 0,
    },
    "resolve": {"text": "talk", "owner": None},
    "end_session": {"session_id": "talk", "end_reason": "done"},
    "end_conversation": {"session_id": "talk", "end_reason": "done"},
    "branch": {"session_id": "talk", "at_seq": 1, "branch_id": "new", "title": "t", "folder": "/f"},
    "set_session_folder": {"session_id": "talk", "folder": "/f"},
    "set_session_metadata": {"session_id": "talk", "metadata": {"a": 1}},
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
    "hide": {"session_id": "talk", "from_seq": 1, "to_seq": 2},
    "show": {"session_id": "talk", "hide_epoch": None},
    "pin": {"session_id": "talk", "seq": 2},
    "unpin": {"session_id": "talk", "seq": 1},
    "redact": {"session_id": "talk", "seq": 1},
    "acquire_lease": {"session_id": "talk", "purpose": "turn", "holder": "me", "ttl": 5},
    "renew_lease": with_lease,
    "release_lease": with_lease,
    "begin_compaction": {"session_id": "talk", "holder": "me", "ttl": 5},
    "try_acquire_compression_lock": {"session_id": "talk", "holder": "me", "ttl_seconds": 5},
    "refresh_compression_lock": {"session_id": "talk", "holder": "me", "ttl_seconds": 5},
    "release_compression_lock": {"session_id": "talk", "holder": "me"},
    "commit_compaction": lambda db: {
        "work": db.snapshot("talk"), "summary": "s", "cut_seq": 3, "pinned": [1], "seen_seq": 3, "child_id": "new",
        "ledger": {"a": 1}, "model": "m",
    },
    "update_budget": {"session_id": "talk", "version": 0, "body": {"a": 1}},
    "memory.add": {"owner": "o", "text": "likes rain", "source": "talk"},
    "memory.all": {"owner": "o"},
    "memory.update": {"owner": "o", "memory_id": 1, "text": "likes cake"},
    "memory.delete": {"owner": "o", "memory_id": 1},
    "mail.add_inbox_entry": {"session_id": "talk", "key": "new", "text": "x", "kind": "notice"},
    "mail.inbox_entries": {"session_id": "talk", "limit": 3},
    "mail.settle_inbox_entry": {"entry_id": 2, "outcome": "completed", "seq": 1, "outgoing": [mail.reply()]},
    "processes.record_start": {"process": conversations.process("new", "talk")},
    "processes.record_end": {"process_id": "running", "state": "exited", "exit_code": 0, "text": "x", "at": 1.0},
    "processes.all": {"session_id": "talk", "running_only": True},
    "permissions.grant": {"owner": "o", "rule": "shell(ls)", "session_id": "talk", "by": "me"},
    "permissions.grants": {"owner": "o", "session_id": "talk"},
    "permissions.revoke": {"grant_id": 1},
    "permissions.begin_audit": {
        "session_id": "talk", "call_id": "c", "tool": "t", "summary": "s", "allowed": True, "by": "me",
    },
    "permissions.end_audit": {"audit_id": 1, "ok": True},
    "permissions.audit_log": {"session_id": "talk", "since": 1.0, "denied": False, "limit": 3},
    "route": {"key": "r"},
    "bind_route": {"key": "r", "session_id": "talk", "version": 0},
    "admin.finalize_orphaned_sessions": {"older_than_days": 7},
    "blobs.collect": {"older_than_hours": 24},
    "search": {
        "query": "a", "session_id": "talk", "limit": 3, "role": "user", "tool": "t", "owner": "o", "after": 1.0,
        "before": 2.0, "neighbours": 1, "own": True,
    },
    "admin.export_to": lambda _: {"write": io.StringIO(), "session_ids": ["talk"]},
    "admin.export_pages": lambda _: {"write": io.StringIO(), "session_ids": ["talk"], "form": "markdown"},
    "admin.import_from": lambda _: {"read": io.StringIO(), "revive": False},
    "mail.add_inbound": {"new": mail.new()},
    "mail.inbound_by_key": {"platform": "far", "key": "1"},
    "mail.inbound_with_prefix": {"platform": "far", "prefix": "1", "limit": 3},
    "mail.newest_inbound": {"platform": "far", "days": 1.0, "limit": 3},
    "mail.last_inbound": {"session_id": "talk", "platform": "far"},
    "mail.count_inbound_on": {"route": mail.ROUTE, "at": 1.0},
    "mail.last_chat": {"session_id": "talk", "route": mail.ROUTE},
    "mail.count_inbound_from": {"platform": "telegram", "sender": "42", "at": 1.0},
    "mail.open_inbound": {"route": mail.ROUTE, "limit": 3},
    "find_seq": {"session_id": "talk", "uid": "u"},
    "mail.begin_next_inbound": lambda db: {
        "route": mail.came(db, "open", "other")[0].route, "choose": first, "lease": None, "idle": True, "ttl": 5,
        "limit": 3,
    },
    "mail.begin_inbound": lambda db: {
        "target": "talk", "joined": [each.id for each in mail.came(db, "joined")], **with_inbound(db),
    },
    "mail.settle_inbound": lambda db: {
        "outcome": "answered", "seq": mail.said(db, "talk", "open"), "conversation_id": "talk",
        "outgoing": [mail.reply()], "release": False, **with_inbound(db),
    },
    "mail.expire": {"days": 30, "cursor": queue_status.ExpiryCursor()},
    "mail.acquire_chat_lease": {"key": "new", "ttl": 5, "holder": "me"},
    "mail.renew_chat_lease": with_chat_lease,
    "mail.release_chat_lease": with_chat_lease,
    "mail.questions": {"conversation_id": "talk", "limit": 5},
    "mail.post": lambda db: {
        "new": mail.reply(), "key": "k", "inbound_id": mail.came(db, "open")[0].id, "conversation_id": "talk",
    },
    "mail.due_outgoing": {"platform": "far", "limit": 3, "now": 1.0},
    "mail.begin_sending": lambda db: {**with_outgoing(db), **with_chat_lease(db)},
    "mail.mark_delivered": lambda db: {**with_outgoing(db), "external": "there"},
    "mail.mark_failed": lambda db: {**with_outgoing(db), "error": "busy", "retry_at": 1.0},
    "contacts.all": {"platform": "far"},
    "contacts.allow": {"platform": "far", "sender": "7", "role": "user", "by": "me", "name": "Ada"},
    "contacts.deny": {"platform": "far", "sender": "7", "by": "me"},
    "contacts.mark_stranger_notified": {"platform": "far", "sender": "7", "now": 1.0},
    "contacts.create_pairing_code": {"platform": "far", "sender": "7", "name": "Ada", "now": 1.0},
    "contacts.pair": lambda db: {"platform": "far", "code": db.contacts.create_pairing_code("far", "7"), "by": "me"},
    "contacts.links": {"owner": "o"},
    "contacts.link": {"platform": "far", "sender": "7", "owner": "o"},
    **{
        f"contacts.{call}": lambda db: {"platform": "far", "sender": "7", "code": db.contacts.create_link_code("talk")}
        for call in ("link_by_code", "revoke_link_code")
    },
    "admin.titles_to_redact": {"session_id": "talk", "seq": 1},
    "admin.get_meta": {"key": "note"},
    "admin.set_meta": {"key": "note", "value": "x"},
}  # fmt: skip


def refused(call: Callable[[], object]) -> errors.HoldfastError | None:
    """Return the Holdfast error that a call raised, or None; other errors fail the test."""
    try:
        call()
    except errors.HoldfastError as error:
        return error
    return None
