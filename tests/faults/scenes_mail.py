"""Scenes in which broken mail has to show itself: each returns what was found wrong, and nothing if all is well."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from holdfast import errors, types
from holdfast.gateway import worker
from holdfast.store.db import SessionDB
from tests.faults import checker, kills, steps, zygote

ROUTE, CLAIM = "chat:c", "route:chat:c"
Taken = tuple[int, str, Sequence[int]]


def refused(what: str, expected: type[errors.HoldfastError], call: Callable[[], Any]) -> list[str]:
    try:
        call()
    except expected:
        return []
    return [f"{what} was not refused with {expected.__name__}"]


def watching(without_triggers: Sequence[str]) -> list[str]:
    """Another process looks at every point of the settling: there is no outcome without its reply."""
    with zygote.folder() as made:
        return kills.half_states(kills.course_of("settle_inbound", f"{made}/store.db", without_triggers))


def answering(db: SessionDB) -> list[str]:
    """A gateway is overtaken in the middle of a turn; the one that took over answers, once, in the same place."""
    steps.say(db, "c", 0)
    arrival, other = steps.came(db, "c"), steps.came(db, "c", "c+")
    again = db.mail.add_inbound(types.NewInboundMessage(**{**_fields(arrival), "text": "edited"}))
    found = [] if again == (arrival, False) else [f"what was delivered twice is {again}"]
    old = db.mail.acquire_chat_lease(CLAIM, 300.0, "me")
    found += refused("another holder", errors.Busy, lambda: db.mail.acquire_chat_lease(CLAIM, 300.0, "another"))
    db.mail.begin_inbound(old, arrival.id, "c", [other.id])
    said = _say(db, arrival)
    new = db.mail.acquire_chat_lease(CLAIM, 300.0, "me")
    found += _overtaken(db, old, arrival)
    begun = db.mail.begin_inbound(new, arrival.id, "elsewhere")
    if begun is None or begun.target != "c" or db.mail.inbound(arrival.id) != begun:
        found.append("the turn goes on somewhere else")
    if _say(db, arrival) != said:
        found.append("what came in is two messages")
    told = [steps.answer(db, new, arrival.id, said) for _ in range(2)]
    found += [] if told == [True, False] else [f"of those who settled it {told} were told they were first"]
    if db.mail.open_inbound(ROUTE) or {each.outcome for each in db.mail.joined_inbound(arrival.id)} != {"answered"}:
        found.append("something is open that was answered")
    return found + _sending(db, old, new, arrival.id) + _giving_back(db, new) + checker.verify(db, also=["c"])


def _fields(arrival: types.InboundMessage) -> dict[str, Any]:
    return {name: getattr(arrival, name) for name in types.NewInboundMessage.__struct_fields__}


def _say(db: SessionDB, arrival: types.InboundMessage) -> int:
    """What a turn does first, with the uid that a gateway gives it."""
    return db.append_message("c", role="user", content=arrival.text, uid=worker.uid_of(arrival)).seq


def _overtaken(db: SessionDB, old: types.ChatLease, arrival: types.InboundMessage) -> list[str]:
    def choose(waiting: Sequence[types.InboundMessage], _: types.Route) -> Taken:
        return waiting[0].id, "c", ()

    again = partial(db.mail.begin_next_inbound, ROUTE, choose, lease=old)
    return [
        *refused("an old claim to begin", errors.LeaseLost, lambda: db.mail.begin_inbound(old, arrival.id, "c")),
        *refused("an old claim to take up", errors.LeaseLost, again),
        *refused("an old claim to settle", errors.LeaseLost, lambda: steps.answer(db, old, arrival.id, 1)),
    ]


def _sending(db: SessionDB, old: types.ChatLease, new: types.ChatLease, arrival: int) -> list[str]:
    """Each part once, the first one first, and not before its time."""
    sent = [each.text for each in db.mail.replies(arrival)]
    if sent != ["one", "two"]:
        return [f"to be sent are {sent}"]
    (first,) = db.mail.due_outgoing("far")
    found = [] if first.text == "one" else ["the second part goes first"]
    found += refused("an old claim to send", errors.LeaseLost, lambda: db.mail.begin_sending(old, first.id))
    db.mail.mark_failed(first.id, "busy", first.at + 60)
    found += ["it is tried again before its time"] if db.mail.due_outgoing("far", now=first.at) else []
    told = [
        db.mail.mark_delivered(first.id, "there"),
        db.mail.mark_delivered(first.id, "again"),
        db.mail.begin_sending(new, first.id) is None,
    ]
    return found + ([] if told == [True, False, True] else ["what was delivered is sent again"])


def _giving_back(db: SessionDB, claim: types.ChatLease) -> list[str]:
    """Whoever has answered and goes lets the next one in."""
    last = steps.came(db, "c", "last")
    db.mail.settle_inbound(claim, last.id, "ignored", release=True)
    return [f"{held.key} is kept" for held in db.mail.chat_leases()]


def addressing(db: SessionDB) -> list[str]:
    """A reply to another chat, or another address, is not written down; or if it was, then not sent."""
    steps.say(db, "c", 0)
    claim, found = db.mail.acquire_chat_lease(CLAIM, 300.0, "me"), list[str]()
    for number, (chat, address) in enumerate([("other", {"chat": "c"}), ("c", {"chat": "other"})]):
        arrival = steps.came(db, "c", f"c{number}")
        reply = types.NewOutgoing(platform="far", chat=chat, address=address, text="a secret")
        try:
            db.mail.settle_inbound(claim, arrival.id, "answered", outgoing=[reply])
        except errors.StoreRefused:
            continue
        (row,) = db.mail.replies(arrival.id)
        sending = refused(
            f"a reply to {chat} at {address}", errors.SendRefused, lambda row=row: db.mail.begin_sending(claim, row.id)
        )
        found += sending
    return found


def pairing(db: SessionDB) -> list[str]:
    """A code lets in one person of one platform, once; whoever guesses is locked out."""
    wrong, code = errors.PairingRefused, db.contacts.create_pairing_code("far", "7") or ""
    found = refused("a code of another platform", wrong, lambda: db.contacts.pair("near", code))
    db.contacts.pair("far", code)
    found += refused("a code that was used", wrong, lambda: db.contacts.pair("far", code))
    other = db.contacts.create_pairing_code("far", "8") or ""
    for _ in range(5):
        found += refused("a wrong code", wrong, lambda: db.contacts.pair("far", "WRONG"))
    return found + refused("the right code after many wrong ones", wrong, lambda: db.contacts.pair("far", other))


SCENES: dict[str, Callable[[SessionDB], list[str]]] = {
    "answering": answering,
    "addressing": addressing,
    "pairing": pairing,
}
