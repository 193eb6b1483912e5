"""Broken versions of the store, each by one small change, and the means to put one in place."""

from __future__ import annotations
import __future__

import contextlib
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from holdfast.store import compactions, deletion, leases, log, queries, sessions, visibility
from holdfast.store.backup import atomic_file
from holdfast.store.mail import inbound
from holdfast.store.postgres import driver as postgres_driver
from holdfast.store.postgres import errors as postgres_errors
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


class Function(NamedTuple):
    """A text replaced in a function of the PostgreSQL schema."""

    name: str
    old: str
    new: str


class Mutation(NamedTuple):
    """The changes, the scenario that must notice, and the triggers that would stop the change before it did harm."""

    scenario: str
    changes: Sequence[Edit | Query | Function]
    without_triggers: tuple[str, ...] = ()


def _edit(scenario: str, owner: Any, function: str, old: str, new: str, *without_triggers: str) -> Mutation:
    return Mutation(scenario, [Edit(owner, function, old, new)], without_triggers)


CAS = "if (here.head_id, here.epoch, here.live) != (seen.head_id, seen.epoch, 1):"
ROTATE = "write(tx, here, child_id, draft, lease.token if lease else None, now, head.source, model, *last)"
CHECK = "leases.check_row(tx, here, lease, leases.LeaseRow(*stored.lease) if stored.lease else None)"
FREE = 'last.append(("lease_delete", {"conversation": here.key, "purpose": lease.purpose, "token": lease.token}))'
CUT = "cut_seq=draft.cut_seq,\n        seen_seq=draft.seen_seq"
LAST = "cut_seq=here.last_seq,\n        seen_seq=here.last_seq"
TAIL = "tail = read_range(tx, here, cut, last)"
BEHIND = "\n    tail = [m for m in tail if upto or not compaction or m.seq <= compaction.seen_seq]"
UNBIND = '\n    tx.run("routes_unbind", conversation=here.key, at=now)'
NO_REDO = "after = conversation_row.update(tx, here, redo_epoch=None)"
# The first half of a rotation, committed on its own.
END_FIRST = """sessions.end_head(tx, here, "compression", now)
    conversation_row.update(tx, here, live=None)
    tx.execute("COMMIT")
    tx.execute("BEGIN")
    here = conversation_row.lock(tx, here.id)
    """
RESUME, CONTINUE, OLD_SESSION = (
    "return here.head_id if here.live",
    "child = conversation_row.NewId",
    "session=here.head,",
)
CURRENT, LIVE = "compaction_follows_the_current_one", "message_joins_a_live_session"

SQLITE = {
    # the commit of a compaction
    "no comparison of head and epoch": _edit("hide", compactions, "commit", CAS, "if False:"),
    "no look at whether it has ended": _edit("end", compactions, "commit", CAS, CAS.replace(", here.live)", ", 1)")),
    "no look at the lease": _edit("expiry", compactions, "commit", CHECK, "pass"),
    "cut at the last message": _edit("end", compactions, "write", CUT, LAST),
    "rotation in two transactions": _edit("watching", compactions, "commit", ROTATE, END_FIRST + ROTATE, CURRENT),
    "commit that keeps the lease": _edit("end", compactions, "commit", FREE, "pass"),
    "route moved by a compaction": _edit("end", compactions, "commit", ROTATE, ROTATE + UNBIND),
    "redo kept by a compaction": _edit("hide, undo, show, redo", compactions, "write", "+ 1, redo_epoch=None", "+ 1"),
    # leases
    "expiry ignored by the commit": _edit(
        "expiry", leases, "check_row", "left = row.seconds_left(tx.clock)", "left = 1.0"
    ),
    "expiry ignored by the next holder": _edit("expiry", leases, "refuse_if_held", "left > 0", "True"),
    "lease granted to every caller": _edit("end", leases, "refuse_if_held", "if holder.name != name", "if False"),
    "fence that stands still": Mutation("end", [Query("fence_next", "fence + 1", "max(fence, 1)")]),
    # the log
    "acknowledged before the commit": _edit(
        "acknowledging",
        sqlite_driver.SqliteDriver,
        "_transact",
        'tx.execute("COMMIT")',
        'operation == "append" or tx.execute("COMMIT")',
    ),
    "message in an old session": _edit("end", log, "_insert", OLD_SESSION, "session=here.ordinal,", LIVE),
    "receipt without the move": _edit("end", log, "append", "if session != request.session_id else", "if False else"),
    "context that ends too early": _edit("end", log, "context", TAIL, TAIL + BEHIND),
    # ends and views
    "end that ends nothing": _edit("append, end and resume", sessions, "end", "if not here.live", "if here.live"),
    "show of what a compaction did not see": _edit(
        "hide and show", visibility, "show", "if compaction and hidden.from_seq <= compaction.cut_seq:", "if False:"
    ),
    "hide that raises no epoch": _edit("hide", visibility, "hide", NO_REDO, "after = here"),
    "redaction that leaves the summary": _edit(
        "redact", deletion, "redact", "_blank_summaries(tx, reader, seq, now)", "pass"
    ),
}

