"""Races of many processes: all start every round from a barrier, and exactly one of them wins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from holdfast import errors, types
from holdfast.store.db import SessionDB
from tests.faults import checker, load, steps, zygote

Results = Sequence[Any]


class Race(NamedTuple):
    run_round: Callable[[zygote.Stage, SessionDB, int], Any]
    """One process in one round; its result."""
    check: Callable[[SessionDB, int, Results], object]
    """Assert that the results of a round fit to each other and to the store."""


def run(stage: zygote.Stage) -> list[Any]:
    """A task: all rounds of one race."""
    race, results = RACES[stage.args["race"]], []
    with stage.open() as db:
        for number in range(stage.args["rounds"]):
            stage.barrier.wait()
            results.append(race.run_round(stage, db, number))
    return results


def _first(stage: zygote.Stage, prepare: Callable[[], Any]) -> None:
    """One process prepares the round; the others wait for it."""
    if stage.index == 0:
        prepare()
    stage.barrier.wait()


def _refused(call: Callable[[], Any], *expected: type[errors.HoldfastError]) -> Any:
    """The result of the call, or the name of the refusal and of the winner it names."""
    try:
        return call()
    except expected as error:
        named = getattr(error, "continuation", None) or getattr(error, "conversation", None)
        return [type(error).__name__, named]


def _compact_and_append(stage: zygote.Stage, db: SessionDB, number: int) -> str:
    """Half of them compact, half of them write, to the session they last heard of."""
    name = f"{number}.{stage.index}"
    if stage.index % 2:
        asked = stage.args.setdefault("asked", "c")
        sent = [load.send(stage, db, asked, f"{name}.{n}", f"message {name}.{n}") for n in range(2)]
        stage.args["asked"] = sent[-1].session_id if sent[-1] and number % 3 else "c"
        return "sent" if all(sent) else "lost"
    lease = load.grant(stage, db, "c", name)
    return load.summarize_and_commit(stage, db, name, f"c-{name}", lease) if lease else "Busy"


def _check_compactions(db: SessionDB, number: int, results: Results) -> None:
    # Only compactors change the head, so a process that had the lease in time could commit.
    assert {"done"} <= set(results) <= {"done", "Busy", "sent"}, results


def _compact_with_lease(stage: zygote.Stage, db: SessionDB, number: int) -> str:
    """The winner's summarizer takes longer than all others need to find the lease taken."""
    name = f"{number}.{stage.index}"
    load.send(stage, db, "c", name, "said")
    stage.barrier.wait()
    lease = load.grant(stage, db, "c", name)
    stage.barrier.wait()
    return load.summarize_and_commit(stage, db, name, f"c-{name}", lease) if lease else "Busy"


def _compact_without_lease(stage: zygote.Stage, db: SessionDB, number: int) -> str:
    name = f"{number}.{stage.index}"
    load.send(stage, db, "c", name, "said")
    stage.barrier.wait()
    work = db.snapshot("c")
    summary = checker.summarize(db.context("c", upto=work.last_seq), work.last_seq)
    stage.barrier.wait()
    return load.commit(stage, db, name, work, f"c-{name}", work.last_seq, summary)


def _check_one_done(refusal: str) -> Callable[[SessionDB, int, Results], None]:
    def check(db: SessionDB, number: int, results: Results) -> None:
        assert sorted(results) == [refusal] * (len(results) - 1) + ["done"]

    return check


def _end_and_continue(stage: zygote.Stage, db: SessionDB, number: int) -> list[Any]:
    c = f"c{number}"
    _first(stage, lambda: steps.begin(db, c, 2))
    ended, mine = db.end_session(c, "compression"), f"{c}-{stage.index}"
    made = _refused(lambda: db.create_session(mine, source="race", parent_session_id=c).id, errors.ForkRefused)
    load.send(stage, db, c, f"{c}.{stage.index}", "after it")
    return [ended, made]


def _check_continued(db: SessionDB, number: int, results: Results) -> None:
    (continuation,) = db.continuations(f"c{number}")
    assert [ended for ended, _ in results].count(True) == 1
    others = [made for _, made in results if made != continuation.id]
    # A message that came between the two calls may have opened the continuation.
    assert len(others) >= len(results) - 1
    assert others == [["ForkRefused", continuation.id]] * len(others)


def _begin_chat(stage: zygote.Stage, db: SessionDB, number: int) -> Any:
    """Let all processes receive the first message of a chat; each would begin another conversation."""
    mine = f"c{number}-{stage.index}"
    create = types.NewConversation(source="race", route=f"chat:{number}")

    def begin() -> str:
        receipt = db.append_message(mine, role="user", content="hello", uid=f"{mine}.1", create=create)
        stage.record(checker.Sent(mine, mine, f"{mine}.1", "hello", receipt))
        return receipt.conversation_id

    return _refused(begin, errors.RouteMoved)


def _check_chat(db: SessionDB, number: int, results: Results) -> None:
    (winner,) = [result for result in results if isinstance(result, str)]
    assert [result for result in results if result != winner] == [["RouteMoved", winner]] * (len(results) - 1)
    assert db.route(f"chat:{number}").conversation_id == winner
    born = [db.get_session(f"c{number}-{index}") for index in range(len(results))]
    assert [session.id for session in born if session] == [winner]


