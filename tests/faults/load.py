"""Processes that put load on a store while harm is done to them, to the network or to the server."""

from __future__ import annotations

import itertools
import os
import queue
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

import msgspec

from holdfast import errors, types
from holdfast.store.db import SessionDB
from tests.faults import checker, steps, zygote
from tests.support import memory_folders, polling

HANGS = 60.0  # seconds; the limits under test are much shorter
HASTY, PATIENT = 0.3, 60.0  # write_timeout
WRITERS, COMPACTORS = 4, 2


def send(stage: zygote.Stage, db: SessionDB, asked: str, uid: str, content: str, **how: Any) -> types.Receipt | None:
    """Append, and record the attempt before and its outcome after."""
    client = f"client {os.getpid()}"
    stage.record(checker.Sent(client, asked, uid, content))
    try:
        receipt = db.append_message(asked, role="user", content=content, uid=uid, **how)
    except errors.HoldfastError as error:
        stage.record(checker.Sent(client, asked, uid, content, refused=type(error).__name__))
        return None
    stage.record(checker.Sent(client, asked, uid, content, receipt))
    return receipt


def grant(stage: zygote.Stage, db: SessionDB, c: str, name: str, ttl: float = 30.0) -> types.Lease | None:
    """The lease to compact, or None when another has it."""
    try:
        lease = db.acquire_lease(c, "compact", name, ttl)
    except errors.Busy:
        return None
    stage.record(checker.Granted(name, lease))
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
    stage.record(record)
    try:
        db.commit_compaction(work, summary=summary, cut_seq=cut, child_id=child)
    except (errors.LeaseLost, errors.Superseded, errors.StoreBusy) as error:
        refusal = type(error).__name__
        stage.record(msgspec.structs.replace(record, refused=refusal))
        return refusal
    stage.record(msgspec.structs.replace(record, done=True))
    return "done"


def summarize_and_commit(stage: zygote.Stage, db: SessionDB, name: str, child: str, lease: types.Lease) -> str:
    """Compact all but the last three messages of the conversation `c`."""
    stage.record(checker.Summarized(name, "c", lease.token))
    context = db.context("c", upto=lease.snapshot.last_seq)
    cut = max(context.cut_seq, lease.snapshot.last_seq - 3)
    return commit(stage, db, name, lease, child, cut, checker.summarize(context, cut))


def compact(stage: zygote.Stage) -> str:
    """One compaction from the lease to the commit; `compact.*` are the places between its calls."""
    c, name = stage.args["id"], stage.args["name"]
    with stage.open() as db:
        lease = grant(stage, db, c, name)
        if lease is None:
            return "Busy"
        stage.reach("compact.acquired")
        context = db.context(c, upto=lease.snapshot.last_seq)
        stage.record(checker.Summarized(name, c, lease.token))
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
        stage.record(checker.Granted(name, lease))
        stage.reach("turn.began")
        receipt = send(stage, db, c, f"{c}:{name}", "said in a turn", lease=lease)
        return receipt.seq if receipt else None


def write(stage: zygote.Stage) -> int | None:
    """One message."""
    c, name = stage.args["id"], stage.args["name"]
    with stage.open() as db:
        receipt = send(stage, db, c, f"{c}:{name}", "said")
        return receipt.seq if receipt else None


def write_after_fork(stage: zygote.Stage) -> int | None:
    """One message, by a process that has a child which outlives it and never asked for the store."""
    with stage.open() as db:
        child = os.fork()
        if child == 0:
            os.setsid()
            signal.pause()
            os._exit(0)
        stage.record(child)
        receipt = send(stage, db, stage.args["id"], "from the parent", "said")
        return receipt.seq if receipt else None


