"""Junk values, and every public method with valid arguments."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Sequence
from typing import Any

from holdfast import NewConversation, NewMessage, SessionDB, errors, types
from holdfast.store.mail import queue_status
from tests.support import conversations, facets, mail

HOSTILE: list[Any] = ["'; DROP TABLE messages; --", "a\0b", "\ud800", 2**63, float("nan"), None]
"""Values that Python may accept and a database may not."""
JUNK = [
    *HOSTILE, 5, -1, 2**70, 1.5, float("inf"), True, b"bytes", "", " ", "x" * 1_000_000, "../../etc/passwd", [], [None],
    [5], ["talk"], {}, {"a": 1}, {5: 5}, (), set(), object(), type,
]  # fmt: skip

Arguments = dict[str, Any]

_WITHOUT_ARGUMENTS = {"close", "leases", "mail.chat_leases", "mail.counts", "mail.unsent_counts"}
_ADMIN = (
    "info status count_messages fsck schema_faults repair_schema prune_empty_sessions run_upkeep_once scrub shrink"
    " free_stale_leases unscrubbed_since update_search_index rebuild_search_index search_status"
    " is_unfinished_copy check_restorable"
    # These take paths, stores, or names of the server, and junk would become files: see the tests of each.
    " backup check_backup restore backup_if_due backup_made_at prune copy_to allow_role get_or_set_profile"
)
_WITH_FILES = {"blobs.put"} | {f"admin.{name}" for name in _ADMIN.split()}
CALLS = sorted(facets.calls() - _WITHOUT_ARGUMENTS - _WITH_FILES)

# Valid arguments by their names.
VALID: Arguments = {
    "session_id": "talk", "parent_session_id": "talk", "conversation_id": "talk", "source": "s", "model": "m",
    "title": "t", "owner": "o", "folder": "/f", "metadata": {"a": 1}, "live": True, "every": False, "skip": 0,
    "limit": 3, "near": False, "reading": True, "end_reason": "done", "branch_id": "new", "at_seq": 1, "role": "user",
    "content": "x", "uid": "new", "tool_calls": [], "tool_call_id": None, "at": 1.0, "now": 1.0, "expect_head": False,
    "create": NewConversation(source="s"), "message": NewMessage(role="user"), "messages": [NewMessage(role="user")],
    "seq": 1, "from_seq": 1, "to_seq": 2, "upto": 2, "hide_epoch": None, "purpose": "turn", "holder": "me", "ttl": 5,
    "ttl_seconds": 5, "summary": "s", "cut_seq": 3, "pinned": [1], "seen_seq": 3, "child_id": "new", "ledger": {"a": 1},
    "keep_lease": False, "version": 0, "body": {"a": 1}, "key": "note", "value": "x", "text": "x", "kind": "notice",
    "query": "a", "tool": "t", "after": 0, "before": 2.0, "neighbours": 1, "own": True, "memory_id": 1, "entry_id": 2,
    "outcome": "completed", "outgoing": [mail.reply()], "process": conversations.process("new", "talk"),
    "process_id": "running", "state": "exited", "exit_code": 0, "running_only": True, "rule": "shell(ls)", "by": "me",
    "grant_id": 1, "call_id": "c", "allowed": True, "audit_id": 1, "ok": True, "since": 1.0, "denied": False,
    "older_than_days": 7, "older_than_hours": 24, "max_bytes": 5, "digest": "0" * 64, "write": io.StringIO(),
    "session_ids": ["talk"], "form": "markdown", "read": io.StringIO(), "revive": False, "progress": None,
    "platform": "far", "sender": "7", "name": "Ada", "replace": True, "new": mail.new(), "prefix": "1", "days": 30,
    "cursor": queue_status.ExpiryCursor(), "route": mail.ROUTE, "inbound_id": 1, "outgoing_id": 1, "idle": True,
    "target": "talk", "release": False, "external": "there", "error": "busy", "retry_at": 1.0,
}  # fmt: skip


def _with_lease(db: SessionDB) -> Arguments:
    return {"lease": db.acquire_lease("talk", "turn", "me")}


def _with_chat_lease(db: SessionDB) -> Arguments:
    return {"lease": db.mail.acquire_chat_lease(mail.CLAIM)}


def _with_inbound(db: SessionDB) -> Arguments:
    return {"inbound_id": mail.came(db, "open")[0].id, **_with_chat_lease(db)}


def _with_outgoing(db: SessionDB) -> Arguments:
    return {"outgoing_id": db.mail.replies(mail.answered(db, "talk").id)[0].id}


def _with_link_code(db: SessionDB) -> Arguments:
    return {"code": db.contacts.create_link_code("talk")}


def _choose_first(waiting: Sequence[types.InboundMessage], _: types.Route) -> tuple[int, str, list[int]]:
    return waiting[0].id, "talk", [each.id for each in waiting[1:]]


# Arguments that differ from those above, or have to be made in the store first.
SPECIAL: dict[str, Arguments | Callable[[SessionDB], Arguments]] = {
    **dict.fromkeys(["append_message", "append_messages", "renew_lease", "release_lease"], _with_lease),
    **dict.fromkeys(["mail.renew_chat_lease", "mail.release_chat_lease"], _with_chat_lease),
    **dict.fromkeys(["mail.mark_delivered", "mail.mark_failed"], _with_outgoing),
    **dict.fromkeys(["contacts.link_by_code", "contacts.revoke_link_code"], _with_link_code),
    "create_session": {"session_id": "new"},
    "begin_conversation": {"session_id": "new"},
    "resolve": {"text": "talk", "owner": None},
    "commit_compaction": lambda db: {"work": db.snapshot("talk")},
    "memory.add": {"source": "talk"},
    "mail.begin_next_inbound": lambda db: {"choose": _choose_first, "lease": None, **_with_inbound(db)},
    "mail.begin_inbound": lambda db: {"joined": [each.id for each in mail.came(db, "joined")], **_with_inbound(db)},
    "mail.settle_inbound": lambda db: {"seq": mail.said(db, "talk", "open"), **_with_inbound(db)},
    "mail.post": lambda db: {"new": mail.reply(), "inbound_id": mail.came(db, "open")[0].id},
    "mail.begin_sending": lambda db: {**_with_outgoing(db), **_with_chat_lease(db)},
    "contacts.pair": lambda db: {"code": db.contacts.create_pairing_code("far", "7")},
}


def parameters(call: str) -> list[str]:
    signature = inspect.signature(inspect.unwrap(facets.method(call)))  # type: ignore[arg-type]
    return [name for name in signature.parameters if name != "self"]


def valid_arguments(db: SessionDB, call: str) -> Arguments:
    special = SPECIAL.get(call, {})
    given = special(db) if callable(special) else special
    return {name: given[name] if name in given else VALID[name] for name in parameters(call)}


def refused(call: Callable[[], object]) -> errors.HoldfastError | None:
    """Return the Holdfast error that a call raised, or None; other errors fail the test."""
    try:
        call()
    except errors.HoldfastError as error:
        return error
    return None
