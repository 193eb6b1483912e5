"""Processes that put load on a store while harm is done to them, to the network or to the server."""

from __future__ import annotations

import os
import queue
import random
import tempfile
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from holdfast import errors
from holdfast.store.db import SessionDB
from tests.chaos import mixed
from tests.faults import checker, steps, workers, zygote
from tests.support import polling

HANGS = 60.0  # seconds; the limits under test are much shorter
HASTY, PATIENT = 0.3, 60.0  # write_timeout
WRITERS, COMPACTORS = 4, 2


class Call:
    """A call in a thread of its own, which does not keep the test from failing when it hangs."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call, self._outcome = call, queue.Queue[Any]()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self._outcome.put(self._call())
        except BaseException as error:
            self._outcome.put(error)

    def outcome(self) -> Any:
        """The result, or the error that was raised."""
        return self._outcome.get(timeout=HANGS)


class Load:
    """Four writers and two compactors at one conversation, and each writer at one of its own, until the exit."""

    def __init__(self, running: zygote.Zygote, address: str, through: str = "") -> None:
        self._running, self._address, self._through = running, address, through or address
        self._stop = tempfile.mktemp(prefix="storm-", dir=zygote.shared_memory())
        self._pids: list[int] = []
        self.history: list[checker.Record] = []
        self.names = ["c", *(f"own{index}" for index in range(WRITERS))]

    def __enter__(self) -> Self:
        with SessionDB(self._address) as db:
            for name in self.names:
                steps.say(db, name)
        tasks = [write_on] * WRITERS + [compact_on] * COMPACTORS
        for index, task in enumerate(tasks):
            args = {"stop": self._stop, "name": f"p{index}", "own": f"own{index}"}
            self._pids.append(self._running.begin(task, self._through, args))
        return self

    def harm(self, act: Callable[[], object]) -> None:
        """Done to them while they work: everybody has written something since the last time."""
        before = self._ends()
        act()
        polling.until(lambda: self._further(before), "everybody goes on")

    def _further(self, before: dict[str, int]) -> bool:
        try:
            now = self._ends()
        except errors.StoreUnreachable:
            return False
        return all(now[name] > before[name] for name in self.names)

    def _ends(self) -> dict[str, int]:
        with SessionDB(self._address) as db:
            return {name: db.conversation(name).last_seq for name in self.names}

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with open(self._stop, "x"):
            outcomes = [self._running.wait(pid) for pid in self._pids]
        os.unlink(self._stop)
        self.history = zygote.records(outcomes)
        if kind is None:
            assert [outcome.error for outcome in outcomes] == [None] * len(outcomes)

    def wrongs(self) -> list[str]:
        with SessionDB(self._address) as db:
            for name in self.names:
                receipt = db.append_message(name, role="user", content="next", uid=f"{name}:next")
                self.history.append(checker.Sent("after", name, f"{name}:next", "next", receipt))
            done = [each for each in self.history if isinstance(each, checker.Committed) and each.done]
            return checker.verify(db, self.history) + ([] if done else ["nobody compacted anything"])


def write_on(stage: zygote.Stage) -> int:
    """Messages to all and to one's own, each until it is acknowledged."""
    number = 0
    with _opened(stage) as db:
        while not os.path.exists(stage.args["stop"]):
            for c in ("c", stage.args["own"]):
                uid = f"{stage.args['name']}.{number}.{c}"
                while workers.send(stage, db, c, uid, f"said {uid}") is None:
                    pass
            number += 1
    return number


def compact_on(stage: zygote.Stage) -> int:
    """Compactions, as far as the others let one; an outcome nobody heard is left unknown."""
    number, name = 0, stage.args["name"]
    with _opened(stage) as db:
        while not os.path.exists(stage.args["stop"]):
            number += 1
            try:
                lease = workers.grant(stage, db, "c", name)
                if lease is not None:
                    context = db.context("c", upto=lease.snapshot.last_seq)
                    cut = max(context.cut_seq, lease.snapshot.last_seq - 3)
                    summary = checker.summarize(context, cut)
                    workers.commit(stage, db, name, lease, f"c-{name}-{number}", cut, summary)
            except (errors.StoreUnreachable, errors.StoreBusy):
                continue
    return number


def _opened(stage: zygote.Stage) -> SessionDB:
    while True:
        try:
            return stage.open()
        except errors.StoreUnreachable:
            continue


def kill_at_any_time(running: zygote.Zygote, target: str, rounds: int, chance: random.Random) -> list[str]:
    """Three processes a round that do anything, killed or stopped for a while at any instant; what was wrong then."""
    with SessionDB(target) as db:
        history = mixed.furnish(db)
    for number in range(rounds):
        history += three_killed(running, target, number, chance)
    with SessionDB(target) as db:
        for c in mixed.CONVERSATIONS:
            uid = f"after {c}"
            receipt = db.append_message(c, role="user", content=uid, uid=uid)
            history.append(checker.Sent("after", c, uid, uid, receipt))
        return checker.verify(db, history)


def three_killed(running: zygote.Zygote, target: str, number: int, chance: random.Random) -> list[checker.Record]:
    """Three work, one of them is stopped and goes on, and all of them are killed."""
    args = {"seed": chance.random(), "actions": 10_000}
    pids = [running.begin(mixed.work, target, {**args, "name": f"p{number}.{n}"}) for n in range(3)]
    time.sleep(chance.uniform(0.005, 0.05))
    running.signal(pids[0], "SIGSTOP")
    time.sleep(chance.uniform(0.0, 0.02))
    running.signal(pids[0], "SIGCONT")
    time.sleep(chance.uniform(0.0, 0.02))
    return zygote.records([running.end(pid) for pid in chance.sample(pids, 3)])