class Call:
    """A call in a separate daemon thread, so that the test can fail if the call hangs."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call, self._outcome = call, queue.Queue[Any]()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self._outcome.put(self._call())
        except BaseException as error:
            self._outcome.put(error)

    def is_done(self) -> bool:
        return not self._outcome.empty()

    def outcome(self) -> Any:
        """The result, or the error that was raised."""
        return self._outcome.get(timeout=HANGS)


class Load:
    """Run four writers and two compactors on one conversation, and each writer on a private one, until the exit."""

    def __init__(self, running: zygote.Zygote, address: str, through: str = "") -> None:
        self._running, self._address, self._through = running, address, through or address
        self._stop = tempfile.mktemp(prefix="storm-", dir=memory_folders.shared_memory())
        self._pids: list[int] = []
        self._numbers = itertools.count()
        self.history: list[checker.Record] = []
        self.names = ["c", *(f"own{index}" for index in range(WRITERS))]

    def __enter__(self) -> Self:
        with SessionDB(self._address) as db:
            for name in self.names:
                steps.begin(db, name)
        self._pids = [self._start(index) for index in range(WRITERS + COMPACTORS)]
        return self

    def _start(self, index: int) -> int:
        args = {"stop": self._stop, "name": f"p{next(self._numbers)}", "own": f"own{index}"}
        return self._running.start(write_on if index < WRITERS else compact_on, self._through, args)

    def kill_some(self, chance: random.Random) -> None:
        """Kill some clients at any instant, one of them after it was stopped for a while, and replace them."""
        time.sleep(chance.uniform(0.0, 0.05))
        indexes = chance.sample(range(len(self._pids)), 3)
        os.kill(self._pids[indexes[0]], signal.SIGSTOP)
        time.sleep(chance.uniform(0.0, 0.02))
        os.kill(self._pids[indexes[0]], signal.SIGCONT)
        time.sleep(chance.uniform(0.0, 0.02))
        for index in indexes:
            killed = self._running.wait(self._pids[index], signal.SIGKILL)
            assert killed.state == "killed", killed
            self.history += killed.records
            self._pids[index] = self._start(index)

    def harm(self, act: Callable[[], object]) -> None:
        """Inject a fault while the clients work, and wait until every client has written since."""
        before = self._ends()
        act()
        polling.until(lambda: self._further(before), "every client goes on")

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
        self.history += zygote.records(outcomes)
        if kind is None:
            assert [outcome.error for outcome in outcomes] == [None] * len(outcomes)

    def problems(self) -> list[str]:
        with SessionDB(self._address) as db:
            for name in self.names:
                receipt = db.append_message(name, role="user", content="next", uid=f"{name}:next")
                self.history.append(checker.Sent("after", name, f"{name}:next", "next", receipt))
            done = [each for each in self.history if isinstance(each, checker.Committed) and each.done]
            return checker.verify(db, self.history) + ([] if done else ["no client compacted anything"])


def problems_after_kills(running: zygote.Zygote, address: str, times: int, chance: random.Random) -> list[str]:
    """Kill clients again and again while others work, and return the problems found afterwards."""
    with Load(running, address) as clients:
        for _ in range(times):
            clients.harm(lambda: clients.kill_some(chance))
    return clients.problems()


def problems_after(
    running: zygote.Zygote, address: str, faults: Iterable[Callable[[], object]], through: str = ""
) -> list[str]:
    """Inject faults one after the other under load, and return the problems found afterwards."""
    with Load(running, address, through) as clients:
        for fault in faults:
            clients.harm(fault)
    return clients.problems()


def write_on(stage: zygote.Stage) -> int:
    """Messages to all and to one's own, each until it is acknowledged."""
    number = 0
    with _opened(stage) as db:
        while not os.path.exists(stage.args["stop"]):
            for c in ("c", stage.args["own"]):
                uid = f"{stage.args['name']}.{number}.{c}"
                while send(stage, db, c, uid, f"said {uid}") is None:
                    pass
            number += 1
    return number


def compact_on(stage: zygote.Stage) -> int:
    """Compact whenever the lease is free; an outcome that was lost stays unknown."""
    number, name = 0, stage.args["name"]
    with _opened(stage) as db:
        while not os.path.exists(stage.args["stop"]):
            number += 1
            try:
                lease = grant(stage, db, "c", name)
                if lease is not None:
                    summarize_and_commit(stage, db, name, f"c-{name}-{number}", lease)
            except (errors.StoreUnreachable, errors.StoreBusy):
                continue
    return number


def _opened(stage: zygote.Stage) -> SessionDB:
    while True:
        try:
            return stage.open()
        except errors.StoreUnreachable:
            continue
