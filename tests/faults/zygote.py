"""A process that imports everything once and then forks a child for every fault."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import multiprocessing
import os
import signal
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import IO, Any, Self

import msgspec

from holdfast import fault_points
from holdfast.store import queries
from holdfast.store.db import SessionDB
from holdfast.store.postgres import definitions
from holdfast.store.postgres import driver as postgres_driver
from holdfast.store.search import postgres_index
from holdfast.store.sqlite import migration as sqlite_migration
from tests.faults import checker
from tests.support import memory_folders

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PATIENCE = 120.0
# What the children of a zygote open: stores in files, or stores on servers as well.
FILES, SERVERS = "files", "servers"


Task = Callable[["Stage"], Any]


class Order(msgspec.Struct, frozen=True):
    """What a child is to do, and what is to happen to it."""

    task: str
    path: str = ""
    args: dict[str, Any] = {}
    points: tuple[str, ...] = ()  # operations whose points count
    at: int | None = None  # which of those points, from 0
    at_name: str = ""  # or the first of this name
    fault: str = "kill"  # or stop
    clock: str | None = None
    write_timeout: float = 10.0
    count: int = 1
    left: str = ""  # a folder to be looked at when the child has ended


class Outcome(msgspec.Struct, frozen=True):
    """What became of a child. A stopped one is asked about again after it was continued."""

    pid: int
    state: str  # exited, killed, stopped; lost when it ended without a word
    reached: tuple[str, ...] = ()
    value: Any = None
    error: str | None = None
    told: tuple[Any, ...] = ()
    left: str = ""  # the fingerprint of what was in the folder then

    @property
    def history(self) -> list[checker.Record]:
        return [msgspec.convert(record, checker.Record) for record in self.told]


class Stage:
    """What a task is given: the store's path, its arguments, and somebody to tell what happened."""

    def __init__(self, order: Order, told: int, barrier: Any, index: int) -> None:
        self.order = order
        self.path = order.path
        self.args = order.args
        self.index = index
        self.barrier = barrier
        self.reached: list[str] = []
        self._told = told

    def open(self, **settings: Any) -> SessionDB:
        clock = Clock(self.order.clock) if self.order.clock else None
        return SessionDB(self.path, clock=clock, write_timeout=self.order.write_timeout, **settings)

    def tell(self, record: Any) -> None:
        os.write(self._told, msgspec.json.encode(record) + b"\n")

    def reach(self, name: str) -> None:
        if not name.startswith(tuple(operation + "." for operation in self.order.points)):
            return
        self.reached.append(name)
        if self.order.at == len(self.reached) - 1 or self.order.at_name == name:
            os.kill(os.getpid(), signal.SIGSTOP if self.order.fault == "stop" else signal.SIGKILL)


class Clock:
    """A clock all processes of a test share and the test sets: no test waits for time to pass."""

    def __init__(self, path: str, now: float | None = None) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        if now is not None:
            self.set(now)

    def __call__(self) -> float:
        return float(struct.unpack("d", os.pread(self._fd, 8, 0))[0])

    def set(self, now: float) -> None:
        os.pwrite(self._fd, struct.pack("d", now), 0)

    def close(self) -> None:
        os.close(self._fd)


