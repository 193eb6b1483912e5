"""Scenes a broken protocol has to show itself in: each returns what was found wrong, and nothing if all is well."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from holdfast import errors, types
from holdfast.store import usage
from holdfast.store.db import SessionDB
from holdfast.store.mail import inbox
from tests.faults import checker, interleavings, kills, scenes_mail, steps, zygote
from tests.faults.interleavings import appender, compactor
from tests.faults.scenes_mail import refused

ONE, TWO = compactor("one"), compactor("two")

CASTS: dict[str, list[interleavings.Actor]] = {
    "ending": [ONE, TWO, appender(1), interleavings.ENDER],
    "resuming": [ONE, appender(1), interleavings.RESUMER],
    "hiding": [ONE, TWO, interleavings.HIDER],
    "showing": [ONE, interleavings.SHOWER],
    "redoing": [ONE, interleavings.UNDOING_SHOWER],
    "redacting": [ONE, TWO, interleavings.REDACTOR],
    "expiring": [ONE, TWO, interleavings.TIME],
}


def play(scene: str, without_triggers: Sequence[str] = ()) -> list[str]:
    """What is wrong in a scene, an error nobody expected included."""
    if scene in CASTS:
        return interleavings.every_schedule(CASTS[scene], stop_at=1, without_triggers=without_triggers).problems
    missing = [f"the trigger {name} is missing" for name in without_triggers]
    try:
        return [bad for bad in SCENES[scene](without_triggers) if not bad.endswith(tuple(missing))]
    except (errors.HoldfastError, AssertionError) as error:
        return [f"{type(error).__name__}: {error}"]


def opened(path: str, without_triggers: Sequence[str], clock: Callable[[], float] | None = None) -> SessionDB:
    db = SessionDB(path, clock=clock)
    interleavings.drop_triggers(db, without_triggers)
    return db


def _watching(without_triggers: Sequence[str]) -> list[str]:
    """Another process looks at every point of a commit."""
    with zygote.folder() as made:
        course = kills.course_of("commit", f"{made}/store.db", without_triggers)
    return kills.half_states(course)


def _acknowledging(without_triggers: Sequence[str]) -> list[str]:
    """Another process looks right after each acknowledgement."""
    found, history = list[str](), list[checker.Record]()
    with (
        zygote.folder() as made,
        opened(f"{made}/store.db", without_triggers) as db,
        SessionDB(f"{made}/store.db") as other,
    ):
        db.create_session("c", source="test")
        for uid in ("first", "second"):
            receipt = db.append_message("c", role="user", content=uid, uid=uid)
            history.append(checker.Sent("client", "c", uid, uid, receipt))
            found += checker.verify(other, history)
            if found:
                break
    return found


def _repeating(without_triggers: Sequence[str]) -> list[str]:
    """A client that never heard sends again; another uses its uid for something else."""
    with opened(":memory:", without_triggers) as db:
        steps.say(db, "c")
        history: list[checker.Record] = []
        for _ in range(3):
            receipt = db.append_message("c", role="user", content="once", uid="once")
            history.append(checker.Sent("client", "c", "once", "once", receipt))
        found = refused(
            "other content", errors.UidReused, lambda: db.append_message("c", role="user", content="other", uid="once")
        )
        if db.conversation("c").last_seq != 5:
            found.append("a repeated message was stored again")
        return found + checker.verify(db, history)


def _asking_again(without_triggers: Sequence[str]) -> list[str]:
    """The same holder asks twice: its first lease is dead."""
    with opened(":memory:", without_triggers) as db:
        steps.say(db, "c")
        leases = [db.acquire_lease("c", "compact", "me") for _ in range(2)]
        history: list[checker.Record] = [checker.Granted("me", lease) for lease in leases]
        found = refused(
            "the older lease", errors.LeaseLost, lambda: db.commit_compaction(leases[0], summary="", cut_seq=1)
        )
        child = db.commit_compaction(leases[1], summary="", cut_seq=1, child_id="c-1").id
        history.append(checker.Committed("me", leases[1].snapshot, child, 1, leases[1].token, done=True))
        return found + checker.verify(db, history)


def _turning(without_triggers: Sequence[str]) -> list[str]:
    """A turn overtaken while it was away, and a client that writes to the head it knows or not at all."""
    clock = [1_000.0]
    with opened(":memory:", without_triggers, lambda: clock[0]) as db:
        steps.compacted(db, "c")
        mine = db.acquire_lease("c", "turn", "slow", 30.0)
        clock[0] += 31
        found = refused("a renewal", errors.LeaseLost, lambda: db.renew_lease(mine))
        db.acquire_lease("c", "turn", "other", 30.0)
        found += refused("the old turn", errors.LeaseLost, lambda: _say(db, "c", "late", lease=mine))
        found += refused("a strict append", errors.Superseded, lambda: _say(db, "c", "strict", expect_head=True))
        history = [checker.Sent("client", "c", uid, uid, refused="refused") for uid in ("late", "strict")]
        return found + checker.verify(db, history, also=["c"])


def _say(db: SessionDB, c: str, uid: str, **how: Any) -> types.Receipt:
    return db.append_message(c, role="user", content=uid, uid=uid, **how)


def _branching(without_triggers: Sequence[str]) -> list[str]:
    """A branch from before a compaction, with something hidden, sees what was seen there."""
    with opened(":memory:", without_triggers) as db:
        steps.say(db, "c", 6)
        db.hide("c", 2, 2)
        work = db.snapshot("c")
        db.commit_compaction(work, summary=checker.summarize(db.context("c"), 4), cut_seq=4, child_id="c-1")
        db.branch("c", 5, branch_id="b")
        found = checker.verify(db, also=["c", "b"])
        if [message.seq for message in db.context("b")] != [1, 3, 4, 5]:
            found.append("the branch does not see what was seen where it began")
        return found


def _calling_twice(without_triggers: Sequence[str]) -> list[str]:
    """Two callers of the two-call way: the second is told of the first one's continuation."""
    with opened(":memory:", without_triggers) as db:
        steps.say(db, "c")
        steps.two_calls(db, {"id": "c"})
        found = refused(
            "the second", errors.ForkRefused, lambda: db.create_session("c-2", source="test", parent_session_id="c")
        )
        return found + checker.verify(db, also=["c"])


