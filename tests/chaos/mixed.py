"""Random work: many processes call anything on a few conversations, and record it."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast import errors, types
from holdfast.store.db import SessionDB
from tests.faults import checker, load, zygote
from tests.support import random_histories

CONVERSATIONS = ("c0", "c1", "c2")
# Refusals that are answers: another process was first, or there was nothing to do.
ANSWERS = (
    errors.Superseded,
    errors.LeaseLost,
    errors.Busy,
    errors.ForkRefused,
    errors.NothingToUndo,
    errors.ShowRefused,
    errors.StoreBusy,
)


class Scene(NamedTuple):
    stage: zygote.Stage
    db: SessionDB
    chance: random.Random
    name: str
    number: int
    c: str

    @property
    def uid(self) -> str:
        return f"{self.name}.{self.number}"


def work(stage: zygote.Stage) -> None:
    """A task: perform random actions until killed."""
    name = stage.args["name"]
    chance, db = random.Random(f"{stage.args['seed']} {name}"), stage.open()
    for number in itertools.count():
        if chance.random() < 0.02:
            db.close()
            db = stage.open()
        scene = Scene(stage, db, chance, name, number, chance.choice(CONVERSATIONS))
        action = chance.choices(list(ACTIONS), list(ACTIONS.values()))[0]
        with contextlib.suppress(*ANSWERS):
            action(scene)


def _append(scene: Scene) -> None:
    """To any session of the conversation, sometimes twice, as a client does that never heard."""
    asked = scene.chance.choice([scene.c, *[session.id for session in scene.db.sessions(scene.c)][-3:]])
    for _ in range(scene.chance.choice([1, 1, 1, 2])):
        load.send(scene.stage, scene.db, asked, scene.uid, f"said {scene.uid} " * scene.chance.randint(1, 40))


def _append_strictly(scene: Scene) -> None:
    head = scene.db.head(scene.c).id
    load.send(scene.stage, scene.db, head, scene.uid, f"said {scene.uid}", expect_head=True)


def _take_a_turn(scene: Scene) -> None:
    lease = scene.db.acquire_lease(scene.c, "turn", scene.name, 5.0)
    for part in range(3):
        load.send(scene.stage, scene.db, scene.c, f"{scene.uid}.{part}", "said in a turn", lease=lease)
    scene.db.release_lease(lease)


def _compact(scene: Scene) -> None:
    lease = load.grant(scene.stage, scene.db, scene.c, scene.name, ttl=scene.chance.choice([0.001, 5.0, 5.0]))
    if lease is not None:
        _commit(scene, lease, lease.snapshot.last_seq)


def _compact_unleased(scene: Scene) -> None:
    seen = scene.db.snapshot(scene.c)
    _commit(scene, seen, seen.last_seq)


def _commit(scene: Scene, work: types.Lease | types.Snapshot, last_seq: int) -> None:
    context = scene.db.context(scene.c, upto=last_seq)
    # If another process has compacted further meanwhile, the commit is refused.
    cut = scene.chance.randint(min(context.cut_seq, last_seq), last_seq)
    summary = checker.summarize(context, cut)
    load.commit(scene.stage, scene.db, scene.name, work, f"{scene.c}-{scene.uid}", cut, summary)


def _call(verb: str) -> Callable[[Scene], None]:
    """A call without a record: it adds no message of a client."""

    def act(scene: Scene) -> None:
        low, high = scene.chance.randint(1, 9), scene.chance.randint(1, 9)
        new, last = f"{scene.c}-{scene.uid}", scene.db.conversation(scene.c).last_seq
        random_histories.VERBS[verb](random_histories.Place(scene.db, scene.c, new, low, high, "", last))

    return act


ACTIONS: dict[Callable[[Scene], object], int] = {
    _append: 40,
    _append_strictly: 5,
    _take_a_turn: 5,
    _compact: 10,
    _compact_unleased: 4,
    **{_call(verb): 2 for verb in ("two calls", "branch")},
    **{_call(verb): 3 for verb in ("hide", "show", "undo", "redo", "end", "resume")},
}


def kill_at_any_time(running: zygote.Zygote, target: str, rounds: int, chance: random.Random) -> list[str]:
    """Run rounds of three processes with random actions, killed or stopped at any instant; return the problems."""
    with SessionDB(target) as db:
        history = _append_to_all(db, "first", create=types.NewConversation(source="chaos"))
    for number in range(rounds):
        history += _kill_three(running, target, number, chance)
    with SessionDB(target) as db:
        return checker.verify(db, history + _append_to_all(db, "last"))


def _append_to_all(db: SessionDB, name: str, **how: Any) -> list[checker.Record]:
    uids = {c: f"{c}:{name}" for c in CONVERSATIONS}
    receipts = {c: db.append_message(c, role="user", content=uid, uid=uid, **how) for c, uid in uids.items()}
    return [checker.Sent(name, c, uid, uid, receipts[c]) for c, uid in uids.items()]


def _kill_three(running: zygote.Zygote, target: str, number: int, chance: random.Random) -> list[checker.Record]:
    """Three work, one of them is stopped and goes on, and all of them are killed."""
    seed = chance.random()
    pids = [running.start(work, target, {"seed": seed, "name": f"p{number}.{n}"}) for n in range(3)]
    time.sleep(chance.uniform(0.005, 0.05))
    os.kill(pids[0], signal.SIGSTOP)
    time.sleep(chance.uniform(0.0, 0.02))
    os.kill(pids[0], signal.SIGCONT)
    time.sleep(chance.uniform(0.0, 0.02))
    outcomes = [running.wait(pid, signal.SIGKILL) for pid in chance.sample(pids, 3)]
    assert [outcome.error for outcome in outcomes if outcome.state != "killed"] == []
    return zygote.records(outcomes)