LOCK = "lock_conversation"
POSTGRES = {
    "no lock": Mutation("overlapping", [Function(LOCK, "FOR UPDATE", "")]),
    "look before the lock": Mutation(
        "overlapping",
        [
            Function(LOCK, "c.key = place.conversation FOR UPDATE;", "false;"),
            Function(LOCK, "= place.conversation;\nEND", "= place.conversation FOR UPDATE OF c;\nEND"),
        ],
    ),
    "rotation in two transactions": _edit("watching", compactions, "commit", ROTATE, END_FIRST + ROTATE, CURRENT),
    "acknowledged before the commit": _edit(
        "acknowledging",
        postgres_driver.PostgresDriver,
        "_transact",
        "tx.commit()",
        'operation == "append" or tx.commit()',
    ),
    "reading without a snapshot": _edit(
        "reading", postgres_driver.PostgresDriver, "read", "begin: str = _BEGIN_READ", 'begin: str = "BEGIN"'
    ),
    # the answer to the commit is lost
    "lost connection that is not made again": _edit(
        "lost hide",
        postgres_errors.RetryPolicy,
        "retry_or_raise",
        "isinstance(error, errors.StoreUnreachable)",
        "False",
    ),
    "no look for a known uid": _edit("lost append_batch", log, "_find_stored", "if row is None:", "if True:"),
    "range hidden twice": _edit("lost hide", visibility, "hide", '"hide" in tx.retry_state and', "False and"),
    "arrival taken for another's": _edit("lost arrive", inbound, "receive", "receivers[0][0] == uid", "False"),
    # a chat lease that is taken over meanwhile
    "no lock on a chat lease": Mutation("overtaken", [Query("claim_row", " FOR UPDATE", "", "postgres")]),
    "settled by an overtaken lease": Mutation(
        "overtaken",
        [
            Query("arrival_settle", "= %(token)s", "IS NOT NULL", "postgres"),
            Edit(inbound, "settle", "chat_leases.check_held(lease, held)", "pass"),
        ],
    ),
}

IN_PLACE = """with open(temp, "rb") as draft, open(path, "wb") as file:
        file.write(draft.read(5_000))
    fault_points.reach(operation, "half")
    os.replace(temp, path)"""
COMMIT_FIRST = """tx.execute("COMMIT")
    tx.execute("BEGIN IMMEDIATE")
    for reader in readers:"""

# Broken maintenance of whole stores; here the scenario is the act in which a kill must show it.
CARELESS = {
    **{
        f"{act} written in its place": _edit(act, atomic_file, "rename_into_place", "os.replace(temp, path)", IN_PLACE)
        for act in ("backup", "prune", "salvage")
    },
    "drafts of dead processes kept": _edit("backup", atomic_file, "remove_abandoned", "os.unlink(path)", "pass"),
    "redaction in two transactions": _edit("redact", deletion, "redact", "for reader in readers:", COMMIT_FIRST),
}


@contextlib.contextmanager
def apply(changes: Sequence[Edit | Query | Function]) -> Iterator[None]:
    """Break the store in this process; functions of the server are changed by the scenario."""
    with pytest.MonkeyPatch.context() as patch:
        for change in changes:
            if isinstance(change, Edit):
                patch.setattr(change.owner, change.function, _edited(change))
            elif isinstance(change, Query):
                known = queries.load(change.dialect)
                assert change.old in known[change.name], f"{change.name} does not have {change.old!r}"
                patch.setitem(known, change.name, known[change.name].replace(change.old, change.new))
        yield


def _edited(edit: Edit) -> Any:
    original = getattr(edit.owner, edit.function)
    source = textwrap.dedent(inspect.getsource(original))
    assert source.count(edit.old) == 1, f"{edit.function} does not have {edit.old!r} once"
    indent = source[: source.index(edit.old)].rpartition("\n")[2]
    extra = "" if indent.strip() else indent.removeprefix("    ")
    space: dict[str, Any] = {}
    changed = source.replace(edit.old, edit.new.replace("\n    ", "\n    " + extra))
    code = compile(changed, f"<{edit.function}, broken>", "exec", flags=__future__.annotations.compiler_flag)
    exec(code, vars(inspect.getmodule(original)), space)
    return space[edit.function]
