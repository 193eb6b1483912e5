"""Broken versions of the protocol, each by one small change, and the means to put one in place.

A mutant names a function of the store and a text in it that is replaced; or a query; and triggers that
are gone, where the database would stop it before it could do harm. A text that is no longer there is an
error: then the protocol has changed, and the mutant has to follow.
"""

from __future__ import annotations
import __future__

import contextlib
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from holdfast.store import branches, compactions, deletion, leases, log, queries, sessions, usage, visibility
from holdfast.store.backup import atomic_file
from holdfast.store.mail import inbox
from holdfast.store.records import processes
from holdfast.store.sqlite import driver as sqlite_driver


class Edit(NamedTuple):
    """A text replaced in a function of a module, or in a method."""

    owner: Any
    function: str
    old: str
    new: str


class Query(NamedTuple):
    name: str
    old: str
    new: str
    dialect: str = "sqlite"


class Mutant(NamedTuple):
    """What is changed, and the scene that must notice."""

    scene: str
    changes: tuple[Edit | Query, ...]
    without_triggers: tuple[str, ...] = ()


CAS = "if (here.head_id, here.epoch, here.live) != (seen.head_id, seen.epoch, 1):"
HELD = "row is not None and row.token == lease.token and row.decoded.name == lease.holder"
ROTATE = "write(tx, here, child_id, draft, lease.token if lease else None, now, head.source, model, *last)"
CHECK = "leases.check_row(tx, here, lease, leases.LeaseRow(*stored.lease) if stored.lease else None)"
FREE = 'last.append(("lease_delete", {"conversation": here.key, "purpose": lease.purpose, "token": lease.token}))'

OWN_OUTCOME = 'row is not None and row[0] == values["uid"]'
CUT = "cut_seq=draft.cut_seq,\n        seen_seq=draft.seen_seq"
TAIL = "tail = read_range(tx, here, cut, last)"

# The first half of a rotation, committed on its own.
END_FIRST = """sessions.end_head(tx, here, "compression", now)
    conversation_row.update(tx, here, live=None)
    tx.execute("COMMIT")
    tx.execute("BEGIN IMMEDIATE")
    here = conversation_row.lock(tx, here.id)
    """

COPY = """
    tx.run("message_insert", conversation=here.key, seq=here.last_seq + 1, session=here.head + 1, uid=child_id,
           role="user", at=now, body="{}", digest=__import__("holdfast.store.message_codec").store.message_codec.digest(
               here.id, here.last_seq + 1, child_id, "user", "{}"))"""

REOPEN = """tx.execute("UPDATE sessions SET live = 1, ended_at = NULL, end_reason = NULL, last_seq = NULL"
               " WHERE conversation = ? AND ordinal = ?", (here.key, here.head))
    return conversation_row.update(tx, here, live=1)
    """

AGAIN = """if here.live:
        end_head(tx, here, "again", now)
        here = conversation_row.update(tx, here, live=None)
    """

