"""States of arrivals, claims, the outbox and people that the database must refuse: a part of the list, as data.

Each is its name, the statements that would write it, and whether it can be told afterwards by looking.
"""

from __future__ import annotations

from typing import Any

from holdfast import types
from holdfast.store.db import SessionDB

M, E = 7, 5  # keys of the conversation below, and of one that has nothing to do with it

Bad = tuple[str, str, bool]


def furnish(db: SessionDB) -> None:
    """Arrivals 1 (answered), 2 (joined into it), 3 (begun), 4 (open) and 5 (open, on another route).

    To be sent are 1 (delivered) and 2 (failed), parts of a reply to 1; 3, posted while 3 is worked; and 4, which
    answers a notice. Somebody is let in, somebody asks to be.
    """
    for key in "abcd":
        _came(db, key, "route")
    _came(db, "e", "other")
    claim = db.mail.acquire_chat_lease("k", 300.0, "me")
    db.mail.begin_inbound(claim, 1, "m", [2])
    born = types.NewConversation(source="test")
    db.append_message("m", role="user", content="a", uid="inbox:far:a", create=born)
    db.mail.settle_inbound(claim, 1, "answered", seq=1, conversation_id="m", outgoing=[_out(), _out()])
    db.mail.begin_inbound(claim, 3, "m")
    db.mail.post(_out(), key="q", inbound_id=3, conversation_id="m")
    db.mail.settle_inbox_entry(db.mail.add_inbox_entry("m", "noticed", "came in").id, "answered", outgoing=[_out()])
    db.mail.begin_sending(claim, 1)
    db.mail.mark_delivered(1, "there")
    db.mail.mark_failed(2, "no", None)
    db.contacts.allow("far", "7")
    db.contacts.create_pairing_code("far", "8")
    db.contacts.mark_stranger_notified("far", "9")


def _came(db: SessionDB, key: str, route: str) -> None:
    db.mail.add_inbound(
        types.NewInboundMessage(platform="far", key=key, route=route, chat="1", sender="7", address={}, text=key)
    )


def _out() -> types.NewOutgoing:
    return types.NewOutgoing(platform="far", chat="1", address={}, text="out")


def _arrival(**other: Any) -> str:
    values = {"platform": "'far'", "key": "'new'", "route": "'route'", "home": "'far'", "chat": "'1'", "sender": "'7'"}
    return _insert("arrivals", {**values, "address": "'{}'", "body": "'{}'", "at": "1.0", **other})


def _outgoing(**other: Any) -> str:
    """A row of its own, or (with a part) one more of the reply to the first arrival."""
    values = {"platform": "'far'", "chat": "'1'", "address": "'{}'", "kind": "'reply'", "body": "'{}'", "due_at": "1.0"}
    at = f"(SELECT settled_at FROM arrivals WHERE id = {other.get('arrival', 1)})" if "part" in other else "1.0"
    return _insert("outbox", {**values, "at": at, **other})


def _insert(table: str, values: dict[str, Any]) -> str:
    return f"INSERT INTO {table} ({', '.join(values)}) VALUES ({', '.join(map(str, values.values()))})"


def _set(table: str, change: str, where: str) -> str:
    return f"UPDATE {table} SET {change} WHERE {where}"


def _settled(where: str, *, seq: str = "NULL", conversation: str = "NULL", outcome: str = "'x'") -> str:
    said = f"outcome = {outcome}, settled_at = 1.0, settled_by = 'u'"
    return _set("arrivals", f"{said}, seq = {seq}, conversation = {conversation}", where)


