"""Rounds of a race, as run by every process of a crowd: all start from a barrier, all do the same at once.

Each round is a function of the stage, the store and the round's number; what it returns is held against
what the other processes returned in the same round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast import errors, types
from holdfast.store.db import SessionDB
from tests.faults import checker, steps, workers, zygote


def run(stage: zygote.Stage) -> list[Any]:
    """All rounds of one race."""
    round_of = ROUNDS[stage.args["race"]]
    results = []
    with stage.open() as db:
        for number in range(stage.args["rounds"]):
            stage.barrier.wait()
            results.append(round_of(stage, db, number))
    return results


def come_and_go(stage: zygote.Stage) -> list[Any]:
    """Every message by a SessionDB of its own: stores are created, opened, recovered and closed in between."""
    seqs = []
    for number in range(stage.args["rounds"]):
        path, c = f"{stage.path}.{number}", "c"
        stage.barrier.wait()
        for again in range(3):
            with SessionDB(path) as db:
                uid = f"{stage.index}.{number}.{again}"
                receipt = db.append_message(
                    c, role="user", content="said", uid=uid, create=types.NewConversation(source="race")
                )
                seqs.append(receipt.seq)
    return seqs


def _first(stage: zygote.Stage, prepare: Callable[[], Any]) -> None:
    """One process prepares the round; the others wait for it."""
    if stage.index == 0:
        prepare()
    stage.barrier.wait()


def _refused(call: Callable[[], Any], *expected: type[errors.HoldfastError]) -> Any:
    """What the call returned, or the name of the refusal and whom it names instead."""
    try:
        return call()
    except expected as error:
        named = getattr(error, "continuation", None) or getattr(error, "conversation", None)
        return [type(error).__name__, named]


# --- compactions ---------------------------------------------------------------------------------------


def _everybody(stage: zygote.Stage, db: SessionDB, number: int) -> list[Any]:
    """Half of them compact, half of them write, to whatever session they last heard of."""
    name = f"{number}.{stage.index}"
    if stage.index % 2:
        asked = stage.args.setdefault("asked", "c")
        sent = [workers.send(stage, db, asked, f"{name}.{n}", f"message {name}.{n}") for n in range(2)]
        stage.args["asked"] = sent[-1].session_id if sent[-1] and number % 3 else "c"
        return [receipt.seq for receipt in sent if receipt]
    lease = workers.grant(stage, db, "c", name)
    return [_summarize_and_commit(stage, db, name, lease) if lease else "Busy"]


def _summarize_and_commit(stage: zygote.Stage, db: SessionDB, name: str, lease: types.Lease) -> str:
    stage.tell(checker.Summarized(name, "c", lease.token))
    context = db.context("c", upto=lease.snapshot.last_seq)
    cut = max(context.cut_seq, lease.snapshot.last_seq - 3)
    return workers.commit(stage, db, name, lease, f"c-{name}", cut, checker.summarize(context, cut))


def _one_lease(stage: zygote.Stage, db: SessionDB, number: int) -> str:
    """The winner's summarizer takes longer than all others need to find the lease taken."""
    name = f"{number}.{stage.index}"
    workers.send(stage, db, "c", name, "said")
    stage.barrier.wait()
    lease = workers.grant(stage, db, "c", name)
    stage.barrier.wait()
    return _summarize_and_commit(stage, db, name, lease) if lease else "Busy"


def _no_leases(stage: zygote.Stage, db: SessionDB, number: int) -> str:
    name = f"{number}.{stage.index}"
    workers.send(stage, db, "c", name, "said")
    stage.barrier.wait()
    work = db.snapshot("c")
    summary = checker.summarize(db.context("c", upto=work.last_seq), work.last_seq)
    stage.barrier.wait()
    return workers.commit(stage, db, name, work, f"c-{name}", work.last_seq, summary)


# --- lineage -------------------------------------------------------------------------------------------


def _two_calls(stage: zygote.Stage, db: SessionDB, number: int) -> list[Any]:
    c = f"c{number}"
    _first(stage, lambda: steps.say(db, c, 2))
    ended = db.end_session(c, "compression")
    made = _refused(
        lambda: db.create_session(f"{c}-{stage.index}", source="race", parent_session_id=c).id, errors.ForkRefused
    )
    workers.send(stage, db, c, f"{c}.{stage.index}", "after it")
    return [ended, made]


def _resumes(stage: zygote.Stage, db: SessionDB, number: int) -> str:
    c = f"c{number}"

    def prepare() -> None:
        steps.say(db, c, 2)
        db.end_conversation(c, "done")

    _first(stage, prepare)
    if stage.index % 2:
        receipt = workers.send(stage, db, c, f"{c}.{stage.index}", "wakes it")
        return receipt.session_id if receipt else ""
    return db.resume(c).id


