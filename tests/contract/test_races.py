"""Calls that race in threads have exactly one winner, whose result is stored; processes race in tests/faults."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast import SessionDB, errors
from tests.support import backends, conversations, mail

NAMES = [f"n{number}" for number in range(6)]

# Each: a call of the thread with this name, and how the store names the winner afterwards.
RACES: dict[str, tuple[Callable[[SessionDB, str], object], Callable[[SessionDB], object]]] = {
    "end": (lambda db, name: db.end_session("talk", name), lambda db: db.get_session("talk").end_reason),
    "title": (lambda db, name: db.set_session_title(name, "plan"), lambda db: db.resolve("plan").id),
    "lease": (lambda db, name: db.acquire_lease("talk", "turn", name), lambda db: db.leases()[0].holder),
    "lock": (
        lambda db, name: db.try_acquire_compression_lock("talk", name),
        lambda db: db.get_compression_lock_holder("talk"),
    ),
    "inbox": (
        lambda db, name: db.mail.settle_inbox_entry(1, name),
        lambda db: db.mail.add_inbox_entry("talk", "first", "Something came in.").outcome,
    ),
    "chat lease": (
        lambda db, name: db.mail.acquire_chat_lease("k", holder=name),
        lambda db: db.mail.chat_leases()[0].holder,
    ),
    "delivery": (
        lambda db, name: db.mail.add_inbound(mail.new("delivered", name))[1],
        lambda db: db.mail.open_inbound(mail.ROUTE)[-1].text,
    ),
    "settlement": (
        lambda db, name: db.mail.settle_inbound(None, 1, name, outgoing=[mail.reply(name)]),
        lambda db: "".join(sent.text for sent in db.mail.replies(1)),
    ),
    "post": (
        lambda db, name: db.mail.post(mail.reply(name), key="posted").text == name,
        lambda db: db.mail.due_outgoing("far")[0].text,
    ),
    "show": (lambda db, name: db.show("talk") and db.admin.set_meta("by", name), lambda db: db.admin.get_meta("by")),
}


@pytest.mark.parametrize("what", RACES)
@backends.on_files
def test_racing_calls_have_one_winner(db: SessionDB, what: str) -> None:
    for name in ("talk", *NAMES):
        conversations.begin(db, name, "a")
    db.hide("talk", 1)
    db.mail.add_inbox_entry("talk", "first", "Something came in.")
    mail.came(db, "1")
    call, winner = RACES[what]
    outcomes = conversations.at_once(*(lambda name=name: call(db, name) for name in NAMES))
    won = [
        name
        for name, outcome in zip(NAMES, outcomes, strict=True)
        if outcome is not False and not isinstance(outcome, errors.HoldfastError)
    ]
    assert won == [winner(db)]
