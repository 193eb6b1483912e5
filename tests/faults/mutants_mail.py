"""Broken versions of what comes in from outside and goes out again; each names the scene that must notice."""

from __future__ import annotations

from holdfast.gateway import worker
from holdfast.store.mail import chat_leases, contacts, inbound, outbox
from tests.faults.mutants import Edit, Mutant, Query

SPLIT = """tx.batch(*writes)
    writes.clear()
    tx.execute("COMMIT")
    tx.execute("BEGIN IMMEDIATE")
    writes += outbox.insert_replies("""
OPEN = " AND delivered_at IS NULL AND failed_at IS NULL"
KEY = 'inbox_messages.uid_of(f"{inbound.platform}:{inbound.key}")'
# Without these the database itself would stop the mutant.
SAME_TEXT, ADDRESSED = "arrival_content_is_immutable", "outgoing_answers_in_the_same_chat"
# The checks of a chat lease when an inbound message is settled: in SQL, and of the locked row.
ANY_TOKEN = (
    "= :token",
    "IS NOT NULL",
)
HELD = "chat_leases.check_held(lease, held)"
SAME_ADDRESS = "tuple(origin) != rows[0][1:4]"
FINAL = ("outgoing_end_is_final",)

MUTANTS: dict[str, Mutant] = {
    # what comes in
    "arrival that is whatever was said last": Mutant(
        "answering", (Query("arrival_insert", "DO NOTHING", "DO UPDATE SET body = excluded.body"),), (SAME_TEXT,)
    ),
    "arrival that is always new": Mutant("answering", (Edit(inbound, "receive", "receivers[0][0] == uid", "True"),)),
    "message under a uid of its own": Mutant(
        "answering",
        (Edit(worker, "uid_of", KEY, '"inbox:" + __import__("uuid").uuid4().hex'),),
        ("arrival_message_exists",),
    ),
    "arrival settled again": Mutant(
        "answering",
        (
            Query("arrival_settle", " AND outcome IS NULL", ""),
            Edit(inbound, "settle", "not settled or settled[0][0] is not None", "not settled"),
        ),
        ("arrival_is_settled_once", "arrival_stays_in_its_conversation"),
    ),
    "arrival that is left open by the one it joined": Mutant(
        "answering", (Query("arrival_settle", " OR joined = :id", ""),)
    ),
    "turn that goes on somewhere else": Mutant(
        "answering",
        (Query("arrival_begin", "coalesce(target, :target)", ":target"),),
        ("arrival_target_is_final",),
    ),
    # who is at work
    "arrival settled by a claim that was overtaken": Mutant(
        "answering", (Query("arrival_settle", *ANY_TOKEN), Edit(inbound, "settle", HELD, "pass"))
    ),
    "arrival begun by a claim that was overtaken": Mutant(
        "answering", (Edit(inbound, "begin", "chat_leases.check_held(lease, locked)", "pass"),)
    ),
    "route taken up by a claim that was overtaken": Mutant(
        "answering", (Edit(inbound, "begin_next", "chat_leases.check_held(lease, locked)", "pass"),)
    ),
    "sent by a claim that was overtaken": Mutant(
        "answering",
        (
            Query("outgoing_begin", *ANY_TOKEN),
            Edit(outbox, "begin_sending", "chat_leases.check_held(lease, held[0])", "pass"),
        ),
    ),
    "claim that does not look at its token": Mutant(
        "answering", (Edit(chat_leases, "check_held", "token != lease.token or ", ""),)
    ),
    "claim that is taken with the same token": Mutant(
        "answering",
        (
            Query("claim_acquire", "claims.token + 1", "claims.token"),
            Edit(chat_leases, "_take_over", "row[0] + 1", "row[0]"),
        ),
        ("claim_token_never_goes_back",),
    ),
    "claim that is given to everybody": Mutant(
        "answering", (Edit(chat_leases, "_take_over", "if row[1] is not None:", "if False:"),)
    ),
    "claim that is kept by whoever has answered": Mutant(
        "answering", (Edit(inbound, "settle", "lease is not None and release", "False"),)
    ),
    # what goes out
    "outcome without what is to be sent": Mutant(
        "answering", (Edit(outbox, "insert_replies", "in enumerate(messages)", "in ()"),)
    ),
    "outcome before what is to be sent": Mutant(
        "watching an answer", (Edit(inbound, "settle", "writes += outbox.insert_replies(", SPLIT),)
    ),
    "reply that goes to any chat": Mutant(
        "addressing",
        (
            Query("outgoing_begin", "a.home <> outbox.platform OR a.chat <> outbox.chat OR ", ""),
            Edit(outbox, "begin_sending", SAME_ADDRESS, "origin[2] != rows[0][3]"),
        ),
        (ADDRESSED,),
    ),
    "reply that goes to any address": Mutant(
        "addressing",
        (
            Query("outgoing_begin", " OR a.address <> outbox.address", ""),
            Edit(outbox, "begin_sending", SAME_ADDRESS, "tuple(origin[:2]) != rows[0][1:3]"),
        ),
        (ADDRESSED,),
    ),
    "second part before the first": Mutant("answering", (Query("outgoing_due", "min(id)", "max(id)"),)),
    "tried again before its time": Mutant("answering", (Query("outgoing_due", "o.due_at <= :now", "true"),)),
    "delivery that is forgotten": Mutant("answering", (Query("outgoing_delivered", "delivered_at = :at, ", ""),)),
    "delivered once more": Mutant("answering", (Query("outgoing_delivered", OPEN, ""),), FINAL),
    "sent once more": Mutant(
        "answering",
        (
            Query("outgoing_begin", OPEN, ""),
            Edit(outbox, "begin_sending", "found is None or not found.open", "found is None"),
        ),
        FINAL,
    ),
    # who is let in
    "code that is good twice": Mutant("pairing", (Edit(contacts, "put", '("stranger_void_code", key), ', ""),)),
    "code of another platform": Mutant(
        "pairing", (Edit(contacts, "pair", "platform=platform, now=now)", "platform=None, now=now)"),)
    ),
    "wrong codes that are not counted": Mutant(
        "pairing", (Edit(contacts, "pair", "failures=recent + 1, at=now", "failures=recent, at=now"),)
    ),
}