def _births(stage: zygote.Stage, db: SessionDB, number: int) -> Any:
    """A chat's first message, received by all of them; each would begin a conversation of its own."""
    mine = f"c{number}-{stage.index}"
    create = types.NewConversation(source="race", route=f"chat:{number}")

    def begin() -> str:
        uid = f"{mine}.1"
        receipt = db.append_message(mine, role="user", content="hello", uid=uid, create=create)
        stage.tell(checker.Sent(mine, mine, uid, "hello", receipt))
        return receipt.conversation_id

    return _refused(begin, errors.RouteMoved)


def _same_birth(stage: zygote.Stage, db: SessionDB, number: int) -> int:
    c = f"c{number}"
    receipt = workers.send(stage, db, c, f"{c}.{stage.index}", "hi", create=types.NewConversation(source="race"))
    return receipt.seq if receipt else 0


def _same_uid(stage: zygote.Stage, db: SessionDB, number: int) -> list[Any]:
    receipt = workers.send(stage, db, "c", f"uid {number}", "said once")
    return [receipt.seq, receipt.duplicate] if receipt else []


def _titles(stage: zygote.Stage, db: SessionDB, number: int) -> Any:
    mine = f"c{number}-{stage.index}"
    db.create_session(mine, source="race")
    stage.barrier.wait()
    return _refused(lambda: db.set_session_title(mine, f"title {number}"), errors.TitleTaken)


def _routes(stage: zygote.Stage, db: SessionDB, number: int) -> Any:
    mine = f"c{number}-{stage.index}"
    db.create_session(mine, source="race")
    version = db.route("chat").version
    stage.barrier.wait()
    return _refused(lambda: db.bind_route("chat", mine, version=version).conversation_id, errors.RouteMoved)


def _budgets(stage: zygote.Stage, db: SessionDB, number: int) -> Any:
    """Everybody reads the same version, and would add one to what was spent."""
    version, spent = db.budget("c")
    stage.barrier.wait()
    return [version, db.update_budget("c", version, {"rounds": spent.get("rounds", 0) + 1})]


def _ends(stage: zygote.Stage, db: SessionDB, number: int) -> bool:
    """Everybody saw that the process has ended, and each would tell of it in words of its own."""
    name = f"p{number}"
    _first(stage, lambda: db.processes.record_start(_process(name)))
    return db.processes.record_end(name, "exited", stage.index, f"told by {stage.index}")


def _process(name: str) -> types.Process:
    return types.Process(id=name, conversation_id="c", command="make", folder="/", started_at=1.0, place="{}")


def _arrivals(stage: zygote.Stage, db: SessionDB, number: int) -> list[Any]:
    """The same thing comes in by all of them, and all of them say what became of it."""
    inbound = db.mail.add_inbox_entry("c", f"k{number}", "came in")
    stage.barrier.wait()
    return [inbound.id, db.mail.settle_inbox_entry(inbound.id, f"settled by {stage.index}", 1)]


def _facts(stage: zygote.Stage, db: SessionDB, number: int) -> list[int]:
    """All of them remember and allow the same."""
    made = (
        db.memory.add("o", f"fact {number}", source="c"),
        db.permissions.grant("o", f"rule {number}", session_id="c", by="me"),
    )
    return [each.id for each in made]


def _deletion(stage: zygote.Stage, db: SessionDB, number: int) -> str:
    """One deletes, one branches, the others write: whoever comes first decides."""
    c = f"c{number}"
    _first(stage, lambda: steps.say(db, c, 3))
    calls: list[Callable[[], Any]] = [
        lambda: db.delete_conversation(c),
        lambda: db.branch(c, 2, branch_id=f"{c}-b"),
    ]
    call = calls[stage.index] if stage.index < 2 else lambda: db.append_message(c, role="user", content="late")
    try:
        call()
    except (errors.ConversationDeleted, errors.HasBranches) as error:
        return type(error).__name__
    return "done"


ROUNDS: dict[str, Callable[[zygote.Stage, SessionDB, int], Any]] = {
    "everybody": _everybody,
    "one lease": _one_lease,
    "no leases": _no_leases,
    "two calls": _two_calls,
    "resumes": _resumes,
    "births": _births,
    "same birth": _same_birth,
    "same uid": _same_uid,
    "titles": _titles,
    "routes": _routes,
    "budgets": _budgets,
    "ends": _ends,
    "arrivals": _arrivals,
    "facts": _facts,
    "deletion": _deletion,
}
