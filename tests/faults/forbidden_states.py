"""States that the database itself must refuse, as data for both dialects."""

from __future__ import annotations

import re
from typing import Any

from holdfast import types
from holdfast.store.db import SessionDB
from tests.support import conversations, mail

A, B, BRANCH, E, U, M = 1, 2, 3, 5, 6, 7  # keys of the conversations below


def populate(db: SessionDB) -> None:
    """An open conversation with all there can be, an ended one, a branch, a deleted one, an undone compaction."""
    db.create_session("a", source="test", title="A")
    _say(db, "a", 4)
    db.redact("a", 1)
    db.commit_compaction(
        db.acquire_lease("a", "compact", "me"), summary="s", cut_seq=2, seen_seq=3, pinned=[1], child_id="a-1"
    )  # epoch 3, token 1
    _say(db, "a", 6)
    db.hide("a", 5, 5)  # epoch 4
    db.show("a")  # epoch 5
    db.hide("a", 6, 6)  # epoch 6
    db.acquire_lease("a", "turn", "me")  # token 2
    db.bind_route("chat", "a", version=0)
    db.bind_route("chat", "a", version=1)
    for version in (0, 1):
        db.update_budget("a", version, {"attempts": version})
    _act(db, "a")
    db.create_session("b", source="test")
    _say(db, "b", 2)
    db.pin("b", 2)
    db.end_session("b", "done")
    db.branch("a", 4, branch_id="a-b")
    db.append_message("a-b", role="user", content="in the branch", uid="a-b:5")
    db.append_message("d", role="user", content="x", create=types.NewConversation(source="test"))
    db.delete_conversation("d")
    db.create_session("e", source="test")
    _say(db, "e", 3)
    db.create_session("u", source="test")
    _say(db, "u", 3)
    db.commit_compaction(db.acquire_lease("u", "compact", "me"), summary="s", cut_seq=2, child_id="u-1")
    db.undo_compaction("u")
    _populate_mail(db)


def _act(db: SessionDB, c: str) -> None:
    """Two memories (1, 2), what came in (1 settled, 2 waiting, 3 of a process), processes p (ended) and q (running),
    grants (1 everywhere, 2 here), acts (1 ended, 2 open, 3 denied)."""
    db.memory.add("o", "likes tea", source=c)
    db.memory.add("o", "likes rain")
    db.mail.settle_inbox_entry(db.mail.add_inbox_entry(c, "k", "text").id, "completed", 2)
    db.mail.add_inbox_entry(c, "w", "text")
    for name in ("p", "q"):
        db.processes.record_start(conversations.process(name, c))
    db.processes.record_end("p", "exited", 0, "p ended")
    db.permissions.grant("o", "shell(git)", by="me")
    db.permissions.grant("o", "shell(git)", session_id=c, by="me")
    db.permissions.end_audit(db.permissions.begin_audit(c, "c1", "shell", "ran", True, "me"), True)
    for allowed in (True, False):
        db.permissions.begin_audit(c, "c2", "shell", "runs", allowed, "me")


def _say(db: SessionDB, c: str, upto: int) -> None:
    for number in range(db.conversation(c).last_seq + 1, upto + 1):
        db.append_message(c, role="user", content=f"message {number}", uid=f"{c}:{number}")


def add_message(conversation: int, seq: int, session: int, uid: str = "new", verb: str = "INSERT") -> str:
    return (
        f"{verb} INTO messages (id, session, uid, role, at, body, digest) "
        f"VALUES (({conversation} << 32) + {seq}, {session}, '{uid}', 'user', 1.0, '{{}}', zeroblob(16))"
    )


def add_session(conversation: int, ordinal: int, parent: str, first_seq: int, id: str = "new", live: str = "1") -> str:
    ended = "NULL, NULL, NULL" if live == "1" else f"1.0, 'done', {first_seq - 1}"
    return (
        "INSERT INTO sessions (conversation, ordinal, id, parent, live, source, started_at, first_seq,"
        " ended_at, end_reason, last_seq)"
        f" VALUES ({conversation}, {ordinal}, '{id}', {parent}, {live}, 'test', 1.0, {first_seq}, {ended})"
    )


def end(conversation: int, ordinal: int, last_seq: int) -> str:
    return (
        f"UPDATE sessions SET live = NULL, ended_at = 1.0, end_reason = 'compression', last_seq = {last_seq}"
        f" WHERE conversation = {conversation} AND ordinal = {ordinal}"
    )