ALLOWED = [
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

_ARRIVALS: list[Bad] = [
    ("arrival that comes in twice", _arrival(key="'a'"), True),
    ("arrival without a key", _arrival(key="''"), False),
    ("arrival without a body", _arrival(body="''"), True),
    ("arrival born settled", _arrival(outcome="'x'", settled_at="1.0", settled_by="'u'"), False),
    ("arrival born begun", _arrival(attempts="1"), False),
    ("arrival half settled", _set("arrivals", "outcome = 'x'", "id = 4"), True),
    ("arrival settled by nobody", _set("arrivals", "outcome = 'x', settled_at = 1.0", "id = 4"), True),
    ("arrival settled again", _set("arrivals", "outcome = 'failed'", "id IN (1, 2)"), False),
    ("arrival opened again", _set("arrivals", "outcome = NULL, settled_at = NULL, settled_by = NULL", "id = 1"), True),
    ("arrival begun after it was settled", _set("arrivals", "attempts = attempts + 1", "id = 1"), False),
    ("arrival with another text", _set("arrivals", 'body = \'{"text":"lie"}\'', "id = 4"), False),
    ("arrival that lost its text", _set("arrivals", "body = ''", "id = 1"), True),
    ("arrival redacted while it is open", _set("arrivals", "body = '', redacted_at = 1.0", "id = 4"), True),
    ("arrival from somebody else", _set("arrivals", "sender = 'x'", "id = 4"), False),
    ("arrival with another key", _set("arrivals", "key = 'x'", "id = 4"), False),
    ("arrival on another route", _set("arrivals", "route = 'x'", "id = 4"), False),
    ("arrival that is answered elsewhere", _set("arrivals", "chat = '2'", "id = 4"), False),
    ("arrival with another address", _set("arrivals", "address = '[]'", "id = 4"), False),
    ("arrival without an address", _set("arrivals", "address = ''", "id = 1"), True),
    ("arrival with another target", _set("arrivals", "target = 'x'", "id = 3"), False),
    ("arrival begun fewer times", _set("arrivals", "attempts = 0", "id = 3"), False),
    ("arrival that became no message", _settled("id = 4", seq="99", conversation=str(M)), True),
    ("arrival that became another's message", _settled("id = 4", seq="1", conversation=str(M)), True),
    ("arrival that is a message of nothing", _settled("id = 4", seq="1"), True),
    ("arrival of no conversation", _settled("id = 4", conversation="77"), True),
    ("arrival moved to another conversation", _set("arrivals", f"conversation = {E}", "id = 1"), True),
    ("arrival that left its conversation", _set("arrivals", "conversation = NULL, seq = NULL", "id = 1"), False),
    ("arrival joined across routes", _set("arrivals", "joined = 4", "id = 5"), True),
    ("arrival joined to a newer one", _set("arrivals", "joined = 4", "id = 3"), True),
    ("arrival joined to a settled one", _set("arrivals", "joined = 1", "id = 4"), True),
    ("arrival joined to a joined one", _set("arrivals", "joined = 2", "id = 4"), True),
    ("arrival joined to nothing", _set("arrivals", "joined = 99", "id = 4"), True),
    ("open arrival deleted", "DELETE FROM arrivals WHERE id = 4", False),
    ("arrival deleted before its reply", "DELETE FROM arrivals WHERE id = 1", True),
]

_OUTBOX: list[Bad] = [
    ("reply to nothing", _outgoing(part=0), True),
    ("reply before its outcome", _insert("outbox", {"arrival": 4, "part": 0, "platform": "'far'", "chat": "'1'",
     "address": "'{}'", "kind": "'reply'", "body": "'{}'", "at": "1.0", "due_at": "1.0"}), True),
    ("reply after its outcome", _outgoing(arrival=1, part=2, conversation=M, at="1.0"), True),
    ("reply to another chat", _outgoing(arrival=1, part=2, conversation=M, chat="'2'"), True),
    ("reply by another platform", _outgoing(arrival=1, part=2, conversation=M, platform="'near'"), True),
    ("reply to another address", _outgoing(arrival=1, part=2, conversation=M, address="'{\"chat\":2}'"), True),
    ("reply of another conversation", _outgoing(arrival=1, part=2, conversation=E), True),
    ("reply that outlives its conversation", _outgoing(arrival=1, part=2), True),
    ("reply that skips a part", _outgoing(arrival=1, part=3, conversation=M), True),
    ("reply with a part twice", _outgoing(arrival=1, part=1, conversation=M), False),
    ("reply to two", _outgoing(arrival=1, part=2, conversation=M, inbound=4), True),
    ("post to another chat", _outgoing(arrival=3, key="'new'", chat="'2'"), True),
    ("post to another address", _outgoing(arrival=3, key="'new'", address="'{\"chat\":2}'"), True),
    ("post without a key", _outgoing(), True),
    ("post with a key of another", _outgoing(key="'q'"), False),
    ("post of no conversation", _outgoing(key="'new'", conversation=77), True),
    ("post to no arrival", _outgoing(key="'new'", arrival=77), True),
    ("post that shouts", _outgoing(key="'new'", kind="'shout'"), False),
    ("post born delivered", _outgoing(key="'new'", delivered_at="1.0"), False),
    ("delivered and failed", _set("outbox", "delivered_at = 1.0, failed_at = 1.0, error = 'x'", "id = 3"), True),
    ("failed for no reason", _set("outbox", "failed_at = 1.0, error = NULL", "id = 3"), False),
    ("delivered undone", _set("outbox", "delivered_at = NULL, external = NULL", "id = 1"), False),
    ("delivered as something else", _set("outbox", "external = 'x'", "id = 1"), False),
    ("failed otherwise", _set("outbox", "error = 'x'", "id = 2"), False),
    ("failed, then delivered", _set("outbox", "failed_at = NULL, error = NULL, delivered_at = 1.0", "id = 2"), False),
    ("tried fewer times", _set("outbox", "attempts = attempts - 1", "id = 1"), False),
    ("outgoing with another text", _set("outbox", "body = '{\"text\":\"lie\"}'", "id = 3"), False),
    ("outgoing that lost its text", _set("outbox", "body = ''", "id = 1"), True),
    ("outgoing redacted before it went", _set("outbox", "body = '', redacted_at = 1.0", "id = 3"), True),
    ("outgoing sent to another chat", _set("outbox", "chat = '2'", "id = 3"), True),
    ("outgoing with another address", _set("outbox", "address = '[]'", "id = 3"), False),
    ("outgoing of another conversation", _set("outbox", f"conversation = {E}", "id = 3"), False),
    ("outgoing that answers another", _set("outbox", "arrival = 4", "id = 3"), False),
    ("outgoing deleted before it went", "DELETE FROM outbox WHERE id = 3", False),
]  # fmt: skip

_OTHERS: list[Bad] = [
    ("claim with a token never given", "INSERT INTO claims (key, token, expires, boot) VALUES ('n', 0, 1.0, '')", True),
    ("claim with an older token", _set("claims", "token = token - 1", "key = 'k'"), False),
    ("claim that changes hands unseen", _set("claims", "holder = 'x'", "key = 'k'"), False),
    ("claim deleted", "DELETE FROM claims", False),
    ("person of no kind", _set("people", "role = 'root'", "sender = '7'"), True),
    ("code without a salt", _set("strangers", "salt = NULL", "sender = '8'"), True),
    ("code for ever", _set("strangers", "expires_at = NULL", "sender = '8'"), True),
    (
        "fewer wrong codes than none",
        "INSERT INTO lockouts (platform, failures, failed_at) VALUES ('n', -1, 1.0)",
        False,
    ),
]

EVERY = [*_ARRIVALS, *_OUTBOX, *_OTHERS]
