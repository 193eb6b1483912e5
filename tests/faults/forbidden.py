"""States the database itself must refuse, whoever writes them: the list, as data.

Each has a name, which both dialects share, the statements that would write it, and whether it can be told
afterwards by looking (`seen`), or only as a change while it happens (a counter that went back to a value
it could have had). The store they are written against is made by `furnish`.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast import types
from holdfast.store.db import SessionDB
from tests.faults import forbidden_mail


class Forbidden(NamedTuple):
    name: str
    sql: str
    seen: bool = True


A, B, BRANCH, E, U = 1, 2, 3, 5, 6  # keys of the conversations below


def furnish(db: SessionDB) -> None:
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
    forbidden_mail.furnish(db)


def _act(db: SessionDB, c: str) -> None:
    """Two memories (1, 2), what came in (1 settled, 2 waiting, 3 of a process), processes p (ended) and q (running),
    grants (1 everywhere, 2 here), acts (1 ended, 2 open, 3 denied)."""
    db.memory.add("o", "likes tea", source=c)
    db.memory.add("o", "likes rain")
    db.mail.settle_inbox_entry(db.mail.add_inbox_entry(c, "k", "text").id, "completed", 2)
    db.mail.add_inbox_entry(c, "w", "text")
    for name in ("p", "q"):
        db.processes.record_start(process(name, c))
    db.processes.record_end("p", "exited", 0, "p ended")
    db.permissions.grant("o", "shell(git)", by="me")
    db.permissions.grant("o", "shell(git)", session_id=c, by="me")
    db.permissions.end_audit(db.permissions.begin_audit(c, "c1", "shell", "ran", True, "me"), True)
    for allowed in (True, False):
        db.permissions.begin_audit(c, "c2", "shell", "runs", allowed, "me")


def process(name: str, c: str) -> types.Process:
    return types.Process(id=name, conversation_id=c, command="make", folder="/", started_at=1.0, place='{"pid":1}')


def _say(db: SessionDB, c: str, upto: int) -> None:
    for number in range(db.conversation(c).last_seq + 1, upto + 1):
        db.append_message(c, role="user", content=f"message {number}", uid=f"{c}:{number}")


def _message(conversation: int, seq: int, session: int, uid: str = "new", verb: str = "INSERT") -> str:
    return (
        f"{verb} INTO messages (id, session, uid, role, at, body, digest) "
        f"VALUES (({conversation} << 32) + {seq}, {session}, '{uid}', 'user', 1.0, '{{}}', zeroblob(16))"
    )


def _session(conversation: int, ordinal: int, parent: str, first_seq: int, id: str = "new", live: str = "1") -> str:
    ended = "NULL, NULL, NULL" if live == "1" else f"1.0, 'done', {first_seq - 1}"
    return (
        "INSERT INTO sessions (conversation, ordinal, id, parent, live, source, started_at, first_seq,"
        " ended_at, end_reason, last_seq)"
        f" VALUES ({conversation}, {ordinal}, '{id}', {parent}, {live}, 'test', 1.0, {first_seq}, {ended})"
    )


def _end(conversation: int, ordinal: int, last_seq: int) -> str:
    return (
        f"UPDATE sessions SET live = NULL, ended_at = 1.0, end_reason = 'compression', last_seq = {last_seq}"
        f" WHERE conversation = {conversation} AND ordinal = {ordinal}"
    )


def _compaction(conversation: int, epoch: int, session: int, base: str, cut: int, seen: int, token: str) -> str:
    return (
        "INSERT INTO compactions (conversation, epoch, base_epoch, session, cut_seq, seen_seq, token, body, at)"
        f" VALUES ({conversation}, {epoch}, {base}, {session}, {cut}, {seen}, {token}, '{{}}', 1.0)"
    )


def _rotated(base: str = "3", cut: int = 4, seen: int = 6, token: str = "2", epoch: int = 7) -> str:
    """A compaction of `a` in all its parts, with one of them as given."""
    return "; ".join(
        (
            _end(A, 2, 6),
            _session(A, 3, "2", 7),
            _compaction(A, epoch, 3, base, cut, seen, token),
            f"UPDATE conversations SET epoch = 7, head = 3, compaction_epoch = {epoch} WHERE key = {A}",
        )
    )


def _conversation(id: str = "new", epoch: int = 1, last_seq: int = 0, fork: str = "NULL, NULL, NULL, NULL") -> str:
    return (
        "INSERT INTO conversations (key, id, source, created_at, head, live, epoch, last_seq,"
        " forked_from, forked_at, forked_epoch, origin)"
        f" VALUES (9, '{id}', 'test', 1.0, 1, 1, {epoch}, {last_seq}, {fork}); "
    ) + _session(9, 1, "NULL", last_seq + 1, id)


def _set(table: str, change: str, where: str) -> str:
    return f"UPDATE {table} SET {change} WHERE {where}"


def _moved(change: str, key: int = A) -> str:
    return _set("conversations", f"{change}, epoch = epoch + 1", f"key = {key}")


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
REDACTED, LAST_OF_A, FIRST_OF_B = (f"id = ({c} << 32) + {s}" for c, s in ((A, 1), (A, 6), (B, 1)))

LINEAGE = [
    Forbidden("two live sessions", _session(A, 3, "2", 7)),
    Forbidden("second continuation", _session(A, 2, "1", 5)),
    Forbidden("continuation that skips its parent", _session(A, 4, "3", 7)),
    Forbidden("continuation of an older session", f"{_end(A, 2, 6)}; {_session(A, 3, '1', 7)}; {_moved('head = 3')}"),
    Forbidden("continuation without a parent", f"{_end(A, 2, 6)}; {_session(A, 3, 'NULL', 7)}; {_moved('head = 3')}"),
    Forbidden("live session under an ended conversation", _session(B, 2, "1", 3)),
    Forbidden("session born ended", _session(B, 2, "1", 3, live="NULL")),
    Forbidden("session of no conversation", _session(77, 1, "NULL", 1)),
    Forbidden("continuation that begins elsewhere", f"{_session(B, 2, '1', 9)}; {_moved('head = 2, live = 1', B)}"),
    Forbidden("session id used twice", f"{_session(B, 2, '1', 3, id='a')}; {_moved('head = 2, live = 1', B)}"),
    Forbidden("deleted session id used again", f"{_session(B, 2, '1', 3, id='d')}; {_moved('head = 2, live = 1', B)}"),
    Forbidden("reopened session", _set("sessions", "live=1, ended_at=NULL, end_reason=NULL, last_seq=NULL", ENDED_B)),
    Forbidden("conversation reopened without a session", _moved("live = 1", B)),
    Forbidden("open conversation with an ended head", _end(A, 2, 6)),
    Forbidden("ended conversation with a live head", _moved("live = NULL")),
    Forbidden("session that ends beyond the log", f"{_end(A, 2, 99)}; {_moved('live = NULL')}"),
    Forbidden("session that ends before its last message", f"{_end(A, 2, 5)}; {_moved('live = NULL')}"),
    Forbidden("end reason rewritten", _set("sessions", "end_reason = 'other'", ENDED_B), seen=False),
    Forbidden("end time rewritten", _set("sessions", "ended_at = 9.0", ENDED_B), seen=False),
    Forbidden("session neither live nor ended", _set("sessions", "live = NULL", OPEN_A)),
    Forbidden("session live and ended", _set("sessions", "ended_at = 1.0", OPEN_A)),
    Forbidden("session live in another way", _set("sessions", "live = 2", OPEN_A)),
    Forbidden("session without an end reason", _set("sessions", "end_reason = NULL", ENDED_B)),
    Forbidden("session moved to another conversation", _set("sessions", f"conversation = {E}, ordinal = 2", OPEN_A)),
    Forbidden("session renumbered", _set("sessions", "ordinal = 3, parent = 2", OPEN_A)),
    Forbidden("session renamed", _set("sessions", "id = 'other'", OPEN_A), seen=False),
    Forbidden("first session renamed", _set("sessions", "id = 'other'", f"conversation = {E}")),
    Forbidden("session that begins elsewhere", _set("sessions", "first_seq = 4", OPEN_A)),
    Forbidden("ended session deleted", f"DELETE FROM sessions WHERE {ENDED_A}"),
    Forbidden("head deleted", f"DELETE FROM sessions WHERE {OPEN_A}"),
    Forbidden(
        "session replaced",
        "INSERT OR REPLACE INTO sessions (conversation, ordinal, id, live, source, started_at, first_seq)"
        f" VALUES ({E}, 1, 'other', 1, 'test', 1.0, 1)",
    ),
]

CONVERSATIONS = [
    Forbidden("conversation without a session", _conversation().partition("; ")[0]),
    Forbidden("conversation born with messages it has not", _conversation(last_seq=5)),
    Forbidden("conversation born before the first epoch", _conversation(epoch=0)),
    Forbidden("head that does not exist", _moved("head = 3")),
    Forbidden("head that goes back", _moved("head = 1")),
    Forbidden("head moved without a new epoch", _set("conversations", "head = 3", f"key = {A}")),
    Forbidden(
        "conversation ended without a new epoch",
        f"{_end(A, 2, 6)}; {_set('conversations', 'live = NULL', f'key = {A}')}",
        seen=False,
    ),
    Forbidden(
        "view changed without a new epoch", _set("conversations", "compaction_epoch = NULL", f"key = {A}"), False
    ),
    Forbidden("epoch that goes back", _set("conversations", "epoch = 5", f"key = {A}"), seen=False),
    Forbidden("epoch older than what it counts", _set("conversations", "epoch = 1", f"key = {A}")),
    Forbidden("fence that goes back", _set("conversations", "fence = 1", f"key = {A}")),
    Forbidden("last_seq that goes back", _set("conversations", "last_seq = 4", f"key = {A}")),
    Forbidden("last_seq ahead of the log", _set("conversations", "last_seq = 7", f"key = {A}")),
    Forbidden("conversation renamed", _set("conversations", "id = 'other'", f"key = {A}")),
    Forbidden("conversation given to another owner", _set("conversations", "owner = 'x'", f"key = {A}"), seen=False),
    Forbidden("conversation made at another time", _set("conversations", "created_at = 9.0", f"key = {A}"), False),
    Forbidden("title used twice", _set("conversations", "title = 'A'", f"key = {B}")),
    Forbidden("empty title", _set("conversations", "title = ''", f"key = {B}")),
    Forbidden("endless title", _set("conversations", "title = printf('%.101c', 'x')", f"key = {B}")),
    Forbidden("empty folder", _set("conversations", "folder = ''", f"key = {B}")),
    Forbidden("metadata that is no object", _set("conversations", "metadata = '[]'", f"key = {B}")),
    Forbidden("endless metadata", _set("conversations", "metadata = '{' || printf('%.4096c', 'x')", f"key = {B}")),
    Forbidden("endless folder", _set("conversations", "folder = printf('%.4097c', 'x')", f"key = {B}")),
    Forbidden("deletion without tombstones", f"DELETE FROM conversations WHERE key = {E}"),
    Forbidden(
        "deletion that leaves messages",
        f"INSERT INTO tombstones SELECT id, 1.0 FROM sessions WHERE conversation = {E};"
        f"DELETE FROM conversations WHERE key = {E}; DELETE FROM sessions WHERE conversation = {E}",
    ),
    Forbidden(
        "conversation replaced",
        "INSERT OR REPLACE INTO conversations (key, id, source, created_at, head, live, epoch, last_seq)"
        f" VALUES ({E}, 'e', 'test', 1.0, 1, 1, 1, 0)",
    ),
    Forbidden("branch from beyond its origin", _conversation(last_seq=9, fork=f"'e', 9, NULL, {E}")),
    Forbidden("branch from nowhere", _conversation(last_seq=2, fork="'x', 2, NULL, 77")),
    Forbidden("branch without an origin", _conversation(last_seq=2, fork="'e', 2, NULL, NULL")),
    Forbidden("branch from no session of its origin", _conversation(last_seq=2, fork=f"'b', 2, NULL, {E}")),
    Forbidden("branch of itself", _conversation(last_seq=2, fork="'new', 2, NULL, 9")),
    Forbidden("branch on an unknown compaction", _conversation(last_seq=2, fork=f"'a', 2, 77, {A}")),
    Forbidden("branch on a compaction that saw more", _conversation(last_seq=2, fork=f"'a', 2, 3, {A}")),
    Forbidden("fork point moved", _set("conversations", "forked_at = 3", f"key = {BRANCH}")),
    Forbidden("branch given another origin", _set("conversations", f"origin = {U}", f"key = {BRANCH}")),
    Forbidden(
        "branch put on another compaction", _set("conversations", "forked_epoch = NULL", f"key = {BRANCH}"), False
    ),
    Forbidden("origin deleted under its branch", f"DELETE FROM conversations WHERE key = {A}"),
]

MESSAGES = [
    Forbidden("gap in the log", _message(A, 8, 2)),
    Forbidden("message before the first", _message(A, 0, 2)),
    Forbidden("message before the fork point", _message(BRANCH, 3, 1)),
    Forbidden("uid used twice", _message(A, 7, 2, uid="a:2")),
    Forbidden("empty uid", _message(A, 7, 2, uid="")),
    Forbidden("message in an ended session", _message(B, 3, 1)),
    Forbidden("message in an older session", _message(A, 7, 1)),
    Forbidden("message in a session that does not exist", _message(A, 7, 9)),
    Forbidden("message of no conversation", _message(77, 1, 1)),
    Forbidden("message of an unknown role", _message(A, 7, 2).replace("'user'", "'robot'")),
    Forbidden("message without a digest", _message(A, 7, 2).replace("zeroblob(16)", "zeroblob(0)")),
    Forbidden("last message deleted", f"DELETE FROM messages WHERE {LAST_OF_A}"),
    Forbidden("first message deleted", f"DELETE FROM messages WHERE {FIRST_OF_B}"),
    Forbidden("message rewritten", _set("messages", 'body = \'{"content":"lie"}\'', LAST_OF_A)),
    Forbidden("message given another role", _set("messages", "role = 'system'", LAST_OF_A)),
    Forbidden("message given another uid", _set("messages", "uid = 'other'", LAST_OF_A)),
    Forbidden("message given another time", _set("messages", "at = 9.0", LAST_OF_A), seen=False),
    Forbidden("message given to another session", _set("messages", "session = 1", LAST_OF_A)),
    Forbidden("message moved within the log", _set("messages", f"id = ({A} << 32) + 9", LAST_OF_A)),
    Forbidden("message moved to another conversation", _set("messages", f"id = ({E} << 32) + 4", LAST_OF_A)),
    Forbidden("redaction taken back", _set("messages", "redacted_at = NULL, body = '{}'", REDACTED)),
    Forbidden("redacted twice", _set("messages", "redacted_at = 9.0", REDACTED), seen=False),
    Forbidden("redacted message that kept its text", _set("messages", "redacted_at = 1.0", LAST_OF_A)),
    Forbidden("message replaced by its number", _message(A, 6, 2, verb="INSERT OR REPLACE")),
    Forbidden("message replaced by its uid", _message(A, 7, 2, uid="a:2", verb="INSERT OR REPLACE")),
]

COMPACTIONS = [
    Forbidden("compaction that saw beyond the log", _rotated(seen=9)),
    Forbidden("cut beyond what was seen", _rotated(cut=6, seen=5)),
    Forbidden("cut before the one it stands on", _rotated(cut=1)),
    Forbidden("negative cut", _rotated(base="NULL", cut=-1)),
    Forbidden("token beyond the fence", _rotated(token="9")),
    Forbidden("token of an older compaction", _rotated(token="1")),
    Forbidden("token that goes back", _rotated(token="0")),
    Forbidden("compaction on an unknown one", _rotated(base="5")),
    Forbidden("compaction beside the current one", _rotated(base="NULL"), seen=False),
    Forbidden("compaction that jumps an epoch", _rotated(epoch=8)),
    Forbidden("compaction of an old epoch", _rotated(epoch=6), seen=False),
    Forbidden("compaction without a continuation", _compaction(E, 2, 1, "NULL", 1, 2, "NULL")),
    Forbidden("compaction in a session that does not exist", _compaction(A, 7, 3, "3", 4, 6, "2")),
    Forbidden("compaction of no conversation", _compaction(77, 2, 2, "NULL", 0, 0, "NULL")),
    Forbidden("second compaction of one session", _compaction(A, 7, 2, "3", 4, 4, "2")),
    Forbidden("compaction with another cut", _set("compactions", "cut_seq = 3", f"conversation = {A}"), seen=False),
    Forbidden("compaction with a cut it never saw", _set("compactions", "cut_seq = 6", f"conversation = {A}")),
    Forbidden("compaction with another token", _set("compactions", "token = NULL", f"conversation = {A}"), seen=False),
    Forbidden("summary rewritten", _set("compactions", 'body = \'{"summary":"lie"}\'', f"conversation = {A}"), False),
    Forbidden(
        "summary rewritten as if redacted",
        _set("compactions", """body = '{"summary":"lie"}', redacted_at = 1.0""", f"conversation = {A}"),
        seen=False,
    ),
    Forbidden(
        "pinned messages redacted away",
        _set("compactions", "body = '{}', redacted_at = 1.0", f"conversation = {A}"),
        seen=False,
    ),
    Forbidden("compaction deleted", f"DELETE FROM compactions WHERE conversation = {A}"),
    Forbidden("context on an unknown compaction", _moved("compaction_epoch = 5")),
    Forbidden("context on a compaction to come", _moved("compaction_epoch = 99")),
    Forbidden("redo of an unknown compaction", _moved("redo_epoch = 5")),
    Forbidden("redo of a compaction to come", _moved("redo_epoch = 99")),
]

THE_REST = [
    Forbidden("hide beyond the log", f"{HIDE} ({A}, 6, 5, 99, NULL)"),
    Forbidden("hide before the log", f"{HIDE} ({A}, 6, 0, 2, NULL)"),
    Forbidden("hide that runs backwards", f"{HIDE} ({A}, 6, 4, 3, NULL)"),
    Forbidden("hide of an epoch to come", f"{HIDE} ({A}, 9, 4, 5, NULL)"),
    Forbidden("hide of an epoch gone by", f"{HIDE} ({A}, 5, 4, 5, NULL)", seen=False),
    Forbidden("hide born shown", f"{HIDE} ({A}, 6, 3, 3, 7)"),
    Forbidden("hide of no conversation", f"{HIDE} (77, 1, 1, 1, NULL)"),
    Forbidden("hide moved", _set("hides", "from_seq = 4", f"conversation = {A} AND epoch = 6"), seen=False),
    Forbidden("hide widened", _set("hides", "to_seq = 5, from_seq = 1", f"conversation = {A} AND epoch = 6"), False),
    Forbidden("hide shown before it was made", _set("hides", "shown_epoch = 2", f"conversation = {A} AND epoch = 6")),
    Forbidden("hide shown in an epoch to come", _set("hides", "shown_epoch = 99", f"conversation = {A} AND epoch = 6")),
    Forbidden("hide shown again", _set("hides", "shown_epoch = 6", f"conversation = {A} AND epoch = 4"), seen=False),
    Forbidden("hide hidden again", _set("hides", "shown_epoch = NULL", f"conversation = {A} AND epoch = 4"), False),
    Forbidden("hide deleted", f"DELETE FROM hides WHERE conversation = {A}", seen=False),
    Forbidden("lease with a token never given", f"{LEASE} ({A}, 'compact', 9, 'x', 1.0, 'unix', 6)"),
    Forbidden("lease with an old token", f"{LEASE} ({A}, 'compact', 1, 'x', 1.0, 'unix', 6)", seen=False),
    Forbidden("lease for an unknown purpose", f"{LEASE} ({A}, 'nap', 2, 'x', 1.0, 'unix', 6)"),
    Forbidden("lease on no conversation", f"{LEASE} (77, 'turn', 1, 'x', 1.0, 'unix', 0)"),
    Forbidden("lease whose token goes back", _set("leases", "token = 1", f"conversation = {A}"), seen=False),
    Forbidden("lease whose token runs ahead", _set("leases", "token = 9", f"conversation = {A}")),
    Forbidden("lease handed on without a new token", _set("leases", "holder = 'x'", f"conversation = {A}"), seen=False),
    Forbidden("lease with another snapshot", _set("leases", "snap_seq = 1", f"conversation = {A}"), seen=False),
    Forbidden("lease moved to another conversation", _set("leases", f"conversation = {B}", f"conversation = {A}")),
    Forbidden("route whose version goes back", _set("routes", "version = 1", "key = 'chat'"), seen=False),
    Forbidden("route bound without a new version", _set("routes", f"conversation = {B}", "key = 'chat'"), seen=False),
    Forbidden("route renamed", _set("routes", "key = 'other', version = 9", "key = 'chat'"), seen=False),
    Forbidden("route deleted", "DELETE FROM routes", seen=False),
    Forbidden("route to no conversation", _set("routes", "conversation = 77, version = 9", "key = 'chat'")),
    Forbidden("route without a name", f"INSERT INTO routes VALUES ('', {A}, 1, 1.0)"),
    Forbidden("route replaced", f"INSERT OR REPLACE INTO routes VALUES ('chat', {B}, 1, 1.0)", seen=False),
    Forbidden("budget whose version goes back", _set("budgets", "version = 1", f"conversation = {A}"), seen=False),
    Forbidden("budget spent without a new version", _set("budgets", f"body = '{SPENT}'", f"conversation = {A}"), False),
    Forbidden("budget without a version", _set("budgets", "version = 0", f"conversation = {A}")),
    Forbidden("budget born with a history", f"{BUDGET} ({E}, 2, 'u', '{SPENT}')", seen=False),
    Forbidden("budget born without a version", f"{BUDGET} ({E}, 0, 'u', '{SPENT}')"),
    Forbidden("budget of no conversation", f"{BUDGET} (77, 1, 'u', '{SPENT}')"),
    Forbidden("budget of nobody", f"{BUDGET} ({E}, 1, '', '{SPENT}')"),
    Forbidden("second budget", f"{BUDGET} ({A}, 1, 'u', '{SPENT}')"),
    Forbidden("budget that is no JSON", f"{BUDGET} ({E}, 1, 'u', 'spent')"),
    Forbidden("budget that is no object", f"{BUDGET} ({E}, 1, 'u', '[]')"),
    Forbidden("budget that says nothing", f"{BUDGET} ({E}, 1, 'u', '{{}}')"),
    Forbidden(
        "endless budget", f"{BUDGET} ({E}, 1, 'u', '{{\"spent\":{{\"x\":\"' || printf('%.65536c', 'x') || '\"}}}}')"
    ),
    Forbidden("budget moved", _set("budgets", f"conversation = {E}, version = 9", f"conversation = {A}"), seen=False),
    Forbidden("budget deleted", f"DELETE FROM budgets WHERE conversation = {A}", seen=False),
    Forbidden("budget replaced", f"INSERT OR REPLACE{BUDGET[6:]} ({A}, 1, 'u', '{SPENT}')", seen=False),
    Forbidden("tombstone removed", "DELETE FROM tombstones", seen=False),
    Forbidden("tombstone renamed", _set("tombstones", "id = 'other'", "id = 'd'"), seen=False),
    Forbidden("tombstone replaced", "INSERT OR REPLACE INTO tombstones VALUES ('d', 9.0)", seen=False),
]

ACTS = [
    Forbidden("memory without words", f"{MEMORY} ('o', '', 1.0, 1.0, NULL)"),
    Forbidden("endless memory", f"{MEMORY} ('o', printf('%.501c', 'x'), 1.0, 1.0, NULL)"),
    Forbidden("memory said twice", f"{MEMORY} ('o', 'likes tea', 1.0, 1.0, NULL)"),
    Forbidden("memory learnt nowhere", f"{MEMORY} ('o', 'x', 1.0, 1.0, 77)"),
    Forbidden(
        "more memories than are kept",
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 499)"
        " INSERT INTO memories (owner, text, at, updated_at) SELECT 'o', 'fact ' || i, 1.0, 1.0 FROM n",
    ),
    Forbidden("memory given to another owner", _set("memories", "owner = 'x'", "id = 1"), seen=False),
    Forbidden("memory learnt elsewhere", _set("memories", f"source = {B}", "id = 1"), seen=False),
    Forbidden("memory renumbered", _set("memories", "id = 9", "id = 1"), seen=False),
    Forbidden("inbound of no conversation", f"{INBOX} (77, 'n', 'notice', 't', 1.0, NULL, NULL, NULL)"),
    Forbidden("inbound without a key", f"{INBOX} ({A}, '', 'notice', 't', 1.0, NULL, NULL, NULL)"),
    Forbidden("inbound without a text", f"{INBOX} ({A}, 'n', 'notice', '', 1.0, NULL, NULL, NULL)"),
    Forbidden("inbound that comes in twice", f"{INBOX} ({E}, 'k', 'notice', 't', 1.0, NULL, NULL, NULL)"),
    Forbidden("inbound born settled", f"{INBOX} ({A}, 'n', 'notice', 't', 1.0, 'completed', 1.0, 'u')", seen=False),
    Forbidden(
        "inbound replaced", f"INSERT OR REPLACE{INBOX[6:]} ({A}, 'k', 'notice', 't', 1.0, NULL, NULL, NULL)", False
    ),
    Forbidden("outcome rewritten", _set("inbox", "outcome = 'failed'", "id = 1"), seen=False),
    Forbidden(
        "outcome taken back",
        _set("inbox", "outcome = NULL, seq = NULL, settled_at = NULL, settled_by = NULL", "id = 1"),
        False,
    ),
    Forbidden("outcome with another message", _set("inbox", "seq = 3", "id = 1"), seen=False),
    Forbidden(
        "outcome with a message that is not there",
        _set("inbox", "outcome='x', seq=99, settled_at=1.0, settled_by='u'", "id = 2"),
    ),
    Forbidden("inbound half settled", _set("inbox", "outcome = 'completed'", "id = 2")),
    Forbidden("inbound settled by nobody", _set("inbox", "outcome = 'x', settled_at = 1.0", "id = 2")),
    Forbidden("inbound that waits as a message", _set("inbox", "seq = 2", "id = 2")),
    Forbidden("inbound with another text", _set("inbox", "text = 'lie'", "id = 2"), seen=False),
    Forbidden("inbound that lost its text", _set("inbox", "text = ''", "id = 1")),
    Forbidden("inbound redacted while it waits", _set("inbox", "text = '', redacted_at = 1.0", "id = 2")),
    Forbidden("inbound with another key", _set("inbox", "key = 'other'", "id = 2"), seen=False),
    Forbidden("inbound of another kind", _set("inbox", "kind = 'other'", "id = 2"), seen=False),
    Forbidden("inbound moved to another conversation", _set("inbox", f"conversation = {E}", "id = 2"), seen=False),
    Forbidden("inbound deleted", "DELETE FROM inbox WHERE id = 2", seen=False),
    Forbidden("process of no conversation", f"{PROCESS} ('n', 77, 'c', '/', '{{}}', 1.0, 'running', NULL)"),
    Forbidden("process without an id", f"{PROCESS} ('', {A}, 'c', '/', '{{}}', 1.0, 'running', NULL)"),
    Forbidden("process nobody finds again", f"{PROCESS} ('n', {A}, 'c', '/', 'here', 1.0, 'running', NULL)"),
    Forbidden("process started twice", f"{PROCESS} ('q', {A}, 'c', '/', '{{}}', 1.0, 'running', NULL)"),
    Forbidden("process born ended", f"{PROCESS} ('n', {A}, 'c', '/', '{{}}', 1.0, 'exited', 1.0)"),
    Forbidden("process that naps", f"{PROCESS} ('n', {A}, 'c', '/', '{{}}', 1.0, 'napping', NULL)"),
    Forbidden("process that runs and has ended", _set("processes", "ended_at = 1.0", "id = 'q'")),
    Forbidden("process that runs with an exit code", _set("processes", "exit_code = 0", "id = 'q'")),
    Forbidden("process that ended at no time", _set("processes", "state = 'gone'", "id = 'q'")),
    Forbidden(
        "process whose end nobody is told of", _set("processes", "state='gone', ended_at=1.0, ended_by='u'", "id = 'q'")
    ),
    Forbidden("process ended again", _set("processes", "state = 'killed'", "id = 'p'"), seen=False),
    Forbidden("process with another exit code", _set("processes", "exit_code = 1", "id = 'p'"), seen=False),
    Forbidden(
        "process that runs again",
        _set("processes", "state='running', ended_at=NULL, ended_by=NULL, exit_code=NULL", "id = 'p'"),
        False,
    ),
    Forbidden("process with another command", _set("processes", "command = 'lie'", "id = 'q'"), seen=False),
    Forbidden("process found elsewhere", _set("processes", "place = '{}'", "id = 'q'"), seen=False),
    Forbidden(
        "process moved to another conversation", _set("processes", f"conversation = {E}", "id = 'q'"), seen=False
    ),
    Forbidden("process deleted", "DELETE FROM processes WHERE id = 'p'", seen=False),
    Forbidden(
        "process replaced", f"INSERT OR REPLACE{PROCESS[6:]} ('p', {A}, 'c', '/', '{{}}', 1.0, 'running', NULL)", False
    ),
    Forbidden("grant in no conversation", f"{GRANT} ('o', 'r', 77, 1.0, 'me')"),
    Forbidden("grant of nothing", f"{GRANT} ('o', '', NULL, 1.0, 'me')"),
    Forbidden("grant given twice", f"{GRANT} ('o', 'shell(git)', NULL, 1.0, 'me')", seen=False),
    Forbidden(
        "grant widened to all conversations", _set("grants", "conversation = NULL, rule = 'x'", "id = 2"), seen=False
    ),
    Forbidden("grant of something else", _set("grants", "rule = 'shell'", "id = 1"), seen=False),
    Forbidden("act of no conversation", f"{AUDIT} (77, 'n', 'c', 't', 's', 1, 'me', 1.0, NULL, NULL)"),
    Forbidden("act half allowed", f"{AUDIT} ({A}, 'n', 'c', 't', 's', 2, 'me', 1.0, NULL, NULL)"),
    Forbidden("act written down afterwards", f"{AUDIT} ({A}, 'n', 'c', 't', 's', 1, 'me', 1.0, 1.0, 1)", seen=False),
    Forbidden("act that ended without saying how", _set("audit", "ended_at = 1.0", "id = 2")),
    Forbidden("denied act that was done", _set("audit", "ended_at = 1.0, ok = 1", "id = 3")),
    Forbidden("act ended again", _set("audit", "ok = 0", "id = 1"), seen=False),
    Forbidden("act allowed afterwards", _set("audit", "allowed = 1", "id = 3"), seen=False),
    Forbidden("act of another tool", _set("audit", "tool = 'x'", "id = 2"), seen=False),
    Forbidden("act with another summary", _set("audit", "summary = 'lie'", "id = 2"), seen=False),
    Forbidden("act with a summary after its redaction", _set("audit", "summary = 'lie', redacted_at = 1.0", "id = 2")),
    Forbidden("act allowed by somebody else", _set("audit", "decided_by = 'x'", "id = 2"), seen=False),
    Forbidden("act moved to another conversation", _set("audit", f"conversation = {E}", "id = 2"), seen=False),
    Forbidden("act deleted", "DELETE FROM audit WHERE id = 3", seen=False),
    Forbidden("pin in no conversation", f"{PIN} (77, 1, 1.0)"),
    Forbidden("pin before the log", f"{PIN} ({B}, 0, 1.0)"),
    Forbidden("pin beyond the log", f"{PIN} ({B}, 3, 1.0)"),
    Forbidden("pin set twice", f"{PIN} ({B}, 2, 1.0)", seen=False),
    Forbidden("pin moved to another message", _set("pins", "seq = 1", f"conversation = {B}"), seen=False),
    Forbidden("pin moved to another conversation", _set("pins", f"conversation = {E}", f"conversation = {B}"), False),
]

EVERY = [
    *(*LINEAGE, *CONVERSATIONS, *MESSAGES, *COMPACTIONS, *THE_REST, *ACTS),
    *(Forbidden(*bad) for bad in forbidden_mail.EVERY),
]