def add_compaction(conversation: int, epoch: int, session: int, base: str, cut: int, seen: int, token: str) -> str:
    return (
        "INSERT INTO compactions (conversation, epoch, base_epoch, session, cut_seq, seen_seq, token, body, at)"
        f" VALUES ({conversation}, {epoch}, {base}, {session}, {cut}, {seen}, {token}, '{{}}', 1.0)"
    )


def _rotated(base: str = "3", cut: int = 4, seen: int = 6, token: str = "2", epoch: int = 7) -> str:
    """A compaction of `a` in all its parts, with one of them as given."""
    return "; ".join(
        (
            end(A, 2, 6),
            add_session(A, 3, "2", 7),
            add_compaction(A, epoch, 3, base, cut, seen, token),
            f"UPDATE conversations SET epoch = 7, head = 3, compaction_epoch = {epoch} WHERE key = {A}",
        )
    )


def add_conversation(id: str = "new", epoch: int = 1, last_seq: int = 0, fork: str = "NULL, NULL, NULL, NULL") -> str:
    return (
        "INSERT INTO conversations (key, id, source, created_at, head, live, epoch, last_seq,"
        " forked_from, forked_at, forked_epoch, origin)"
        f" VALUES (9, '{id}', 'test', 1.0, 1, 1, {epoch}, {last_seq}, {fork}); "
    ) + add_session(9, 1, "NULL", last_seq + 1, id)


def _set(table: str, change: str, where: str) -> str:
    return f"UPDATE {table} SET {change} WHERE {where}"


def _updates(changes: dict[tuple[str, str], str]) -> dict[str, str]:
    """One state for each of the changes, which are separated by bars."""
    return {
        f"{table}: {change} where {where}": _set(table, change, where)
        for (table, where), several in changes.items()
        for change in several.split(" | ")
    }


def move(change: str, key: int = A) -> str:
    return _set("conversations", f"{change}, epoch = epoch + 1", f"key = {key}")


def _populate_mail(db: SessionDB) -> None:
    """Arrivals 1 (answered), 2 (joined into it), 3 (begun), 4 (open) and 5 (open, on another route).

    To be sent are 1 (delivered) and 2 (failed), parts of a reply to 1; 3, posted while 3 is worked; and 4, which
    answers a notice. One sender has access, another asks for it.
    """
    mail.came(db, *"abcd", route="route", address={})
    mail.came(db, "e", route="other", address={})
    claim = db.mail.acquire_chat_lease("k", 300.0, "me")
    db.mail.begin_inbound(claim, 1, "m", [2])
    born = types.NewConversation(source="test")
    db.append_message("m", role="user", content="a", uid="inbox:far:a", create=born)
    db.mail.settle_inbound(claim, 1, "answered", seq=1, conversation_id="m", outgoing=[_reply(), _reply()])
    db.mail.begin_inbound(claim, 3, "m")
    db.mail.post(_reply(), key="q", inbound_id=3, conversation_id="m")
    db.mail.settle_inbox_entry(db.mail.add_inbox_entry("m", "noticed", "came in").id, "answered", outgoing=[_reply()])
    db.mail.begin_sending(claim, 1)
    db.mail.mark_delivered(1, "there")
    db.mail.mark_failed(2, "no", None)
    db.contacts.allow("far", "7")
    db.contacts.create_pairing_code("far", "8")
    db.contacts.mark_stranger_notified("far", "9")


def _reply() -> types.NewOutgoing:
    return mail.reply(address={})


def _arrival(**other: Any) -> str:
    values = {"platform": "'far'", "key": "'new'", "route": "'route'", "home": "'far'", "chat": "'1'", "sender": "'7'"}
    return _insert("arrivals", {**values, "address": "'{}'", "body": "'{}'", "at": "1.0", **other})


def _outgoing(**other: Any) -> str:
    """Insert an outgoing message, or (with a part) another part of the reply to the first inbound message."""
    values = {"platform": "'far'", "chat": "'1'", "address": "'{}'", "kind": "'reply'", "body": "'{}'", "due_at": "1.0"}
    at = f"(SELECT settled_at FROM arrivals WHERE id = {other.get('arrival', 1)})" if "part" in other else "1.0"
    return _insert("outbox", {**values, "at": at, **other})


