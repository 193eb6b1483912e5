"""Every write of the store as something a process can be killed in."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast import errors, types
from holdfast.store.db import SessionDB
from tests.faults import checker, zygote
from tests.support import conversations, faulty_disk

Args = dict[str, Any]


class Step(NamedTuple):
    """A write of the store. `again`: repeating it when it was already done changes nothing, so a client may."""

    operation: str
    prepare: Callable[[SessionDB, str], Args]
    call: Callable[[SessionDB, str, Args], Any]
    again: bool = True

    @property
    def operations(self) -> tuple[str, ...]:
        return tuple(self.operation.split())

    def run(self, db: SessionDB, args: Args) -> Any:
        return self.call(db, args["id"], args)


def begin(db: SessionDB, c: str, count: int = 4) -> Args:
    db.create_session(c, source="fault", model="m", title=f"title of {c}")
    for number in range(1, count + 1):
        db.append_message(c, role="user", content=f"message {number}", uid=f"{c}:{number}")
    return {"id": c}


def _prepare(*parts: Callable[[SessionDB, str], Any]) -> Callable[[SessionDB, str], Args]:
    """Prepare in several parts; the dictionaries among their results are arguments of the step."""

    def prepare(db: SessionDB, c: str) -> Args:
        args: Args = {}
        for part in parts:
            found = part(db, c)
            args |= found if isinstance(found, dict) else {}
        return args

    return prepare


def compacted(db: SessionDB, c: str) -> Args:
    args = begin(db, c)
    lease = db.acquire_lease(c, "compact", "earlier")
    db.commit_compaction(lease, summary=checker.summarize(db.context(c), 2), cut_seq=2, child_id=f"{c}-1")
    return args


def _leased(purpose: types.Purpose) -> Callable[[SessionDB, str], Args]:
    def prepare(db: SessionDB, c: str) -> Args:
        args = begin(db, c)
        return {**args, "lease": msgspec.to_builtins(db.acquire_lease(c, purpose, "me"))}

    return prepare


def _drafted(db: SessionDB, c: str) -> Args:
    args = compacted(db, c)
    lease = db.acquire_lease(c, "compact", "me")
    summary = checker.summarize(db.context(c, upto=lease.snapshot.last_seq), 3)
    db.append_message(c, role="user", content="meanwhile", uid=f"{c}:meanwhile")
    return {**args, "lease": msgspec.to_builtins(lease), "summary": summary}


def process(c: str) -> types.Process:
    return conversations.process(c, c, "make")


def _begin_audit(db: SessionDB, c: str, _: Args | None = None) -> Args:
    return {"act": db.permissions.begin_audit(c, "call", "shell", "make", True, "me")}


def _receive(db: SessionDB, c: str) -> Args:
    return {"inbound": db.mail.add_inbox_entry(c, f"key of {c}", "came in").id}


def _remember(db: SessionDB, c: str) -> Args:
    return {"memory": db.memory.add(c, "likes tea", source=c).id}


def _spend(db: SessionDB, c: str) -> None:
    db.update_budget(c, 0, {"attempts": 1})


def _start_process(db: SessionDB, c: str) -> None:
    db.processes.record_start(process(c))


def _pin(db: SessionDB, c: str) -> None:
    db.pin(c, 2)


_received = _prepare(begin, _receive)
_remembered = _prepare(begin, _remember)
_started = _prepare(begin, _start_process)
_ended = _prepare(begin, lambda db, c: db.end_conversation(c, "done"))
_hidden = _prepare(begin, lambda db, c: db.hide(c, 2, 3))
_undone = _prepare(compacted, lambda db, c: db.undo_compaction(c))
_read_by_branch = _prepare(compacted, lambda db, c: db.branch(c, 4, branch_id=f"{c}-b"))
_everything = _prepare(
    compacted,
    lambda db, c: db.hide(c, 4),
    lambda db, c: db.acquire_lease(c, "turn", "me"),
    lambda db, c: db.bind_route(f"chat:{c}", c, version=0),
    lambda db, c: db.permissions.grant(c, "shell(make)", session_id=c, by="me"),
    *(_spend, _receive, _start_process, _remember, _pin, _begin_audit),
)


def _acted(db: SessionDB, c: str) -> Args:
    """A message with a tool call, the records of the call, and the inbound message that it came from."""
    args, call = begin(db, c, 0), {"id": "call", "name": "start_process", "arguments": {"command": "make"}}
    db.append_message(c, role="assistant", tool_calls=[call], uid=f"{c}:1")
    db.mail.settle_inbox_entry(db.mail.add_inbox_entry(c, f"key of {c}", "came in").id, "completed", 1)
    db.permissions.begin_audit(c, "call", "start_process", "make", True, "me")
    db.processes.record_start(process(c))
    db.processes.record_end(c, "exited", 0, "ended: make", at=2.0)
    return args


def came(db: SessionDB, c: str, key: str = "") -> types.InboundMessage:
    """Store an inbound message on the route of a conversation."""
    return arrived(db, c, key)[0]


def arrived(db: SessionDB, c: str, key: str = "", text: str = "") -> tuple[types.InboundMessage, bool]:
    """The same, and whether it was new."""
    place = {"route": f"chat:{c}", "chat": c, "sender": c, "address": {"chat": c}}
    new = types.NewInboundMessage(platform="far", key=key or c, text=text or f"said {c}", **place)
    return db.mail.add_inbound(new)


def outgoing(c: str, text: str) -> types.NewOutgoing:
    return types.NewOutgoing(platform="far", chat=c, address={"chat": c}, text=text)


def _arrived(db: SessionDB, c: str) -> Args:
    args = begin(db, c)
    claim = msgspec.to_builtins(db.mail.acquire_chat_lease(f"route:chat:{c}", 300.0, "me"))
    return {**args, "claim": claim, "arrival": came(db, c).id, "other": came(db, c, f"{c}+").id}


def _begin(db: SessionDB, c: str, args: Args) -> types.InboundMessage | None:
    return db.mail.begin_inbound(_claim(args), args["arrival"], c, [args["other"]])


def _waiting(db: SessionDB, c: str) -> Args:
    args = begin(db, c)
    came(db, c)
    return {**args, "other": came(db, c, f"{c}+").id}


def _take_up(db: SessionDB, c: str, args: Args) -> types.NextInbound:
    def choose(waiting: Sequence[types.InboundMessage], _: types.Route) -> tuple[int, str, list[int]]:
        return waiting[0].id, c, [args["other"]]

    return db.mail.begin_next_inbound(f"chat:{c}", choose)


def _worked(db: SessionDB, c: str) -> Args:
    args = _arrived(db, c)
    _begin(db, args["id"], args)
    db.append_message(c, role="user", content=f"said {c}", uid=f"inbox:far:{c}")
    return args


def answer(db: SessionDB, claim: types.ChatLease, arrival: int, seq: int, c: str = "c") -> bool:
    """Settle an inbound message with its log entry and a reply in two parts."""
    where = {"seq": seq, "conversation_id": c, "outgoing": [outgoing(c, "one"), outgoing(c, "two")]}
    return db.mail.settle_inbound(claim, arrival, "answered", **where)


def _answer(db: SessionDB, c: str, args: Args) -> bool:
    return answer(db, _claim(args), args["arrival"], 5, c)


def _answered(db: SessionDB, c: str) -> Args:
    args = _worked(db, c)
    _answer(db, args["id"], args)
    return {**args, "outgoing": db.mail.replies(args["arrival"])[0].id}


def _claim(args: Args) -> types.ChatLease:
    return msgspec.convert(args["claim"], types.ChatLease)


def _lease(args: Args) -> types.Lease:
    return msgspec.convert(args["lease"], types.Lease)


def _append(db: SessionDB, c: str, args: Args, **how: Any) -> Any:
    return db.append_message(c, role="user", content="new", uid=f"{c}:new", **how)


def _batch(db: SessionDB, c: str, args: Args) -> Any:
    known = {"role": "user", "content": "message 2", "uid": f"{c}:2"}
    new = [{"role": "user", "content": f"new {n}", "uid": f"{c}:new{n}"} for n in range(3)]
    return db.append_messages(c, [new[0], known, *new[1:]])


def _create_with_route(db: SessionDB, c: str, args: Args) -> Any:
    return _append(db, c, args, create=types.NewConversation(source="fault", title=f"born {c}", route=f"chat:{c}"))


def _commit(db: SessionDB, c: str, args: Args) -> Any:
    child = f"{c}-2"
    return db.commit_compaction(_lease(args), summary=args["summary"], cut_seq=3, child_id=child)


def _commit_unleased(db: SessionDB, c: str, args: Args) -> Any:
    work, child = _lease(args).snapshot, f"{c}-2"
    return db.commit_compaction(work, summary=args["summary"], cut_seq=3, pinned=[1], child_id=child)


def two_calls(db: SessionDB, c: str, args: Args) -> Any:
    db.end_session(c, "compression")
    return db.create_session(f"{c}-1", source="fault", parent_session_id=c)


def _append_twice(db: SessionDB, c: str, args: Args) -> None:
    """The second one of a process is a single statement on PostgreSQL, and so is every one under a lease."""
    _append(db, c, args)
    db.append_message(c, role="user", content="again", uid=f"{c}:again")


# A step that does something else when it is repeated: no client may.
Once = functools.partial(Step, again=False)

STEPS: dict[str, Step] = {
    "append": Step("append", begin, _append),
    "append_twice": Step("append", begin, _append_twice),
    "append_batch": Step("append", begin, _batch),
    "append_create": Step("append", lambda db, c: {"id": c}, _create_with_route),
    "append_resuming": Step("append", _ended, _append),
    "append_fenced": Step("append", _leased("turn"), lambda db, c, args: _append(db, c, args, lease=_lease(args))),
    "append_to_old_id": Step("append", compacted, _append),
    "acquire": Once("acquire", begin, lambda db, c, args: db.acquire_lease(c, "compact", "me")),
    "acquire_again": Once("acquire", _leased("compact"), lambda db, c, args: db.acquire_lease(c, "compact", "me")),
    "renew": Step("renew", _leased("compact"), lambda db, c, args: db.renew_lease(_lease(args))),
    "release": Step("release", _leased("compact"), lambda db, c, args: db.release_lease(_lease(args))),
    "commit": Step("commit", _drafted, _commit),
    "commit_unleased": Step("commit", _drafted, _commit_unleased),
    "end": Step("end", begin, lambda db, c, args: db.end_session(c, "done")),
    "end_conversation": Step("end", compacted, lambda db, c, args: db.end_conversation(c, "done")),
    "resume": Step("resume", _ended, lambda db, c, args: db.resume(c)),
    "branch": Step("branch", _hidden, lambda db, c, args: db.branch(c, 3, branch_id=f"{c}-b")),
    "hide": Once("hide", compacted, lambda db, c, args: db.hide(c, 3, 4)),
    "show": Once("show", _hidden, lambda db, c, args: db.show(c)),
    "undo": Once("undo", compacted, lambda db, c, args: db.undo_compaction(c)),
    "redo": Once("redo", _undone, lambda db, c, args: db.redo_compaction(c)),
    "redact": Once("redact", _read_by_branch, lambda db, c, args: db.redact(c, 1)),
    "delete": Once("delete", _everything, lambda db, c, args: db.delete_conversation(c)),
    "create": Step("create", lambda db, c: {"id": c}, lambda db, c, args: db.create_session(c, source="fault")),
    "two_calls": Step("end create", begin, two_calls),
    "title": Step("title", begin, lambda db, c, args: db.set_session_title(c, f"other {c}")),
    "folder": Step("folder", begin, lambda db, c, args: db.set_session_folder(c, f"/work/{c}")),
    "metadata": Step("metadata", begin, lambda db, c, args: db.set_session_metadata(c, {"id": c})),
    "route": Once("route", begin, lambda db, c, args: db.bind_route(f"chat:{c}", c, version=0)),
    "spend_first": Step("budget", begin, lambda db, c, args: db.update_budget(c, 0, {"attempts": 1})),
    "spend": Step("budget", _prepare(begin, _spend), lambda db, c, args: db.update_budget(c, 1, {"attempts": 2})),
    "remember": Step("memory", begin, lambda db, c, args: db.memory.add(c, "likes tea", source=c)),
    "revise": Step("memory", _remembered, lambda db, c, args: db.memory.update(c, args["memory"], "likes rain")),
    "forget": Step("memory", _remembered, lambda db, c, args: db.memory.delete(c, args["memory"])),
    "receive": Step("inbox", begin, lambda db, c, args: db.mail.add_inbox_entry(c, f"key of {c}", "came in")),
    "settle": Step("inbox", _received, lambda db, c, args: db.mail.settle_inbox_entry(args["inbound"], "completed", 2)),
    "process_started": Step("process", begin, lambda db, c, args: db.processes.record_start(process(c))),
    "process_ended": Step(
        "process", _started, lambda db, c, args: db.processes.record_end(c, "exited", 0, "ended", at=2.0)
    ),
    "grant": Step("grant", begin, lambda db, c, args: db.permissions.grant(c, "shell(make)", session_id=c, by="me")),
    "pin": Step("pin", begin, lambda db, c, args: db.pin(c, 2)),
    "unpin": Step("pin", _prepare(begin, _pin), lambda db, c, args: db.unpin(c, 2)),
    "branch_pinned": Step("branch", _prepare(begin, _pin), lambda db, c, args: db.branch(c, 3, branch_id=f"{c}-b")),
    "audit_begin": Once("audit", begin, _begin_audit),
    "audit_end": Step(
        "audit", _prepare(begin, _begin_audit), lambda db, c, args: db.permissions.end_audit(args["act"], True)
    ),
    "arrive": Step("arrive", begin, lambda db, c, args: arrived(db, c)[1]),
    "take": Once("take", begin, lambda db, c, args: db.mail.acquire_chat_lease(f"route:chat:{c}", 300.0, "me")),
    "begin_inbound": Once("begin", _arrived, _begin),
    "begin_next": Once("begin", _waiting, _take_up),
    "settle_inbound": Step("settle", _worked, _answer),
    "settle_sending": Step(
        "inbox",
        _received,
        lambda db, c, args: db.mail.settle_inbox_entry(args["inbound"], "answered", 2, [outgoing(c, "notified")]),
    ),
    "post": Step("post", begin, lambda db, c, args: db.mail.post(outgoing(c, "asked"), key=f"post {c}")),
    "begin_sending": Once("send", _answered, lambda db, c, args: db.mail.begin_sending(_claim(args), args["outgoing"])),
    "delivered": Step("delivered", _answered, lambda db, c, args: db.mail.mark_delivered(args["outgoing"], "there")),
    "send_failed": Step("send", _answered, lambda db, c, args: db.mail.mark_failed(args["outgoing"], "no", None)),
    "pair": Once(
        "contacts",
        _prepare(begin, lambda db, c: {"code": db.contacts.create_pairing_code(f"far {c}", c)}),
        lambda db, c, args: db.contacts.pair(f"far {c}", args["code"]),
    ),
    "delete_answered": Once("delete", _answered, lambda db, c, args: db.delete_conversation(c)),
    "redact_answered": Once("redact", _answered, lambda db, c, args: db.redact(c, 5)),
    "redact_acts": Once("redact", _acted, lambda db, c, args: db.redact(c, 1)),
}


def observe(db: SessionDB, c: str) -> str:
    """The state of a conversation and of its branch, as text that two equal states share."""
    seen = [_seen(db, name) for name in (c, f"{c}-b")]
    route, memories = db.route(f"chat:{c}"), [(each.text, each.source) for each in db.memory.all(c)]
    found = [seen, route.conversation_id, route.version, memories, _mail(db, c)]
    text = json.dumps(found, default=msgspec.to_builtins, sort_keys=True)
    return text.replace(c, "@")


def _pick(names: str, rows: Iterable[Any]) -> list[list[Any]]:
    return [[getattr(row, name) for name in names.split()] for row in rows]


def _seen(db: SessionDB, name: str) -> Any:
    try:
        conversation, context = db.conversation(name), db.context(name)
    except errors.NoSuchSession as error:
        return type(error).__name__
    leases = [held for held in db.leases() if held.conversation_id == conversation.id]
    state = "live epoch last_seq compaction_epoch redo_epoch title folder metadata"
    return {
        "state": _pick(state, [conversation]),
        "sessions": _pick("ordinal live end_reason first_seq last_seq", db.sessions(name)),
        "log": _pick("seq uid body", db.transcript(name)),
        "context": _pick("seq uid body", context),
        "compactions": _pick("epoch base_epoch cut_seq seen_seq token summary pinned", db.compactions(name)),
        "hides": db.hides(name),
        "pins": _pick("seq", db.pins(name)),
        "budget": db.budget(name),
        "inbox": _inbox(db, name),
        "processes": _pick("id command state ended_at exit_code", db.processes.all(name)),
        "grants": _pick("rule conversation_id by", db.permissions.grants(name, name)),
        "audit": _pick("call_id summary allowed ok", db.permissions.audit_log(name)),
        "leases": _pick("purpose token", leases),
    }


def _mail(db: SessionDB, c: str) -> list[Any]:
    """Return inbound and outbound messages without numbers and times, the chat leases and the contacts."""
    arrivals = [each for key in (c, f"{c}+") if (each := db.mail.inbound_by_key("far", key))]
    post = db.driver.read(lambda tx: tx.one("outgoing_by_key", key=f"post {c}"))
    sent = [each for arrival in arrivals for each in db.mail.replies(arrival.id)]
    inbound = _pick("text attempts target outcome conversation_id seq", arrivals)
    out = _pick("text part attempts external error redacted", sent + ([db.mail.outgoing(post[0])] if post else []))
    claims = [held.token for held in db.mail.chat_leases() if held.key == f"route:chat:{c}"]
    person = db.contacts.get(f"far {c}", c)
    # The reply to a notice has no key: it is found among the due messages.
    waiting = [each.text for each in db.mail.due_outgoing("far", 100_000, 1e11) if each.chat == c]
    return [inbound, [bool(each.joined) for each in arrivals], out, claims, person and person.role, waiting]


def _inbox(db: SessionDB, c: str) -> list[Any]:
    """Return the inbox entries, open or settled: text, kind, outcome, message."""
    keys = (f"key of {c}", f"process:{c}")
    rows = [db.driver.read(lambda tx, key=key: tx.one("inbox_by_key", key=key)) for key in keys]
    return [row and (row[3], row[4], row[6], row[7]) for row in rows]


def deleted(db: SessionDB, c: str) -> bool:
    try:
        db.conversation(c)
    except errors.NoSuchSession as error:
        return isinstance(error, errors.ConversationDeleted)
    return False


def perform(stage: zygote.Stage) -> None:
    """Run one step; the order and `disk` decide where the child dies."""
    disk = faulty_disk.Disk() if "disk" in stage.args else None
    with stage.open() as db:
        if disk:
            disk.arm(**stage.args["disk"])
        STEPS[stage.args["step"]].run(db, stage.args)


def open_only(stage: zygote.Stage) -> None:
    """Create or migrate a store: all of it happens while the store is opened."""
    if "disk" in stage.args:
        faulty_disk.Disk().arm(**stage.args["disk"])
    stage.open().close()
