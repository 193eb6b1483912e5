"""Random work: many processes call anything on a few conversations, and record it."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from typing import NamedTuple

from holdfast import errors, types
from holdfast.store.db import SessionDB
from tests.faults import checker, load, zygote

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


def populate(db: SessionDB) -> list[checker.Record]:
    """Create the conversations that all processes work on."""
    history: list[checker.Record] = []
    for c in CONVERSATIONS:
        db.create_session(c, source="chaos")
        for number in range(5):
            uid = f"{c}:{number}"
            history.append(checker.Sent(c, c, uid, uid, db.append_message(c, role="user", content=uid, uid=uid)))
    return history


def work(stage: zygote.Stage) -> int:
    """A task: perform this many actions, or until killed."""
    chance = random.Random(f"{stage.args['seed']} {stage.index}")
    name = f"{stage.args['name']}-{stage.index}"
    db = stage.open()
    for number in range(stage.args["actions"]):
        if chance.random() < 0.02:
            db.close()
            db = stage.open()
        scene = Scene(stage, db, chance, name, number, chance.choice(CONVERSATIONS))
        action = chance.choices(list(ACTIONS), list(ACTIONS.values()))[0]
        try:
            action(scene)
        except ANSWERS:
            continue
    db.close()
    return int(stage.args["actions"])


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


def _two_calls(scene: Scene) -> None:
    head = scene.db.head(scene.c).id
    scene.db.end_session(head, "compression")
    scene.db.create_session(f"{scene.c}-{scene.uid}", source="chaos", parent_session_id=head)


def _hide(scene: Scene) -> None:
    last = scene.db.conversation(scene.c).last_seq
    low = scene.chance.randint(1, last)
    scene.db.hide(scene.c, low, min(last, low + scene.chance.randint(0, 3)))


def _branch(scene: Scene) -> None:
    last = scene.db.conversation(scene.c).last_seq
    branch = scene.db.branch(scene.c, scene.chance.randint(1, last), branch_id=f"{scene.c}-{scene.uid}-branch")
    load.send(scene.stage, scene.db, branch.id, f"{scene.uid}.b", "said in a branch")


ACTIONS: dict[Callable[[Scene], object], int] = {
    _append: 40,
    _append_strictly: 5,
    _take_a_turn: 5,
    _compact: 10,
    _compact_unleased: 4,
    _two_calls: 2,
    _hide: 3,
    _branch: 2,
    lambda scene: scene.db.show(scene.c): 3,
    lambda scene: scene.db.undo_compaction(scene.c): 3,
    lambda scene: scene.db.redo_compaction(scene.c): 3,
    lambda scene: scene.db.end_conversation(scene.c, "done"): 3,
    lambda scene: scene.db.resume(scene.c): 3,
}


def kill_at_any_time(running: zygote.Zygote, target: str, rounds: int, chance: random.Random) -> list[str]:
    """Run rounds of three processes with random actions, killed or stopped at any instant; return the problems."""
    with SessionDB(target) as db:
        history = populate(db)
    for number in range(rounds):
        history += three_killed(running, target, number, chance)
    with SessionDB(target) as db:
        for c in CONVERSATIONS:
            uid = f"after {c}"
            receipt = db.append_message(c, role="user", content=uid, uid=uid)
            history.append(checker.Sent("after", c, uid, uid, receipt))
        return checker.verify(db, history)


def three_killed(running: zygote.Zygote, target: str, number: int, chance: random.Random) -> list[checker.Record]:
    """Three work, one of them is stopped and goes on, and all of them are killed."""
    args = {"seed": chance.random(), "actions": 10_000}
    pids = [running.start(work, target, {**args, "name": f"p{number}.{n}"}) for n in range(3)]
    time.sleep(chance.uniform(0.005, 0.05))
    os.kill(pids[0], signal.SIGSTOP)
    time.sleep(chance.uniform(0.0, 0.02))
    os.kill(pids[0], signal.SIGCONT)
    time.sleep(chance.uniform(0.0, 0.02))
    return zygote.records([running.wait(pid, signal.SIGKILL) for pid in chance.sample(pids, 3)])