def _insert(table: str, values: dict[str, Any]) -> str:
    return f"INSERT INTO {table} ({', '.join(values)}) VALUES ({', '.join(map(str, values.values()))})"


def _settled(where: str, *, seq: str = "NULL", conversation: str = "NULL", outcome: str = "'x'") -> str:
    said = f"outcome = {outcome}, settled_at = 1.0, settled_by = 'u'"
    return _set("arrivals", f"{said}, seq = {seq}, conversation = {conversation}", where)


HIDE = "INSERT INTO hides (conversation, epoch, from_seq, to_seq, shown_epoch) VALUES"
BUDGET = "INSERT INTO budgets (conversation, version, uid, body) VALUES"
SPENT = '{"spent":{}}'
MEMORY = "INSERT INTO memories (owner, text, at, updated_at, source) VALUES"
INBOX = "INSERT INTO inbox (conversation, key, kind, text, at, outcome, settled_at, settled_by) VALUES"
PROCESS = "INSERT INTO processes (id, conversation, command, folder, place, started_at, state, ended_at) VALUES"
GRANT = "INSERT INTO grants (owner, rule, conversation, given_at, given_by) VALUES"
AUDIT = "INSERT INTO audit (conversation, uid, call_id, tool, summary, allowed, decided_by, at, ended_at, ok) VALUES"
PIN = "INSERT INTO pins (conversation, seq, at) VALUES"
LEASE = "INSERT INTO leases (conversation, purpose, token, holder, expires, boot, snap_seq) VALUES"
OPEN_A, ENDED_A, ENDED_B = (f"conversation = {c} AND ordinal = {o}" for c, o in ((A, 2), (A, 1), (B, 1)))
REDACTED, LAST_OF_A = (f"id = ({A} << 32) + {seq}" for seq in (1, 6))

# Otherwise each state made from these would be refused for another reason.
ALLOWED = [
    _rotated(),
    add_conversation("other", last_seq=2, fork=f"'e', 2, NULL, {E}"),
    add_message(E, 4, 1),
    f"{BUDGET} ({E}, 1, 'u', '{SPENT}')",
    f"{MEMORY} ('o', 'x', 1.0, 1.0, {E})",
    f"{INBOX} ({A}, 'n', 'notice', 't', 1.0, NULL, NULL, NULL)",
    _set("inbox", "outcome = 'x', seq = 3, settled_at = 1.0, settled_by = 'u'", "id = 2"),
    _set("inbox", "text = '', redacted_at = 1.0", "id = 1"),
    f"{PROCESS} ('n', {A}, 'c', '/', '{{}}', 1.0, 'running', NULL)",
    f"{INBOX} ({A}, 'process:q', 'process', 't', 1.0, NULL, NULL, NULL); "
    + _set("processes", "state = 'gone', ended_at = 1.0, ended_by = 'u'", "id = 'q'"),
    f"{GRANT} ('o', 'r', {A}, 1.0, 'me')",
    f"{AUDIT} ({A}, 'n', 'c', 't', 's', 1, 'me', 1.0, NULL, NULL)",
    f"{PIN} ({A}, 6, 1.0)",
    f"DELETE FROM pins WHERE conversation = {B}",
    _set("audit", "ended_at = 1.0, ok = 0", "id = 2"),
    _set("audit", "summary = '', redacted_at = 1.0", "id = 1"),
    add_session(B, 2, "1", 3, id="b-1") + "; " + move("head = 2, live = 1", B),
    _arrival(),
    _set("arrivals", "attempts = 1, target = 'm'", "id = 5"),
    _settled("id = 5", conversation=str(M)),
    _set("arrivals", "body = '', redacted_at = 1.0", "id = 1"),
    _set("arrivals", "joined = 3", "id = 4"),
    _outgoing(arrival=1, part=2, conversation=M),
    _outgoing(arrival=3, key="'new'"),
    _set("outbox", "delivered_at = 1.0, external = 'x'", "id = 3"),
    _set("outbox", "body = '', redacted_at = 1.0", "id = 2"),
    "DELETE FROM outbox WHERE id = 1",
    _set("claims", "token = token + 1, holder = 'x'", "key = 'k'"),
    _set("claims", "holder = NULL", "key = 'k'"),
]