def _spending(without_triggers: Sequence[str]) -> list[str]:
    """Two who read the same version: the second is told so. One whose attempt is repeated was not beaten by itself."""
    with opened(":memory:", without_triggers) as db:
        steps.say(db, "c")
        told = [db.update_budget("c", version, {"tries": version + 1}) for version in (0, 0, 1, 1, 0)]
        found = [] if told == [True, False, True, False, False] else [f"of the spenders {told} were told they won"]
        text = '{"spent":{"tries":3}}'
        again = [db.driver.write("budget", lambda tx: usage.put_budget(tx, "c", 2, text, "mine")) for _ in range(2)]
        if again != [True, True] or db.budget("c") != (3, {"tries": 3}):
            found.append("a repeated attempt took itself for another's")
        return found + checker.verify(db, also=["c"])


def _arriving(without_triggers: Sequence[str]) -> list[str]:
    """What comes in twice is one. The second who settles it, or ends a process, is told so; a repeated attempt not."""
    with opened(":memory:", without_triggers) as db:
        steps.say(db, "c")
        first, again = (db.mail.add_inbox_entry("c", "k", "came in") for _ in range(2))
        found = [] if first == again else ["what came in twice is two"]
        found += refused("another text", errors.IdTaken, lambda: db.mail.add_inbox_entry("c", "k", "something else"))
        told = [db.mail.settle_inbox_entry(first.id, outcome, 1) for outcome in ("completed", "failed")]
        found += [] if told == [True, False] else [f"of those who settled it {told} were told they were first"]
        db.processes.record_start(steps.process("c"))
        told = [db.processes.record_end("c", "exited", code, f"ended with {code}") for code in (0, 1)]
        found += [] if told == [True, False] else [f"of the watchers {told} were told they were first"]
        other = db.mail.add_inbox_entry("c", "other", "came in").id
        mine = {"id": other, "outcome": "x", "seq": 1, "uid": "mine", "at": 1.0}
        again_ = [db.driver.write("inbox", lambda tx: inbox.settle(tx, mine)) for _ in range(2)]
        if again_ != [True, True]:
            found.append("a repeated attempt to settle took itself for another's")
        notices = [each.text for each in db.mail.inbox_entries("c")]
        if notices != ["ended with 0"] or db.processes.all("c")[0].exit_code != 0:
            found.append(f"the process was told of with {notices}")
        return found + checker.verify(db, also=["c"])


def _pinning(without_triggers: Sequence[str]) -> list[str]:
    """A pin comes in while a compaction is made that does not know of it; and a branch is made from before a pin."""
    with opened(":memory:", without_triggers) as db:
        steps.say(db, "c")
        lease = db.acquire_lease("c", "compact", "me")
        for seq in (2, 2, 4):
            db.pin("c", seq)
        found = refused("the compaction", errors.Superseded, lambda: db.commit_compaction(lease, summary="", cut_seq=2))
        db.branch("c", 3, branch_id="b")
        told = [[each.seq for each in db.pins(name)] for name in "cb"]
        found += [] if told == [[2, 4], [2]] else [f"pinned are {told}"]
        return found + checker.verify(db, also=["c", "b"])


def _with_mail(without_triggers: Sequence[str], scene: Callable[[SessionDB], list[str]]) -> list[str]:
    with opened(":memory:", without_triggers) as db:
        return scene(db)


SCENES: dict[str, Callable[[Sequence[str]], list[str]]] = {
    "watching": _watching,
    "acknowledging": _acknowledging,
    "repeating": _repeating,
    "asking again": _asking_again,
    "turning": _turning,
    "branching": _branching,
    "calling twice": _calling_twice,
    "spending": _spending,
    "arriving": _arriving,
    "watching an answer": scenes_mail.watching,
    **{name: partial(_with_mail, scene=scene) for name, scene in scenes_mail.SCENES.items()},
    "pinning": _pinning,
}
