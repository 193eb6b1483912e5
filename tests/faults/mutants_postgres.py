"""Broken versions of what only PostgreSQL needs: locks that are not taken, looks that come too early, lost answers.

Beside functions of the store and queries, a function inside of the server may be changed. Each mutant names the scene
that must notice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.store import compactions, deletion, leases, log, sessions, visibility
from holdfast.store.mail import inbound, outbox
from holdfast.store.postgres import driver as postgres_driver
from holdfast.store.postgres import errors as postgres_errors
from tests.faults import mutants
from tests.faults.mutants import Edit, Query


class Function(NamedTuple):
    """A text replaced in a function of the schema."""

    name: str
    old: str
    new: str


class Mutant(NamedTuple):
    scene: str
    changes: tuple[Edit | Query | Function, ...]
    without_triggers: tuple[str, ...] = ()

    @property
    def outside(self) -> Sequence[Edit | Query]:
        return [change for change in self.changes if not isinstance(change, Function)]

    @property
    def inside(self) -> Sequence[Function]:
        return [change for change in self.changes if isinstance(change, Function)]


LIVE = "message_joins_a_live_session"

MUTANTS: dict[str, Mutant] = {
    # locks
    "no lock": Mutant("overlapping", (Function("lock_conversation", "FOR UPDATE", ""),)),
    "look before the lock": Mutant(
        "overlapping",
        (
            Function("lock_conversation", "c.key = place.conversation FOR UPDATE;", "false;"),
            Function("lock_conversation", "= place.conversation;\nEND", "= place.conversation FOR UPDATE OF c;\nEND"),
        ),
    ),
    "no lock in the fast append": Mutant("following", (Function("append_message", "FOR NO KEY UPDATE", ""),), (LIVE,)),
    # the commit and its lease
    "no comparison of head and epoch": Mutant("overlapping", (Edit(compactions, "commit", mutants.CAS, "if False:"),)),
    "no look at the lease": Mutant("overtaking", (Edit(compactions, "commit", mutants.CHECK, "pass"),)),
    "no look at the lease by a commit that waited": Mutant(
        "committing meanwhile", (Edit(compactions, "commit", mutants.CHECK, "pass"),)
    ),
    "no comparison of the epoch by a commit that waited": Mutant(
        "committing meanwhile", (Edit(compactions, "commit", mutants.CAS, "if False:"),)
    ),
    "fast append of a turn that is not fenced": Mutant(
        "overtaking", (Function("append_message", "IF lease_token IS NOT NULL", "IF false"),)
    ),
    "fast append of a turn that has expired": Mutant(
        "expired turn", (Function("append_message", "AND l.expires > coalesce", "AND 0 < coalesce"),)
    ),
    "turn that is not fenced": Mutant(
        "overtaking", (Edit(log, "append", "if request.lease is not None:", "if False:"),)
    ),
    "lease given to everybody": Mutant(
        "overlapping", (Edit(leases, "refuse_if_held", "if holder.name != name", "if False"),)
    ),
    "commit that keeps the lease": Mutant("overlapping", (Edit(compactions, "commit", mutants.FREE, "pass"),)),
    "fence that stands still": Mutant(
        "overlapping", (Query("fence_next", "fence + 1", "greatest(fence, 1)", "postgres"),)
    ),
    "rotation in two transactions": Mutant(
        "watching",
        (
            Edit(
                compactions,
                "commit",
                mutants.ROTATE,
                mutants.END_FIRST.replace("BEGIN IMMEDIATE", "BEGIN") + mutants.ROTATE,
            ),
        ),
        ("compaction_follows_the_current_one",),
    ),
    # the log
    "acknowledged before the commit": Mutant(
        "acknowledging",
        (
            Edit(
                postgres_driver.PostgresDriver,
                "_transact",
                "tx.commit()",
                'operation == "append" or tx.commit()',
            ),
        ),
    ),
    "append that steps over a known uid": Mutant(
        "retrying",
        (
            Function("append_message", "IF may_be_stored THEN", "IF false THEN"),
            Function("append_message", "FOR 16));", "FOR 16)) ON CONFLICT DO NOTHING;"),
        ),
    ),
    "fast append behind the end": Mutant(
        "coming after", (Function("append_message", "OR here.live IS NULL", ""),), (LIVE,)
    ),
    "fast append to the session that was asked for": Mutant(
        "following", (Function("append_message", "here.head, new_uid", "here.ordinal, new_uid"),), (LIVE,)
    ),
    "fast append that follows though it must not": Mutant(
        "coming after", (Function("append_message", "(expect_head AND here.head <> here.ordinal)", "false"),)
    ),
    "fast append with the digest of another number": Mutant(
        "taking turns", (Function("append_message", "ahead * 16 + 1", "1"),)
    ),
    # reading
    "reading without a snapshot": Mutant(
        "reading",
        (Edit(postgres_driver.PostgresDriver, "read", "begin: str = _BEGIN_READ", 'begin: str = "BEGIN"'),),
    ),
    # answers nobody heard
    "lost connection that is not made again": Mutant(
        "in doubt",
        (Edit(postgres_errors.RetryPolicy, "retry_or_raise", "isinstance(error, errors.StoreUnreachable)", "False"),),
    ),
    "no look for a known uid": Mutant("in doubt", (Edit(log, "_find_stored", "if row is None:", "if True:"),)),
    "compaction undone twice": Mutant(
        "in doubt", (Edit(compactions, "undo", "not _in_force(tx, here, target)", "False"),)
    ),
    "compaction redone twice": Mutant("in doubt", (Edit(compactions, "redo", "_in_force(tx, here, target)", "False"),)),
    "range hidden twice": Mutant("in doubt", (Edit(visibility, "hide", '"hide" in tx.retry_state and', "False and"),)),
    "deletion that takes itself for another's": Mutant(
        "in doubt", (Edit(deletion, "delete", "if session_id not in tx.retry_state:", "if True:"),)
    ),
    "redaction that raises two epochs": Mutant(
        "in doubt", (Edit(deletion, "redact", "if redacted and owner.epoch > first_epoch:", "if False:"),)
    ),
    "route that takes itself for another's": Mutant(
        "in doubt", (Edit(sessions, "bind_route", "if found == bound and", "if False and"),)
    ),
    # mail
    "no lock on a claim": Mutant("overtaken meanwhile", (Query("claim_row", " FOR UPDATE", "", "postgres"),)),
    "begun by a claim that was overtaken": Mutant(
        "overtaken meanwhile", (Edit(inbound, "begin", "chat_leases.check_held(lease, locked)", "pass"),)
    ),
    "settled by a claim that was overtaken": Mutant(
        "overtaken meanwhile",
        (
            Query("arrival_settle", "= %(token)s", "IS NOT NULL", "postgres"),
            Edit(inbound, "settle", "chat_leases.check_held(lease, held)", "pass"),
        ),
    ),
    "sent by a claim that was overtaken": Mutant(
        "overtaken meanwhile",
        (
            Query("outgoing_begin", "= %(token)s", "IS NOT NULL", "postgres"),
            Edit(outbox, "begin_sending", "chat_leases.check_held(lease, held[0])", "pass"),
        ),
    ),
    "attempt that is counted twice": Mutant(
        "mail in doubt", (Edit(inbound, "begin_attempt", "if found.attempts == before:", "if True:"),)
    ),
    "sending that is counted twice": Mutant(
        "mail in doubt", (Query("outgoing_begin", "attempted_by IS DISTINCT FROM %(uid)s", "true", "postgres"),)
    ),
    "arrival that takes itself for another's": Mutant(
        "mail in doubt", (Edit(inbound, "receive", "receivers[0][0] == uid", "False"),)
    ),
    "settling that takes itself for another's": Mutant(
        "mail in doubt", (Edit(inbound, "settle", "bool(settled) and settled[0][0] == settlement.uid", "False"),)
    ),
    "delivery that takes itself for another's": Mutant(
        "mail in doubt", (Edit(outbox, "record_result", "if retried else None", "if False else None"),)
    ),
}