_VISIBLE_CHANGES = {
    ("sessions", ENDED_B): "live=1, ended_at=NULL, end_reason=NULL, last_seq=NULL | end_reason = NULL",
    ("sessions", OPEN_A): (
        f"live = NULL | ended_at = 1.0 | live = 2 | conversation = {E}, ordinal = 2 | "
        "ordinal = 3, parent = 2 | first_seq = 4"
    ),
    ("sessions", f"conversation = {E}"): "id = 'other'",
    ("conversations", f"key = {A}"): ("head = 3 | epoch = 1 | fence = 1 | last_seq = 4 | last_seq = 7 | id = 'other'"),
    ("conversations", f"key = {B}"): (
        "title = 'A' | title = '' | title = printf('%.101c', 'x') | folder = '' | metadata = '[]' | "
        "metadata = '{' || printf('%.4096c', 'x') | folder = printf('%.4097c', 'x')"
    ),
    ("conversations", f"key = {BRANCH}"): f"forked_at = 3 | origin = {U}",
    ("messages", LAST_OF_A): (
        f"body = '{{\"content\":\"lie\"}}' | role = 'system' | uid = 'other' | session = 1 | "
        f"id = ({A} << 32) + 9 | id = ({E} << 32) + 4 | redacted_at = 1.0"
    ),
    ("messages", REDACTED): "redacted_at = NULL, body = '{}'",
    ("compactions", f"conversation = {A}"): "cut_seq = 6",
    ("hides", f"conversation = {A} AND epoch = 6"): "shown_epoch = 2 | shown_epoch = 99",
    ("leases", f"conversation = {A}"): f"token = 9 | conversation = {B}",
    ("routes", "key = 'chat'"): "conversation = 77, version = 9",
    ("budgets", f"conversation = {A}"): "version = 0",
    ("inbox", "id = 2"): (
        "outcome='x', seq=99, settled_at=1.0, settled_by='u' | outcome = 'completed' | "
        "outcome = 'x', settled_at = 1.0 | seq = 2 | text = '', redacted_at = 1.0"
    ),
    ("inbox", "id = 1"): "text = ''",
    ("processes", "id = 'q'"): (
        "ended_at = 1.0 | exit_code = 0 | state = 'gone' | state='gone', ended_at=1.0, ended_by='u'"
    ),
    ("audit", "id = 2"): "ended_at = 1.0 | summary = 'lie', redacted_at = 1.0",
    ("audit", "id = 3"): "ended_at = 1.0, ok = 1",
    ("arrivals", "id = 4"): (
        "outcome = 'x' | outcome = 'x', settled_at = 1.0 | body = '', redacted_at = 1.0 | joined = 1 | "
        "joined = 2 | joined = 99"
    ),
    ("arrivals", "id = 1"): (
        f"outcome = NULL, settled_at = NULL, settled_by = NULL | body = '' | address = '' | conversation = {E}"
    ),
    ("arrivals", "id = 5"): "joined = 4",
    ("arrivals", "id = 3"): "joined = 4",
    ("outbox", "id = 3"): (
        "delivered_at = 1.0, failed_at = 1.0, error = 'x' | body = '', redacted_at = 1.0 | chat = '2'"
    ),
    ("outbox", "id = 1"): "body = ''",
    ("people", "sender = '7'"): "role = 'root'",
    ("strangers", "sender = '8'"): "salt = NULL | expires_at = NULL",
}