class _Nursery:
    """The children that were begun and what they wrote."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.alive: set[int] = set()

    def begin(self, order: Order, barrier: Any = None, index: int = 0) -> int:
        pid = os.fork()
        if pid == 0:
            _child(order, self.folder, barrier, index)
        self.alive.add(pid)
        return pid

    def wait(self, pid: int) -> Outcome:
        _, status = os.waitpid(pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            return Outcome(pid, "stopped", told=self._told(pid))
        self.alive.discard(pid)
        if os.WIFSIGNALED(status):
            return Outcome(pid, "killed", error=str(os.WTERMSIG(status)), told=self._forget(pid))
        if not os.path.exists(f"{self.folder}/{pid}.end"):
            return Outcome(pid, "lost", error=f"exit code {os.WEXITSTATUS(status)}", told=self._forget(pid))
        with open(f"{self.folder}/{pid}.end", "rb") as file:
            end = json.load(file)
        os.unlink(f"{self.folder}/{pid}.end")
        return Outcome(pid, "exited", tuple(end["reached"]), end["value"], end["error"], self._forget(pid))

    def _told(self, pid: int) -> tuple[Any, ...]:
        with open(f"{self.folder}/{pid}.told", "rb") as file:
            return tuple(json.loads(line) for line in file if line.endswith(b"\n"))

    def _forget(self, pid: int) -> tuple[Any, ...]:
        told = self._told(pid)
        os.unlink(f"{self.folder}/{pid}.told")
        return told

    def bury(self) -> None:
        for pid in list(self.alive):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _child(order: Order, folder: str, barrier: Any, index: int) -> None:
    pid, code = os.getpid(), 1
    try:
        told = os.open(f"{folder}/{pid}.told", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        stage = Stage(order, told, barrier, index)
        fault_points.hook = stage.reach if order.points else None
        module, _, name = order.task.partition(":")
        value, error = None, None
        try:
            value = getattr(importlib.import_module(module), name)(stage)
        except Exception as problem:
            error = f"{type(problem).__name__}: {problem}"
            if not type(problem).__module__.startswith("holdfast"):
                error += "\n" + traceback.format_exc()
        end = msgspec.json.encode({"reached": stage.reached, "value": value, "error": error})
        with open(f"{folder}/{pid}.end", "wb") as file:
            file.write(end)
        code = 0
    finally:
        # Not sys.exit: the zygote's own buffers and exit handlers are not the child's.
        os._exit(code)


def _serve(kind: str) -> None:
    with memory_folders.folder() as made:
        nursery = _Nursery(made)
        # Read once for all children; and a collection in one would copy every page it shares with the zygote.
        queries.load("sqlite")
        sqlite_migration.declared_schema("sqlite")
        if kind == SERVERS:
            for dialect in (postgres_driver.FOLDER, postgres_index.FOLDER, definitions.QUERY_FOLDER):
                queries.load(dialect)
            definitions.declared_schema()
        gc.disable()
        try:
            for line in sys.stdin.buffer:
                order = json.loads(line)
                outcomes = _answer(nursery, order.pop("do"), order)
                sys.stdout.buffer.write(msgspec.json.encode(outcomes) + b"\n")
                sys.stdout.buffer.flush()
        finally:
            nursery.bury()


def _answer(nursery: _Nursery, verb: str, body: dict[str, Any]) -> list[Outcome]:
    if "task" in body:
        # Once for all children to come, instead of in each of them.
        importlib.import_module(body["task"].partition(":")[0])
    if verb == "run":
        order = msgspec.convert(body, Order)
        outcome = nursery.wait(nursery.begin(order))
        return [
            msgspec.structs.replace(outcome, left=memory_folders.fingerprint(order.left)) if order.left else outcome
        ]
    if verb == "crowd":
        order = msgspec.convert(body, Order)
        barrier = multiprocessing.get_context("fork").Barrier(order.count, timeout=PATIENCE)
        pids = [nursery.begin(order, barrier, index) for index in range(order.count)]
        return [nursery.wait(pid) for pid in pids]
    if verb == "begin":
        return [Outcome(nursery.begin(msgspec.convert(body, Order)), "begun")]
    os.kill(body["pid"], getattr(signal, body["signal"])) if body["signal"] else None
    return [nursery.wait(body["pid"])] if body["wait"] else []


class Zygote:
    """The test's end of it: of both kinds, each started when it is first needed."""

    def __init__(self) -> None:
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._begun: dict[int, str] = {}  # of which kind a child is that was begun, or stopped

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes.values():
            self._pipe(process.stdin).close()
            process.wait(PATIENCE)
            self._pipe(process.stdout).close()

    def run(self, task: Task, path: Any = "", args: dict[str, Any] | None = None, **how: Any) -> Outcome:
        """A child from its begin to its end, or until it stops."""
        return self._ask("run", self._order(task, path, args, how))[0]

    def crowd(self, task: Task, path: Any, args: dict[str, Any], count: int, **how: Any) -> list[Outcome]:
        """Many children at once, with a barrier between them."""
        return self._ask("crowd", self._order(task, path, args, {**how, "count": count}))

    def begin(self, task: Task, path: Any = "", args: dict[str, Any] | None = None, **how: Any) -> int:
        """A child that nobody waits for yet; its pid."""
        return self._ask("begin", self._order(task, path, args, how))[0].pid

    def signal(self, pid: int, name: str) -> None:
        """Something happens to a child; nobody waits for what becomes of it."""
        self._ask("signal", {"pid": pid, "signal": name, "wait": False})

    def wait(self, pid: int, signal_name: str = "") -> Outcome:
        """What becomes of a child, after a signal if one is named."""
        return self._ask("signal", {"pid": pid, "signal": signal_name, "wait": True})[0]

    def end(self, pid: int) -> Outcome:
        """Kill a child, and what it told until then."""
        return self.wait(pid, "SIGKILL")

    def _order(self, task: Task, path: Any, args: dict[str, Any] | None, how: dict[str, Any]) -> dict[str, Any]:
        order = Order(f"{task.__module__}:{task.__name__}", os.fspath(path), args or {}, **how)
        return dict(msgspec.to_builtins(order))

    def _ask(self, verb: str, body: dict[str, Any]) -> list[Outcome]:
        line = json.dumps({"do": verb, **body}).encode() + b"\n"
        kind = self._begun[body["pid"]] if verb == "signal" else SERVERS if b"postgresql:" in line else FILES
        process = self._process(kind)
        stdin, stdout = self._pipe(process.stdin), self._pipe(process.stdout)
        stdin.write(line)
        stdin.flush()
        answer = stdout.readline()
        assert answer, "the zygote is gone"
        outcomes = msgspec.json.decode(answer, type=list[Outcome])
        self._begun.update({each.pid: kind for each in outcomes if each.state in ("begun", "stopped")})
        return outcomes

    def _process(self, kind: str) -> subprocess.Popen[bytes]:
        if kind not in self._processes:
            command = [sys.executable, "-m", "tests.faults.zygote", kind]
            self._processes[kind] = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self._processes[kind]

    @staticmethod
    def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
        assert pipe is not None
        return pipe


def records(outcomes: Sequence[Outcome]) -> list[checker.Record]:
    return [record for outcome in outcomes for record in outcome.history]


if __name__ == "__main__":
    # Children look their tasks up by module name; the module run as __main__ must not exist twice.
    importlib.import_module("tests.faults.zygote")._serve(sys.argv[1])
