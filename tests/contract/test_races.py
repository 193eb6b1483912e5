"""Racing calls: whichever thread is first, exactly one of them wins, and the store holds its result."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast import NewConversation, SessionDB, errors
from tests.support import backends, conversations, mail

NAMES = [f"n{number}" for number in range(6)]
CREATE = NewConversation(source="test", route="r")

# Each: a call of the thread with this name, and how the store names the winner afterwards.
RACES: dict[str, tuple[Callable[[SessionDB, str], object], Callable[[SessionDB], object]]] = {
    "end": (lambda db, name: db.end_session("talk", name), lambda db: db.get_session("talk").end_reason),
    "route": (lambda db, name: db.bind_route("r", name, version=0), lambda db: db.route("r").conversation_id),
    "title": (lambda db, name: db.set_session_title(name, "plan"), lambda db: db.resolve("plan").id),
    "lease": (lambda db, name: db.acquire_lease("talk", "turn", name), lambda db: db.leases()[0].holder),
    "lock": (
        lambda db, name: db.try_acquire_compression_lock("talk", name),
        lambda db: db.get_compression_lock_holder("talk"),
    ),
    "budget": (lambda db, name: db.update_budget("talk", 0, {"by": name}), lambda db: db.budget("talk")[1]["by"]),
    "inbox": (
        lambda db, name: db.mail.settle_inbox_entry(1, name),
        lambda db: db.mail.add_inbox_entry("talk", "first", "Something came in.").outcome,
    ),
    "process": (
        lambda db, name: db.processes.record_end("p", "exited", 0, name),
        lambda db: db.mail.inbox_entries("talk")[-1].text,
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
    "first message of a route": (
        lambda db, name: db.append_message(f"new {name}", role="user", create=CREATE),
        lambda db: (db.route("r").conversation_id or "").removeprefix("new "),
    ),
}


@pytest.mark.parametrize("what", RACES)
@backends.on_files
def test_racing_calls_have_one_winner(db: SessionDB, what: str) -> None:
    for name in ("talk", *NAMES):
        conversations.begin(db, name, "a")
    db.hide("talk", 1)
    db.mail.add_inbox_entry("talk", "first", "Something came in.")
    db.processes.record_start(conversations.process("p", "talk"))
    mail.came(db, "1")
    call, winner = RACES[what]
    outcomes = conversations.at_once(*(lambda name=name: call(db, name) for name in NAMES))
    won = [
        name
        for name, outcome in zip(NAMES, outcomes, strict=True)
        if outcome is not False and not isinstance(outcome, errors.HoldfastError)
    ]
    assert won == [winner(db)]