VISIBLE = {
    "two live sessions": add_session(A, 3, "2", 7),
    "second continuation": add_session(A, 2, "1", 5),
    "continuation of an older session": f"{end(A, 2, 6)}; {add_session(A, 3, '1', 7)}; {move('head = 3')}",
    "continuation without a parent": f"{end(A, 2, 6)}; {add_session(A, 3, 'NULL', 7)}; {move('head = 3')}",
    "live session under an ended conversation": add_session(B, 2, "1", 3),
    "session born ended": add_session(B, 2, "1", 3, live="NULL"),
    "continuation that begins elsewhere": f"{add_session(B, 2, '1', 9)}; {move('head = 2, live = 1', B)}",
    "session id used twice": f"{add_session(B, 2, '1', 3, id='a')}; {move('head = 2, live = 1', B)}",
    "deleted session id used again": f"{add_session(B, 2, '1', 3, id='d')}; {move('head = 2, live = 1', B)}",
    "conversation reopened without a session": move("live = 1", B),
    "open conversation with an ended head": end(A, 2, 6),
    "ended conversation with a live head": move("live = NULL"),
    "session that ends beyond the log": f"{end(A, 2, 99)}; {move('live = NULL')}",
    "session that ends before its last message": f"{end(A, 2, 5)}; {move('live = NULL')}",
    "ended session deleted": f"DELETE FROM sessions WHERE {ENDED_A}",
    "head deleted": f"DELETE FROM sessions WHERE {OPEN_A}",
    "session replaced": (
        "INSERT OR REPLACE INTO sessions (conversation, ordinal, id, live, source, started_at, first_seq)"
        f" VALUES ({E}, 1, 'other', 1, 'test', 1.0, 1)"
    ),
    "conversation without a session": add_conversation().partition("; ")[0],
    "conversation born with messages it has not": add_conversation(last_seq=5),
    "conversation born before the first epoch": add_conversation(epoch=0),
    "head that does not exist": move("head = 3"),
    "head that goes back": move("head = 1"),
    "deletion without tombstones": f"DELETE FROM conversations WHERE key = {E}",
    "deletion that leaves messages": (
        f"INSERT INTO tombstones SELECT id, 1.0 FROM sessions WHERE conversation = {E};"
        f"DELETE FROM conversations WHERE key = {E}; DELETE FROM sessions WHERE conversation = {E}"
    ),
    "conversation replaced": (
        "INSERT OR REPLACE INTO conversations (key, id, source, created_at, head, live, epoch, last_seq)"
        f" VALUES ({E}, 'e', 'test', 1.0, 1, 1, 1, 0)"
    ),
    "branch from beyond its origin": add_conversation(last_seq=9, fork=f"'e', 9, NULL, {E}"),
    "branch from nowhere": add_conversation(last_seq=2, fork="'x', 2, NULL, 77"),
    "branch without an origin": add_conversation(last_seq=2, fork="'e', 2, NULL, NULL"),
    "branch from no session of its origin": add_conversation(last_seq=2, fork=f"'b', 2, NULL, {E}"),
    "branch of itself": add_conversation(last_seq=2, fork="'new', 2, NULL, 9"),
    "branch on an unknown compaction": add_conversation(last_seq=2, fork=f"'a', 2, 77, {A}"),
    "branch on a compaction that saw more": add_conversation(last_seq=2, fork=f"'a', 2, 3, {A}"),
    "origin deleted under its branch": f"DELETE FROM conversations WHERE key = {A}",
    "gap in the log": add_message(A, 8, 2),
    "message before the first": add_message(A, 0, 2),
    "message before the fork point": add_message(BRANCH, 3, 1),
    "uid used twice": add_message(A, 7, 2, uid="a:2"),
    "empty uid": add_message(A, 7, 2, uid=""),
    "message in an ended session": add_message(B, 3, 1),
    "message in an older session": add_message(A, 7, 1),
    "message of no conversation": add_message(77, 1, 1),
    "message of an unknown role": add_message(A, 7, 2).replace("'user'", "'robot'"),
    "message without a digest": add_message(A, 7, 2).replace("zeroblob(16)", "zeroblob(0)"),
    "last message deleted": f"DELETE FROM messages WHERE {LAST_OF_A}",
    "message replaced by its number": add_message(A, 6, 2, verb="INSERT OR REPLACE"),
    "message replaced by its uid": add_message(A, 7, 2, uid="a:2", verb="INSERT OR REPLACE"),
    "compaction that saw beyond the log": _rotated(seen=9),
    "cut beyond what was seen": _rotated(cut=6, seen=5),
    "cut before the one it stands on": _rotated(cut=1),
    "negative cut": _rotated(base="NULL", cut=-1),
    "token beyond the fence": _rotated(token="9"),
    "token of an older compaction": _rotated(token="1"),
    "compaction on an unknown one": _rotated(base="5"),
    "compaction that jumps an epoch": _rotated(epoch=8),
    "compaction without a continuation": add_compaction(E, 2, 1, "NULL", 1, 2, "NULL"),
    "compaction in a session that does not exist": add_compaction(A, 7, 3, "3", 4, 6, "2"),
    "second compaction of one session": add_compaction(A, 7, 2, "3", 4, 4, "2"),
    "compaction deleted": f"DELETE FROM compactions WHERE conversation = {A}",
    "context on an unknown compaction": move("compaction_epoch = 5"),
    "context on a compaction to come": move("compaction_epoch = 99"),
    "redo of an unknown compaction": move("redo_epoch = 5"),
    "redo of a compaction to come": move("redo_epoch = 99"),
    "hide beyond the log": f"{HIDE} ({A}, 6, 5, 99, NULL)",
    "hide before the log": f"{HIDE} ({A}, 6, 0, 2, NULL)",
    "hide that runs backwards": f"{HIDE} ({A}, 6, 4, 3, NULL)",
    "hide of an epoch to come": f"{HIDE} ({A}, 9, 4, 5, NULL)",
    "hide born shown": f"{HIDE} ({A}, 6, 3, 3, 7)",
    "lease with a token never given": f"{LEASE} ({A}, 'compact', 9, 'x', 1.0, 'unix', 6)",
    "lease for an unknown purpose": f"{LEASE} ({A}, 'nap', 2, 'x', 1.0, 'unix', 6)",
    "route without a name": f"INSERT INTO routes VALUES ('', {A}, 1, 1.0)",
    "budget born without a version": f"{BUDGET} ({E}, 0, 'u', '{SPENT}')",
    "budget of no conversation": f"{BUDGET} (77, 1, 'u', '{SPENT}')",
    "budget without a writer": f"{BUDGET} ({E}, 1, '', '{SPENT}')",
    "second budget": f"{BUDGET} ({A}, 1, 'u', '{SPENT}')",
    "budget that is no JSON": f"{BUDGET} ({E}, 1, 'u', 'spent')",
    "budget that says nothing": f"{BUDGET} ({E}, 1, 'u', '{{}}')",
    "endless budget": f"{BUDGET} ({E}, 1, 'u', '{{\"spent\":{{\"x\":\"' || printf('%.65536c', 'x') || '\"}}}}')",
    "memory without words": f"{MEMORY} ('o', '', 1.0, 1.0, NULL)",
    "endless memory": f"{MEMORY} ('o', printf('%.501c', 'x'), 1.0, 1.0, NULL)",
    "memory said twice": f"{MEMORY} ('o', 'likes tea', 1.0, 1.0, NULL)",
    "memory learnt nowhere": f"{MEMORY} ('o', 'x', 1.0, 1.0, 77)",
    "more memories than are kept": (
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 499)"
        " INSERT INTO memories (owner, text, at, updated_at) SELECT 'o', 'fact ' || i, 1.0, 1.0 FROM n"
    ),
    "inbound of no conversation": f"{INBOX} (77, 'n', 'notice', 't', 1.0, NULL, NULL, NULL)",
    "inbound without a key": f"{INBOX} ({A}, '', 'notice', 't', 1.0, NULL, NULL, NULL)",
    "inbound that comes in twice": f"{INBOX} ({E}, 'k', 'notice', 't', 1.0, NULL, NULL, NULL)",
    "process of no conversation": f"{PROCESS} ('n', 77, 'c', '/', '{{}}', 1.0, 'running', NULL)",
    "process without an id": f"{PROCESS} ('', {A}, 'c', '/', '{{}}', 1.0, 'running', NULL)",
    "process without a valid place": f"{PROCESS} ('n', {A}, 'c', '/', 'here', 1.0, 'running', NULL)",
    "process started twice": f"{PROCESS} ('q', {A}, 'c', '/', '{{}}', 1.0, 'running', NULL)",
    "process born ended": f"{PROCESS} ('n', {A}, 'c', '/', '{{}}', 1.0, 'exited', 1.0)",
    "grant in no conversation": f"{GRANT} ('o', 'r', 77, 1.0, 'me')",
    "grant of nothing": f"{GRANT} ('o', '', NULL, 1.0, 'me')",
    "act of no conversation": f"{AUDIT} (77, 'n', 'c', 't', 's', 1, 'me', 1.0, NULL, NULL)",
    "act half allowed": f"{AUDIT} ({A}, 'n', 'c', 't', 's', 2, 'me', 1.0, NULL, NULL)",
    "pin before the log": f"{PIN} ({B}, 0, 1.0)",
    "pin beyond the log": f"{PIN} ({B}, 3, 1.0)",
    "arrival that comes in twice": _arrival(key="'a'"),
    "arrival that became no message": _settled("id = 4", seq="99", conversation=str(M)),
    "arrival that became another's message": _settled("id = 4", seq="1", conversation=str(M)),
    "arrival of no conversation": _settled("id = 4", conversation="77"),
    "arrival deleted before its reply": "DELETE FROM arrivals WHERE id = 1",
    "reply to nothing": _outgoing(part=0),
    "reply after its outcome": _outgoing(arrival=1, part=2, conversation=M, at="1.0"),
    "reply to another chat": _outgoing(arrival=1, part=2, conversation=M, chat="'2'"),
    "reply by another platform": _outgoing(arrival=1, part=2, conversation=M, platform="'near'"),
    "reply to another address": _outgoing(arrival=1, part=2, conversation=M, address="'{\"chat\":2}'"),
    "reply of another conversation": _outgoing(arrival=1, part=2, conversation=E),
    "reply that outlives its conversation": _outgoing(arrival=1, part=2),
    "reply that skips a part": _outgoing(arrival=1, part=3, conversation=M),
    "reply to two": _outgoing(arrival=1, part=2, conversation=M, inbound=4),
    "post without a key": _outgoing(),
    "post of no conversation": _outgoing(key="'new'", conversation=77),
    "claim with a token never given": "INSERT INTO claims (key, token, expires, boot) VALUES ('n', 0, 1.0, '')",
    **_updates(_VISIBLE_CHANGES),
}

