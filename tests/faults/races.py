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


def _check_winner(db: SessionDB, number: int, results: Results) -> str:
    """Check that one process won, and that all refusals name it; return it."""
    (winner,) = [result for result in results if isinstance(result, str)]
    assert [result for result in results if result != winner] == [["RouteMoved", winner]] * (len(results) - 1)
    return winner


def _check_one(db: SessionDB, number: int, results: Results) -> None:
    assert sorted(results) == [False] * (len(results) - 1) + [True]


def _compact_and_append(stage: zygote.Stage, db: SessionDB, number: int) -> str:
    """Half of them compact, half of them write, to the session they last heard of."""
    name = f"{number}.{stage.index}"
    if stage.index % 2:
        asked = stage.args.setdefault("asked", "c")
        sent = [load.send(stage, db, asked, f"{name}.{n}", f"message {name}.{n}") for n in range(2)]
        stage.args["asked"] = sent[-1].session_id if sent[-1] and number % 3 else "c"
        return "sent" if all(sent) else "lost"
    lease = load.grant(stage, db, "c", name)
    return _summarize_and_commit(stage, db, name, lease) if lease else "Busy"


def _check_compactions(db: SessionDB, number: int, results: Results) -> None:
    # Only compactors change the head, so a process that had the lease in time could commit.
    assert {"done"} <= set(results) <= {"done", "Busy", "sent"}, results


def _summarize_and_commit(stage: zygote.Stage, db: SessionDB, name: str, lease: types.Lease) -> str:
    stage.record(checker.Summarized(name, "c", lease.token))
    context = db.context("c", upto=lease.snapshot.last_seq)
    cut = max(context.cut_seq, lease.snapshot.last_seq - 3)
    return load.commit(stage, db, name, lease, f"c-{name}", cut, checker.summarize(context, cut))


def _compact_with_lease(stage: zygote.Stage, db: SessionDB, number: int) -> str:
    """The winner's summarizer takes longer than all others need to find the lease taken."""
    name = f"{number}.{stage.index}"
    load.send(stage, db, "c", name, "said")
    stage.barrier.wait()
    lease = load.grant(stage, db, "c", name)
    stage.barrier.wait()
    return _summarize_and_commit(stage, db, name, lease) if lease else "Busy"


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


def _resume(stage: zygote.Stage, db: SessionDB, number: int) -> str:
    c = f"c{number}"
    _first(stage, lambda: (steps.begin(db, c, 2), db.end_conversation(c, "done")))
    if stage.index % 2:
        receipt = load.send(stage, db, c, f"{c}.{stage.index}", "wakes it")
        return receipt.session_id if receipt else ""
    return db.resume(c).id


def _check_resumed(db: SessionDB, number: int, results: Results) -> None:
    assert [session.id for session in db.continuations(f"c{number}")] == [results[0]]
    assert set(results) == {results[0]}


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
    winner = _check_winner(db, number, results)
    assert db.route(f"chat:{number}").conversation_id == winner
    born = [db.get_session(f"c{number}-{index}") for index in range(len(results))]
    assert [session.id for session in born if session] == [winner]


def _begin_conversation(stage: zygote.Stage, db: SessionDB, number: int) -> int:
    c = f"c{number}"
    receipt = load.send(stage, db, c, f"{c}.{stage.index}", "hi", create=types.NewConversation(source="race"))
    return receipt.seq if receipt else 0


def _check_begun(db: SessionDB, number: int, results: Results) -> None:
    assert sorted(results) == list(range(1, len(results) + 1))


def _send_same(stage: zygote.Stage, db: SessionDB, number: int) -> list[Any]:
    receipt = load.send(stage, db, "c", f"uid {number}", "said once")
    return [receipt.seq, receipt.duplicate] if receipt else []


def _check_same(db: SessionDB, number: int, results: Results) -> None:
    assert {seq for seq, _ in results} == {5 + number}
    assert [duplicate for _, duplicate in results].count(False) == 1


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


def _bind_route(stage: zygote.Stage, db: SessionDB, number: int) -> Any:
    mine = f"c{number}-{stage.index}"
    db.create_session(mine, source="race")
    version = db.route("chat").version
    stage.barrier.wait()
    return _refused(lambda: db.bind_route("chat", mine, version=version).conversation_id, errors.RouteMoved)


def _spend(stage: zygote.Stage, db: SessionDB, number: int) -> Any:
    """All read the same version, and would add one to the spent rounds."""
    version, spent = db.budget("c")
    stage.barrier.wait()
    assert (version, spent.get("rounds", 0)) == (number, number)
    return db.update_budget("c", version, {"rounds": number + 1})


def _end_process(stage: zygote.Stage, db: SessionDB, number: int) -> bool:
    """All saw that the process has ended, and each would report it in its own words."""
    name = f"p{number}"
    process = types.Process(id=name, conversation_id="c", command="make", folder="/", started_at=1.0, place="{}")
    _first(stage, lambda: db.processes.record_start(process))
    return db.processes.record_end(name, "exited", stage.index, f"reported by {stage.index}")


def _check_process(db: SessionDB, number: int, results: Results) -> None:
    _check_one(db, number, results)
    notices = [each.text for each in db.mail.inbox_entries("c", limit=1_000) if each.key == f"process:p{number}"]
    assert notices == [f"reported by {results.index(True)}"]
    codes = [each.exit_code for each in db.processes.all("c") if each.id == f"p{number}"]
    assert codes == [results.index(True)]


RACES = {
    "compact and append": Race(_compact_and_append, _check_compactions),
    "compact with lease": Race(_compact_with_lease, _check_one_done("Busy")),
    "compact without lease": Race(_compact_without_lease, _check_one_done("Superseded")),
    "end and continue": Race(_end_and_continue, _check_continued),
    "resume": Race(_resume, _check_resumed),
    "begin chat": Race(_begin_chat, _check_chat),
    "begin conversation": Race(_begin_conversation, _check_begun),
    "send same uid": Race(_send_same, _check_same),
    "delete and branch": Race(_delete_and_branch, _check_deleted),
    "bind route": Race(_bind_route, _check_winner),
    "spend budget": Race(_spend, _check_one),
    "end process": Race(_end_process, _check_process),
}