MUTANTS: dict[str, Mutant] = {
    # the commit
    "no comparison of head and epoch": Mutant("hiding", (Edit(compactions, "commit", CAS, "if False:"),)),
    "no look at whether it has ended": Mutant(
        "ending", (Edit(compactions, "commit", CAS, "if (here.head_id, here.epoch) != (seen.head_id, seen.epoch):"),)
    ),
    "no look at the lease": Mutant("expiring", (Edit(compactions, "commit", CHECK, "pass"),)),
    "cut at the last message": Mutant(
        "ending",
        (Edit(compactions, "write", CUT, "cut_seq=here.last_seq,\n        seen_seq=here.last_seq"),),
    ),
    "seen_seq too high": Mutant(
        "ending", (Edit(compactions, "write", "seen_seq=draft.seen_seq", "seen_seq=here.last_seq"),)
    ),
    "rotation in two transactions": Mutant(
        "watching",
        (Edit(compactions, "commit", ROTATE, END_FIRST + ROTATE),),
        ("compaction_follows_the_current_one",),
    ),
    "tail copied into the continuation": Mutant("ending", (Edit(compactions, "commit", ROTATE, ROTATE + COPY),)),
    "commit that does not know its own result": Mutant(
        "ending", (Edit(compactions, "_was_committed", "if stored.place is None:", "if True:"),)
    ),
    "commit that keeps the lease": Mutant("ending", (Edit(compactions, "commit", FREE, "pass"),)),
    "route moved by a compaction": Mutant(
        "ending",
        (Edit(compactions, "commit", ROTATE, ROTATE + '\n    tx.run("routes_unbind", conversation=here.key, at=now)'),),
    ),
    "compaction that does not void a redo": Mutant(
        "redoing",
        (
            Edit(
                compactions,
                "write",
                "compaction_epoch=here.epoch + 1, redo_epoch=None",
                "compaction_epoch=here.epoch + 1",
            ),
        ),
    ),
    # leases
    "expiry ignored by the commit": Mutant(
        "expiring", (Edit(leases, "check_row", "left = row.seconds_left(tx.clock)", "left = 1.0"),)
    ),
    "expiry ignored by the next": Mutant("expiring", (Edit(leases, "refuse_if_held", "left > 0", "True"),)),
    "living holder taken for dead": Mutant(
        "ending", (Edit(leases.Holder, "is_dead", "if (self.host", "return True\n    if (self.host"),)
    ),
    "lease given to everybody": Mutant(
        "ending", (Edit(leases, "refuse_if_held", "if holder.name != name", "if False"),)
    ),
    "fence that stands still": Mutant("ending", (Query("fence_next", "fence + 1", "max(fence, 1)"),)),
    "token ignored": Mutant(
        "asking again", (Edit(leases, "check_row", HELD, HELD.replace("row.token == lease.token and ", "")),)
    ),
    "turn that is not fenced": Mutant("turning", (Edit(log, "append", "if request.lease is not None:", "if False:"),)),
    "renewal after the end": Mutant("turning", (Edit(leases, "renew", "check_held(tx, here, lease)", "pass"),)),
    # the log
    "acknowledged before the commit": Mutant(
        "acknowledging",
        (
            Edit(
                sqlite_driver.SqliteDriver,
                "_transact",
                'tx.execute("COMMIT")',
                'operation == "append" or tx.execute("COMMIT")',
            ),
        ),
    ),
    "no look for a known uid": Mutant("repeating", (Edit(log, "_find_stored", "if row is None:", "if True:"),)),
    "other content under a known uid": Mutant(
        "repeating",
        (
            Edit(
                log, "_find_stored", "if role != message.role or (not redacted and body != message.body):", "if False:"
            ),
        ),
    ),
    "message in the session that was asked for": Mutant(
        "ending",
        (Edit(log, "_insert", "session=here.head,", "session=here.ordinal,"),),
        ("message_joins_a_live_session",),
    ),
    "message in the session that was asked for, triggers in place": Mutant(
        "ending", (Edit(log, "_insert", "session=here.head,", "session=here.ordinal,"),)
    ),
    "receipt that does not tell of the move": Mutant(
        "ending", (Edit(log, "append", "if session != request.session_id else None", "if False else None"),)
    ),
    "strict append that follows": Mutant(
        "turning", (Edit(log, "append", "if request.expect_head and", "if False and"),)
    ),
    "context that begins after what was seen": Mutant(
        "ending",
        (
            Edit(
                log,
                "context",
                TAIL,
                "tail = read_range(tx, here, compaction.seen_seq if compaction else 0, last)",
            ),
        ),
    ),
    "context that ends where the compaction did": Mutant(
        "ending",
        (
            Edit(
                log,
                "context",
                TAIL,
                TAIL + "\n    tail = [m for m in tail if upto or not compaction or m.seq <= compaction.seen_seq]",
            ),
        ),
    ),
    # ends and views
    "resume that opens a second one": Mutant(
        "resuming",
        (
            Edit(
                sessions,
                "resume",
                "return here.head_id if here.live",
                AGAIN + "return here.head_id if here.live",
            ),
        ),
    ),
    "append that reopens the session": Mutant(
        "ending",
        (
            Edit(
                sessions, "continue_ended", "child = conversation_row.NewId", REOPEN + "child = conversation_row.NewId"
            ),
        ),
        ("session_end_is_final",),
    ),
    "end that ends nothing new": Mutant("resuming", (Edit(sessions, "end", "if not here.live", "if here.live"),)),
    "show of what a compaction did not see": Mutant(
        "showing", (Edit(visibility, "show", "if compaction and hidden.from_seq <= compaction.cut_seq:", "if False:"),)
    ),
    "show that leaves a redo in force": Mutant(
        "redoing",
        (
            Edit(
                visibility,
                "show",
                "after = conversation_row.update(tx, here, redo_epoch=None)",
                "after = conversation_row.update(tx, here)",
            ),
        ),
    ),
    "hide that raises no epoch": Mutant(
        "hiding",
        (Edit(visibility, "hide", "after = conversation_row.update(tx, here, redo_epoch=None)", "after = here"),),
    ),
    "redaction that raises no epoch": Mutant(
        "redacting", (Edit(deletion, "redact", "conversation_row.update(tx, reader, redo_epoch=None)", "pass"),)
    ),
    "redaction that leaves the summary": Mutant(
        "redacting", (Edit(deletion, "redact", "_blank_summaries(tx, reader, seq, now)", "pass"),)
    ),
    "branch that shows what was hidden": Mutant(
        "branching",
        (Edit(visibility, "copy_to_branch", "merge_ranges(hidden_ranges(tx, origin), branch.forked_at)", "()"),),
    ),
    "branch on a compaction that saw more": Mutant(
        "branching",
        (Edit(compactions, "find_covering_upto", "if found.seen_seq <= limit:", "if True:"),),
        ("conversation_fork_point_exists",),
    ),
    "second continuation by the second call": Mutant(
        "calling twice", (Edit(branches, "_continue", "raise errors.ForkRefused(continuation[0])", "return"),)
    ),
    # budgets
    "budget spent whatever its version": Mutant("spending", (Query("budget_swap", " AND version = :version", ""),)),
    "budget that does not ask who was the faster": Mutant(
        "spending", (Edit(usage, "put_budget", "row[:2] == (version + 1, uid)", "row[0] == version + 1"),)
    ),
    "budget that takes itself for another": Mutant(
        "spending", (Edit(usage, "put_budget", "row is not None and row[:2] == (version + 1, uid)", "False"),)
    ),
    # the inbox and processes
    "inbound settled again": Mutant(
        "arriving", (Query("inbox_settle", " AND outcome IS NULL", ""),), ("inbox_entry_is_settled_once",)
    ),
    "settling that takes itself for another": Mutant("arriving", (Edit(inbox, "settle", OWN_OUTCOME, "False"),)),
    "settling that does not ask who was the faster": Mutant(
        "arriving", (Edit(inbox, "settle", OWN_OUTCOME, "row is not None"),)
    ),
    "inbound with another text under its key": Mutant(
        "arriving", (Edit(inbox, "add_entry", "(redacted or found.text == text)", "True"),)
    ),
    "end of a process told again": Mutant("arriving", (Edit(processes, "record_end", 'row[9] == end["uid"]', "True"),)),
    "end of a process without a notice": Mutant(
        "arriving",
        (
            Edit(
                processes,
                "record_end",
                'inbox.add_entry(tx, here, notice_key(end["id"]), "process", notice, now)',
                "pass",
            ),
        ),
        ("process_end_has_a_notice",),
    ),
    # pins
    "pin that a compaction in flight does not see": Mutant(
        "pinning", (Edit(visibility, "pin", "conversation_row.update(tx, here)", "pass"),)
    ),
    "branch that takes no pins": Mutant(
        "pinning", (Edit(visibility, "copy_to_branch", "in pins(tx, origin)", "in ()"),)
    ),
    "branch that takes pins beyond its fork point": Mutant(
        "pinning",
        (Edit(visibility, "copy_to_branch", "if each.seq <= branch.forked_at:", "if True:"),),
        ("pin_lies_within_the_log",),
    ),
}