_INVISIBLE_CHANGES = {
    ("sessions", ENDED_B): "end_reason = 'other' | ended_at = 9.0",
    ("sessions", OPEN_A): "id = 'other'",
    ("conversations", f"key = {A}"): "compaction_epoch = NULL | epoch = 5 | owner = 'x' | created_at = 9.0",
    ("conversations", f"key = {BRANCH}"): "forked_epoch = NULL",
    ("messages", LAST_OF_A): "at = 9.0",
    ("messages", REDACTED): "redacted_at = 9.0",
    ("compactions", f"conversation = {A}"): (
        'cut_seq = 3 | token = NULL | body = \'{"summary":"lie"}\' | '
        "body = '{\"summary\":\"lie\"}', redacted_at = 1.0 | body = '{}', redacted_at = 1.0"
    ),
    ("hides", f"conversation = {A} AND epoch = 6"): "from_seq = 4 | to_seq = 5, from_seq = 1",
    ("hides", f"conversation = {A} AND epoch = 4"): "shown_epoch = 6 | shown_epoch = NULL",
    ("leases", f"conversation = {A}"): "token = 1 | holder = 'x' | snap_seq = 1",
    ("routes", "key = 'chat'"): f"version = 1 | conversation = {B} | key = 'other', version = 9",
    ("budgets", f"conversation = {A}"): f"version = 1 | body = '{SPENT}' | conversation = {E}, version = 9",
    ("tombstones", "id = 'd'"): "id = 'other'",
    ("memories", "id = 1"): f"owner = 'x' | source = {B} | id = 9",
    ("inbox", "id = 1"): (
        "outcome = 'failed' | outcome = NULL, seq = NULL, settled_at = NULL, settled_by = NULL | seq = 3"
    ),
    ("inbox", "id = 2"): f"text = 'lie' | key = 'other' | kind = 'other' | conversation = {E}",
    ("processes", "id = 'p'"): (
        "state = 'killed' | exit_code = 1 | state='running', ended_at=NULL, ended_by=NULL, exit_code=NULL"
    ),
    ("processes", "id = 'q'"): f"command = 'lie' | place = '{{}}' | conversation = {E}",
    ("grants", "id = 2"): "conversation = NULL, rule = 'x'",
    ("grants", "id = 1"): "rule = 'shell'",
    ("audit", "id = 1"): "ok = 0",
    ("audit", "id = 3"): "allowed = 1",
    ("audit", "id = 2"): f"tool = 'x' | summary = 'lie' | decided_by = 'x' | conversation = {E}",
    ("pins", f"conversation = {B}"): f"seq = 1 | conversation = {E}",
    ("arrivals", "id IN (1, 2)"): "outcome = 'failed'",
    ("arrivals", "id = 1"): "attempts = attempts + 1 | conversation = NULL, seq = NULL",
    ("arrivals", "id = 4"): (
        "body = '{\"text\":\"lie\"}' | sender = 'x' | key = 'x' | route = 'x' | chat = '2' | address = '[]'"
    ),
    ("arrivals", "id = 3"): "target = 'x' | attempts = 0",
    ("outbox", "id = 3"): (
        f"failed_at = 1.0, error = NULL | body = '{{\"text\":\"lie\"}}' | address = '[]' | conversation = {E} | "
        "arrival = 4"
    ),
    ("outbox", "id = 1"): "delivered_at = NULL, external = NULL | external = 'x' | attempts = attempts - 1",
    ("outbox", "id = 2"): "error = 'x' | failed_at = NULL, error = NULL, delivered_at = 1.0",
    ("claims", "key = 'k'"): "token = token - 1 | holder = 'x'",
}

