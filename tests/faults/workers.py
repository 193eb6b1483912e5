"""What children of the zygote do when they behave: append, compact, take turns; and record all of it."""

from __future__ import annotations

import os
import signal
from typing import Any

from holdfast import errors, types
from holdfast.store.db import SessionDB
from tests.faults import checker, zygote


def send(stage: zygote.Stage, db: SessionDB, asked: str, uid: str, content: str, **how: Any) -> types.Receipt | None:
    """Append, having said so before, and say what came of it."""
    client = f"client {os.getpid()}"
    stage.tell(checker.Sent(client, asked, uid, content))
    try:
        receipt = db.append_message(asked, role="user", content=content, uid=uid, **how)
    except errors.HoldfastError as error:
        stage.tell(checker.Sent(client, asked, uid, content, refused=type(error).__name__))
        return None
    stage.tell(checker.Sent(client, asked, uid, content, receipt))
    return receipt


def grant(stage: zygote.Stage, db: SessionDB, c: str, name: str, ttl: float = 30.0) -> types.Lease | None:
    """The lease to compact, or None when another has it."""
    try:
        lease = db.acquire_lease(c, "compact", name, ttl)
    except errors.Busy:
        return None
    stage.tell(checker.Granted(name, lease))
    return lease


def commit(
    stage: zygote.Stage,
    db: SessionDB,
    name: str,
    work: types.Lease | types.Snapshot,
    child: str,
    cut: int,
    summary: str,
) -> str:
    """`done`, or the name of the refusal."""
    seen = work.snapshot if isinstance(work, types.Lease) else work
    token = work.token if isinstance(work, types.Lease) else None
    record = checker.Committed(name, seen, child, cut, token)
    stage.tell(record)
    try:
        db.commit_compaction(work, summary=summary, cut_seq=cut, child_id=child)
    except (errors.LeaseLost, errors.Superseded, errors.StoreBusy) as error:
        refusal = type(error).__name__
        stage.tell(checker.Committed(name, seen, child, cut, token, refused=refusal))
        return refusal
    stage.tell(checker.Committed(name, seen, child, cut, token, done=True))
    return "done"


def compact(stage: zygote.Stage) -> str:
    """One compaction from the lease to the commit; `compact.*` are the places between its calls."""
    c, name = stage.args["id"], stage.args["name"]
    with stage.open() as db:
        lease = grant(stage, db, c, name)
        if lease is None:
            return "Busy"
        stage.reach("compact.acquired")
        context = db.context(c, upto=lease.snapshot.last_seq)
        stage.tell(checker.Summarized(name, c, lease.token))
        stage.reach("compact.read")
        cut = lease.snapshot.last_seq - 1
        summary = checker.summarize(context, cut)
        stage.reach("compact.summarized")
        return commit(stage, db, name, lease, f"{c}-{name}", cut, summary)


def turn(stage: zygote.Stage) -> int | None:
    """A turn: its lease, and one message fenced by it."""
    c, name = stage.args["id"], stage.args["name"]
    with stage.open() as db:
        lease = db.acquire_lease(c, "turn", name, 30.0)
        stage.tell(checker.Granted(name, lease))
        stage.reach("turn.began")
        receipt = send(stage, db, c, f"{c}:{name}", "said in a turn", lease=lease)
        return receipt.seq if receipt else None


def write(stage: zygote.Stage) -> int | None:
    """One message."""
    c, name = stage.args["id"], stage.args["name"]
    with stage.open() as db:
        receipt = send(stage, db, c, f"{c}:{name}", "said")
        return receipt.seq if receipt else None


def hold(stage: zygote.Stage) -> int:
    """Takes the lease and ends, or is stopped or killed, without letting go of it."""
    with stage.open() as db:
        token = db.acquire_lease(stage.args["id"], stage.args["purpose"], stage.args["name"], 300.0).token
        stage.reach("hold.held")
        return token


def write_after_fork(stage: zygote.Stage) -> int | None:
    """One message, by a process that has a child which outlives it and never asked for the store."""
    with stage.open() as db:
        child = os.fork()
        if child == 0:
            os.setsid()
            signal.pause()
            os._exit(0)
        stage.tell({"child": child})
        receipt = send(stage, db, stage.args["id"], "from the parent", "said")
        return receipt.seq if receipt else None