IN_PLACE = """with open(temp, "rb") as draft, open(path, "wb") as file:
        file.write(draft.read(5_000))
    fault_points.reach(operation, "half")
    os.replace(temp, path)"""

READERS = "for reader in readers:"
COMMIT = """tx.execute("COMMIT")
    tx.execute("BEGIN IMMEDIATE")
    """

# Broken versions of what is done to whole stores; here the scene is the act in which a kill must show it.
CARELESS: dict[str, Mutant] = {
    "backup written in its place": Mutant(
        "backup", (Edit(atomic_file, "rename_into_place", "os.replace(temp, path)", IN_PLACE),)
    ),
    "archive written in its place": Mutant(
        "prune", (Edit(atomic_file, "rename_into_place", "os.replace(temp, path)", IN_PLACE),)
    ),
    "salvage written in its place": Mutant(
        "salvage", (Edit(atomic_file, "rename_into_place", "os.replace(temp, path)", IN_PLACE),)
    ),
    "drafts of the dead kept": Mutant("backup", (Edit(atomic_file, "remove_abandoned", "os.unlink(path)", "pass"),)),
    "redaction in two transactions": Mutant("redact", (Edit(deletion, "redact", READERS, COMMIT + READERS),)),
}


@contextlib.contextmanager
def applied(name: str) -> Iterator[None]:
    """The store, broken in one place."""
    with changed((MUTANTS | CARELESS)[name].changes):
        yield


@contextlib.contextmanager
def changed(changes: Sequence[Edit | Query]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for change in changes:
            stack.enter_context(_edited(change) if isinstance(change, Edit) else _requeried(change))
        yield


@contextlib.contextmanager
def _edited(edit: Edit) -> Iterator[None]:
    original = getattr(edit.owner, edit.function)
    source = textwrap.dedent(inspect.getsource(original))
    assert source.count(edit.old) == 1, f"{edit.function} does not have {edit.old!r} once"
    indent = source[: source.index(edit.old)].rpartition("\n")[2]
    extra = "" if indent.strip() else indent.removeprefix("    ")
    module = inspect.getmodule(original)
    space: dict[str, Any] = {}
    changed = source.replace(edit.old, edit.new.replace("\n    ", "\n    " + extra))
    code = compile(changed, f"<{edit.function}, broken>", "exec", flags=__future__.annotations.compiler_flag)
    exec(code, vars(module), space)
    setattr(edit.owner, edit.function, space[edit.function])
    try:
        yield
    finally:
        setattr(edit.owner, edit.function, original)


@contextlib.contextmanager
def _requeried(query: Query) -> Iterator[None]:
    known = queries.load(query.dialect)
    original = known[query.name]
    assert query.old in original, f"{query.name} does not have {query.old!r}"
    known[query.name] = original.replace(query.old, query.new)
    try:
        yield
    finally:
        known[query.name] = original