INVISIBLE = {
    "conversation ended without a new epoch": f"{end(A, 2, 6)}; {_set('conversations', 'live = NULL', f'key = {A}')}",
    "compaction that ignores the current one": _rotated(base="NULL"),
    "compaction of an old epoch": _rotated(epoch=6),
    "hide of an epoch gone by": f"{HIDE} ({A}, 5, 4, 5, NULL)",
    "hide deleted": f"DELETE FROM hides WHERE conversation = {A}",
    "lease with an old token": f"{LEASE} ({A}, 'compact', 1, 'x', 1.0, 'unix', 6)",
    "route deleted": "DELETE FROM routes",
    "budget born with a history": f"{BUDGET} ({E}, 2, 'u', '{SPENT}')",
    "budget deleted": f"DELETE FROM budgets WHERE conversation = {A}",
    "tombstone removed": "DELETE FROM tombstones",
    "inbound born settled": f"{INBOX} ({A}, 'n', 'notice', 't', 1.0, 'completed', 1.0, 'u')",
    "inbound deleted": "DELETE FROM inbox WHERE id = 2",
    "process deleted": "DELETE FROM processes WHERE id = 'p'",
    "grant given twice": f"{GRANT} ('o', 'shell(git)', NULL, 1.0, 'me')",
    "act written down afterwards": f"{AUDIT} ({A}, 'n', 'c', 't', 's', 1, 'me', 1.0, 1.0, 1)",
    "act deleted": "DELETE FROM audit WHERE id = 3",
    "pin set twice": f"{PIN} ({B}, 2, 1.0)",
    "arrival without a key": _arrival(key="''"),
    "arrival born settled": _arrival(outcome="'x'", settled_at="1.0", settled_by="'u'"),
    "arrival born begun": _arrival(attempts="1"),
    "open arrival deleted": "DELETE FROM arrivals WHERE id = 4",
    "reply with a part twice": _outgoing(arrival=1, part=1, conversation=M),
    "post with a key of another": _outgoing(key="'q'"),
    "post that shouts": _outgoing(key="'new'", kind="'shout'"),
    "post born delivered": _outgoing(key="'new'", delivered_at="1.0"),
    "outgoing deleted before it went": "DELETE FROM outbox WHERE id = 3",
    "claim deleted": "DELETE FROM claims",
    "fewer wrong codes than none": "INSERT INTO lockouts (platform, failures, failed_at) VALUES ('n', -1, 1.0)",
    **_updates(_INVISIBLE_CHANGES),
}

_TRANSLATIONS = (
    (r"zeroblob\((\d+)\)", r"decode(repeat('00', \1), 'hex')"),
    (r"printf\('%\.(\d+)c', 'x'\)", r"repeat('x', \1)"),
    (r"INTO messages \(id, (.+?)\) VALUES \(\((\d+) << 32\) \+ (\d+),",
     r"INTO messages (conversation, seq, \1) VALUES (\2, \3,"),
    (r"SET id = \((\d+) << 32\) \+ (\d+)", r"SET conversation = \1, seq = \2"),
    (r"WHERE id = \((\d+) << 32\) \+ (\d+)", r"WHERE conversation = \1 AND seq = \2"),
)  # fmt: skip


def in_postgres(sql: str) -> str:
    """Translate a statement for SQLite."""
    for theirs, ours in _TRANSLATIONS:
        sql = re.sub(theirs, ours, sql)
    return sql.replace("INSERT OR REPLACE", "INSERT")