def _begin_conversation(stage: zygote.Stage, db: SessionDB, number: int) -> int:
    c = f"c{number}"
    receipt = load.send(stage, db, c, f"{c}.{stage.index}", "hi", create=types.NewConversation(source="race"))
    return receipt.seq if receipt else 0


def _check_begun(db: SessionDB, number: int, results: Results) -> None:
    assert sorted(results) == list(range(1, len(results) + 1))


def _delete_and_branch(stage: zygote.Stage, db: SessionDB, number: int) -> str:
    """One deletes, one branches, the others write: the first decides."""
    c = f"c{number}"
    _first(stage, lambda: steps.begin(db, c, 3))
    calls: list[Callable[[], Any]] = [lambda: db.delete_conversation(c), lambda: db.branch(c, 2, branch_id=f"{c}-b")]
    call = calls[stage.index] if stage.index < 2 else lambda: db.append_message(c, role="user", content="late")
    try:
        call()
    except (errors.ConversationDeleted, errors.HasBranches) as error:
        return type(error).__name__
    return "done"


def _check_deleted(db: SessionDB, number: int, results: Results) -> None:
    is_deleted = results[0] == "done"
    assert tuple(results[:2]) == (("done", "ConversationDeleted") if is_deleted else ("HasBranches", "done"))
    assert steps.deleted(db, f"c{number}") == is_deleted
    assert (db.get_session(f"c{number}-b") is None) == is_deleted


def _contests(db: SessionDB, c: str, name: str) -> dict[str, Callable[[], Any]]:
    """Calls that at most one process wins; they return or raise something else for the others."""
    mail, entry, arrival = db.mail, db.mail.add_inbox_entry(c, c, "came in").id, steps.came(db, c).id
    return {
        "uid": lambda: not db.append_message(c, role="user", content=name, uid=f"{c}:same").duplicate,
        "lease": lambda: db.acquire_lease(c, "turn", name),
        "lock": lambda: db.try_acquire_compression_lock(c, name),
        "chat lease": lambda: mail.acquire_chat_lease(c, holder=name),
        "end": lambda: db.end_session(c, name),
        "title": lambda: db.set_session_title(name, f"plan of {c}"),
        "route": lambda: db.bind_route(c, name, version=0),
        "budget": lambda: db.update_budget(c, 0, {"by": name}),
        "process": lambda: db.processes.record_end(c, "exited", int(name.rpartition("-")[2]), name),
        "inbox": lambda: mail.settle_inbox_entry(entry, name),
        "delivery": lambda: steps.arrived(db, c, f"{c}+", name)[1],
        "settlement": lambda: mail.settle_inbound(None, arrival, name, outgoing=[steps.outgoing(c, name)]),
        "post": lambda: mail.post(steps.outgoing(c, name), key=c).text == name,
        "show": lambda: db.show(c) and db.admin.set_meta(c, name),
    }


def _winners(db: SessionDB, c: str) -> dict[str, Any]:
    """The winner of each contest by what is stored."""
    held = {lease.purpose: lease.holder for lease in db.leases() if lease.conversation_id == c}
    (process,), notices = db.processes.all(c), {each.key: each.text for each in db.mail.inbox_entries(c)}
    assert notices[f"process:{c}"] == f"{c}-{process.exit_code}"
    return {
        "uid": "".join(message.content for message in db.transcript(c) if message.uid == f"{c}:same"),
        "lease": held["turn"],
        "lock": held["compact"],
        "chat lease": {lease.key: lease.holder for lease in db.mail.chat_leases()}[c],
        "end": db.get_session(c).end_reason,
        "title": db.resolve(f"plan of {c}").id,
        "route": db.route(c).conversation_id,
        "budget": db.budget(c)[1]["by"],
        "process": notices[f"process:{c}"],
        "inbox": db.mail.add_inbox_entry(c, c, "came in").outcome,
        "delivery": steps.came(db, c, f"{c}+").text,
        "settlement": "".join(sent.text for sent in db.mail.replies(steps.came(db, c).id)),
        "post": db.mail.post(steps.outgoing(c, ""), key=c).text,
        "show": db.admin.get_meta(c),
    }


def _contend(stage: zygote.Stage, db: SessionDB, number: int) -> dict[str, bool]:
    """Make every call of the contests, each from a barrier; return whether this process won it."""
    c, name, won = f"c{number}", f"c{number}-{stage.index}", dict[str, bool]()
    _first(stage, lambda: (steps.begin(db, c, 1), db.hide(c, 1), db.processes.record_start(steps.process(c))))
    db.create_session(name, source="race")
    for what, call in _contests(db, c, name).items():
        stage.barrier.wait()
        try:
            won[what] = call() is not False
        except errors.HoldfastError:
            won[what] = False
    return won


def _check_contests(db: SessionDB, number: int, results: Results) -> None:
    for what, winner in _winners(db, f"c{number}").items():
        assert [f"c{number}-{index}" for index, won in enumerate(results) if won[what]] == [winner], what


RACES = {
    "compact and append": Race(_compact_and_append, _check_compactions),
    "compact with lease": Race(_compact_with_lease, _check_one_done("Busy")),
    "compact without lease": Race(_compact_without_lease, _check_one_done("Superseded")),
    "end and continue": Race(_end_and_continue, _check_continued),
    "begin chat": Race(_begin_chat, _check_chat),
    "begin conversation": Race(_begin_conversation, _check_begun),
    "delete and branch": Race(_delete_and_branch, _check_deleted),
    "contests": Race(_contend, _check_contests),
}
