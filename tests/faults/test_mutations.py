"""The interleavings notice a broken version of the store, each made by one small change."""

from __future__ import annotations
import __future__

import inspect
from typing import Any, NamedTuple

import pytest

from holdfast.store import compactions, deletion, leases, log, visibility
from tests.faults import interleavings


class Mutation(NamedTuple):
    """The interleavings that must notice it, and a text replaced in a function of a module."""

    group: str
    module: Any
    function: str
    old: str
    new: str


CAS = "if (here.head_id, here.epoch, here.live) != (seen.head_id, seen.epoch, 1):"
CHECK = "leases.check_row(tx, here, lease, leases.LeaseRow(*stored.lease) if stored.lease else None)"
ROTATE = "write(tx, here, child_id, draft, lease.token if lease else None, now, head.source, model, *last)"
UNBIND = '\n    tx.run("routes_unbind", conversation=here.key, at=now)'
TAIL = "tail = read_range(tx, here, cut, last)"
BEHIND = "\n    tail = [m for m in tail if upto or not compaction or m.seq <= compaction.seen_seq]"
SHOWABLE = "if compaction and hidden.from_seq <= compaction.cut_seq:"

MUTATIONS = {
    "no comparison of head and epoch": Mutation("hide", compactions, "commit", CAS, "if False:"),
    "no look at whether it has ended": Mutation("end", compactions, "commit", CAS, CAS.replace(", here.live)", ", 1)")),
    "no look at the lease": Mutation("expiry", compactions, "commit", CHECK, "pass"),
    "route moved by a compaction": Mutation("end", compactions, "commit", ROTATE, ROTATE + UNBIND),
    "expiry ignored by the next holder": Mutation("expiry", leases, "refuse_if_held", "left > 0", "True"),
    "context that ends too early": Mutation("end", log, "context", TAIL, TAIL + BEHIND),
    "show of what a compaction did not see": Mutation("hide and show", visibility, "show", SHOWABLE, "if False:"),
    "redaction that leaves the summary": Mutation(
        "redact", deletion, "redact", "_blank_summaries(tx, reader, seq, now)", "pass"
    ),
}


@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS)
def test_mutation_is_noticed(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    source = inspect.getsource(getattr(mutation.module, mutation.function))
    assert source.count(mutation.old) == 1
    changed = source.replace(mutation.old, mutation.new)
    code = compile(changed, "<broken>", "exec", flags=__future__.annotations.compiler_flag)
    broken: dict[str, Any] = {}
    exec(code, vars(mutation.module), broken)
    monkeypatch.setattr(mutation.module, mutation.function, broken[mutation.function])
    _, problems = interleavings.every_schedule(interleavings.GROUPS[mutation.group], stop_at=1)
    assert problems
