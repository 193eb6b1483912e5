"""Short calls to fill the inbound messages, the outbox and the contacts of a store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from holdfast import SessionDB, errors, types
from tests.support import consistency, conversations

ROUTE = "agent:main:far:dm:1"
CLAIM = f"route:{ROUTE}"


def new(key: str = "1", text: str = "hello", **more: Any) -> types.NewInboundMessage:
    place = {"platform": "far", "route": ROUTE, "chat": "1", "sender": "7", "address": {"chat": 1}}
    return types.NewInboundMessage(key=key, text=text, **{**place, **more})


def came(db: SessionDB, *keys: str, **more: Any) -> list[types.InboundMessage]:
    """Add inbound messages with these keys."""
    return [db.mail.add_inbound(new(key, **more))[0] for key in keys]


def reply(text: str = "a reply", **more: Any) -> types.NewOutgoing:
    return types.NewOutgoing(**{"platform": "far", "chat": "1", "address": {"chat": 1}, "text": text, **more})


def said(db: SessionDB, name: str, key: str = "1", text: str = "hello") -> int:
    """Append the message of an inbound message to a conversation that may be new; return its seq."""
    born = types.NewConversation(source="test")
    return db.append_message(name, role="user", content=text, uid=f"inbox:far:{key}", create=born).seq


def answered(db: SessionDB, name: str = "talk", key: str = "1", *texts: str) -> types.InboundMessage:
    """Add an inbound message and answer it; return its settled row."""
    arrival = came(db, key)[0]
    claim = db.mail.acquire_chat_lease(CLAIM)
    db.mail.begin_inbound(claim, arrival.id, name)
    outgoing = [reply(text) for text in texts or ("a reply",)]
    seq = said(db, name, key)
    where = {"seq": seq, "conversation_id": name}
    assert db.mail.settle_inbound(claim, arrival.id, "answered", outgoing=outgoing, release=True, **where)
    return again(db, arrival)


def again(db: SessionDB, arrival: types.InboundMessage) -> types.InboundMessage:
    found = db.mail.inbound(arrival.id)
    assert found is not None
    return found


@contextlib.contextmanager
def nothing_changes(db: SessionDB) -> Iterator[None]:
    before = consistency.rows(db)
    yield
    assert consistency.rows(db) == before


def correspond(db: SessionDB) -> None:
    """Add inbound messages in every state, their replies, and contacts."""
    ids = {arrival.key: arrival.id for arrival in came(db, "done", "joined", "redacted", "gone", "begun", "fresh")}
    claim = db.mail.acquire_chat_lease(CLAIM)
    db.mail.begin_inbound(claim, ids["done"], "talk", [ids["joined"]])
    for key, name in (("done", "talk"), ("redacted", "secret"), ("gone", "lost")):
        where = {"seq": said(db, name, key), "conversation_id": name}
        db.mail.settle_inbound(claim, ids[key], "answered", outgoing=[reply(), reply("more")], **where)
    db.mail.begin_inbound(claim, ids["begun"], "talk")
    db.mail.post(reply(kind="question"), key="a question", inbound_id=ids["begun"], conversation_id="talk")
    first, second = db.mail.replies(ids["done"])
    db.mail.begin_sending(claim, first.id)
    db.mail.mark_delivered(first.id, "there")
    db.mail.mark_failed(second.id, "busy", conversations.NOON + 50)
    db.mail.settle_inbox_entry(db.mail.add_inbox_entry("talk", "noticed", "came in").id, "answered", outgoing=[reply()])
    db.redact("secret", 1)
    db.delete_conversation("lost")
    db.contacts.allow("far", "7", "admin", "me", "Ada")
    db.contacts.create_pairing_code("far", "8", "Eve")
    db.contacts.link("near", "7", "far:7")
    with contextlib.suppress(errors.PairingRefused):
        db.contacts.pair("far", "WRONG")
