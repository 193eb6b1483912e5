"""Broken versions of what comes in from outside and goes out again; each names the scene that must notice."""

from __future__ import annotations

from holdfast.gateway import working
from holdfast.store.mail import chat_leases, contacts, inbound, outbox
from tests.faults.mutants import Edit, Mutant, Query

SPLIT = """tx.batch(*writes)
    writes.clear()
    tx.execute("COMMIT")
    tx.execute("BEGIN IMMEDIATE")
    writes += outbox.parts_inserted("""
OPEN = " AND delivered_at IS NULL AND failed_at IS NULL"
KEY = 'delivery.uid_of(f"{arrival.platform}:{arrival.key}")'
# Without these the database itself would stop the mutant.
SAME_TEXT, ADDRESSED = "arrival_is_what_came_in", "outgoing_goes_where_it_came_from"
FINAL = ("outgoing_end_is_final",)

MUTANTS: dict[str, Mutant] = {
    # what comes in
    "arrival that is whatever was said last": Mutant(
        "answering", (Query("arrival_insert", "DO NOTHING", "DO UPDATE SET body = excluded.body"),), (SAME_TEXT,)
    ),
    "arrival that is always new": Mutant(
        "answering", (Edit(inbound, "arrive", "return found, tx.retry_state[uid]", "return found, True"),)
    ),
    "message under a uid of its own": Mutant(
        "answering",
        (Edit(working, "uid_of", KEY, '"inbox:" + __import__("uuid").uuid4().hex'),),
        ("arrival_became_a_message",),
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
        ("arrival_goes_on_where_it_began",),
    ),
    # who is at work
    "arrival settled by a claim that was overtaken": Mutant(
        "answering", (Edit(inbound, "settle", "chat_leases.verify(said.lease, found.pop(0))", "pass"),)
    ),
    "arrival begun by a claim that was overtaken": Mutant(
        "answering", (Edit(inbound, "begin", "chat_leases.verify(lease, held)", "pass"),)
    ),
    "route taken up by a claim that was overtaken": Mutant(
        "answering", (Edit(inbound.Taking, "__call__", "chat_leases.verify(lease, held)", "pass"),)
    ),
    "sent by a claim that was overtaken": Mutant(
        "answering", (Edit(outbox, "begin", "chat_leases.verify(lease, held[0])", "pass"),)
    ),
    "claim that does not look at its token": Mutant(
        "answering", (Edit(chat_leases, "_is_of", "row[0] == lease.token and ", ""),)
    ),
    "claim that is taken with the same token": Mutant(
        "answering",
        (
            Query("claim_put", "claims.token + 1", "claims.token"),
            Edit(chat_leases, "_take_over", "row[0] + 1", "row[0]"),
        ),
        ("claim_token_never_goes_back",),
    ),
    "claim that is given to everybody": Mutant(
        "answering", (Edit(chat_leases, "_take_over", '_state(tx.clock, row) == "held" and', "False and"),)
    ),
    "claim that is kept by whoever has answered": Mutant(
        "answering", (Edit(inbound, "settle", "said.lease is not None and said.release", "False"),)
    ),
    # what goes out
    "outcome without what is to be sent": Mutant(
        "answering", (Edit(outbox, "parts_inserted", "in enumerate(several)", "in ()"),)
    ),
    "outcome before what is to be sent": Mutant(
        "watching an answer", (Edit(inbound, "settle", "writes += outbox.parts_inserted(", SPLIT),)
    ),
    "reply that goes to any chat": Mutant(
        "addressing", (Edit(outbox, "begin", "origin[0][:2] != (found.platform, found.chat)", "False"),), (ADDRESSED,)
    ),
    "reply that goes to any address": Mutant(
        "addressing", (Edit(outbox, "begin", "decoded(origin[0][2]) != found.address", "False"),), (ADDRESSED,)
    ),
    "second part before the first": Mutant("answering", (Query("outgoing_due", "min(id)", "max(id)"),)),
    "tried again before its time": Mutant("answering", (Query("outgoing_due", "o.due_at <= :now", "true"),)),
    "delivery that is forgotten": Mutant("answering", (Query("outgoing_delivered", "delivered_at = :at, ", ""),)),
    "delivered once more": Mutant("answering", (Query("outgoing_delivered", OPEN, ""),), FINAL),
    "sent once more": Mutant(
        "answering",
        (
            Query("outgoing_begin", OPEN, ""),
            Edit(outbox, "begin", "found is None or not found.open", "found is None"),
        ),
        FINAL,
    ),
    # who is let in
    "code that is good twice": Mutant(
        "pairing", (Edit(contacts, "put", 'tx.run("stranger_code_void", platform=platform, sender=sender)', "pass"),)
    ),
    "code of another platform": Mutant(
        "pairing", (Edit(contacts, "pair", "platform=platform, now=now)", "platform=None, now=now)"),)
    ),
    "wrong codes that are not counted": Mutant(
        "pairing", (Edit(contacts, "pair", "failures=so_far + 1, at=now", "failures=so_far, at=now"),)
    ),
}
