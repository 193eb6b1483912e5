"""A process that imports everything once and then forks a child for every fault."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import pickle
import signal
import struct
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from holdfast import fault_points
from holdfast.store import queries
from holdfast.store.db import SessionDB
from holdfast.store.postgres import definitions
from holdfast.store.postgres import driver as postgres_driver
from holdfast.store.search import postgres_index
from holdfast.store.sqlite import migration as sqlite_migration
from tests.support import memory_folders

TIMEOUT = 120.0


class Order(NamedTuple):
    """The task of a child, and the point at which it is killed or stopped."""

    task: Task
    path: str
    args: dict[str, Any]
    points: tuple[str, ...] = ()  # operations whose points are counted
    at: int | str | None = None  # the number of a point, from 0, or its name
    hit: int = 1  # the visit of a named point at which the fault occurs
    fault: signal.Signals = signal.SIGKILL
    clock: str | None = None
    fingerprint: str = ""  # a folder to fingerprint after the child has ended


class Outcome(NamedTuple):
    """The end of a child, or its stop: a stopped child is waited for again after it was continued."""

    pid: int
    state: str  # exited, killed, stopped
    records: Sequence[Any] = ()
    reached: Sequence[str] = ()
    value: Any = None
    error: str | None = None
    fingerprint: str = ""


class _Result(NamedTuple):
    reached: Sequence[str]
    value: Any
    error: str | None


class Stage:
    """The arguments of a task: the store's path, the parameters, and a log of records that outlives a kill."""

    def __init__(self, order: Order, log: int, barrier: Any, index: int) -> None:
        self.order = order
        self.path = order.path
        self.args = order.args
        self.index = index
        self.barrier = barrier
        self.reached: list[str] = []
        self._log = log

    def open(self, **settings: Any) -> SessionDB:
        clock = Clock(self.order.clock) if self.order.clock else None
        return SessionDB(self.path, clock=clock, **settings)

    def record(self, item: Any) -> None:
        os.write(self._log, pickle.dumps(item))

    def reach(self, name: str) -> None:
        if not name.startswith(tuple(operation + "." for operation in self.order.points)):
            return
        number = len(self.reached)
        self.reached.append(name)
        named = self.order.at == name and self.reached.count(name) == self.order.hit
        # Of several children only the first is hit.
        if self.index == 0 and (self.order.at == number or named):
            os.kill(os.getpid(), self.order.fault)


Task = Callable[[Stage], Any]


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


class _Children:
    """The running children and their logs, in the zygote."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._alive: set[int] = set()

    def start(self, order: Order, barrier: Any = None, index: int = 0) -> int:
        pid = os.fork()
        if pid == 0:
            _run(order, self._folder, barrier or threading.Barrier(1), index)
        self._alive.add(pid)
        return pid

    def run(self, order: Order) -> Outcome:
        outcome, folder = self.wait(self.start(order)), order.fingerprint
        return outcome._replace(fingerprint=memory_folders.fingerprint(folder) if folder else "")

    def run_all(self, order: Order, count: int) -> list[Outcome]:
        barrier = multiprocessing.get_context("fork").Barrier(count, timeout=TIMEOUT)
        pids = [self.start(order, barrier, index) for index in range(count)]
        return [self.wait(pid) for pid in pids]

    def wait(self, pid: int) -> Outcome:
        _, status = os.waitpid(pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            return Outcome(pid, "stopped", self._read(pid))
        self._alive.discard(pid)
        records = self._read(pid)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self._folder}/{pid}")
        if os.WIFSIGNALED(status):
            return Outcome(pid, "killed", records, error=str(os.WTERMSIG(status)))
        if not records or not isinstance(records[-1], _Result):
            return Outcome(pid, "lost", records, error=f"exit code {os.WEXITSTATUS(status)}")
        return Outcome(pid, "exited", records[:-1], *records[-1])

    def _read(self, pid: int) -> list[Any]:
        found: list[Any] = []
        # A child may be killed before it has created its log, or while it writes its last record.
        with (
            contextlib.suppress(FileNotFoundError, EOFError, pickle.UnpicklingError),
            open(f"{self._folder}/{pid}", "rb") as file,
        ):
            while True:
                found.append(pickle.load(file))
        return found

    def kill_all(self) -> None:
        for pid in self._alive:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _run(order: Order, folder: str, barrier: Any, index: int) -> None:
    try:
        log = os.open(f"{folder}/{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        stage = Stage(order, log, barrier, index)
        fault_points.hook = stage.reach if order.points else None
        value, error = None, None
        try:
            value = order.task(stage)
        except Exception as problem:
            error = f"{type(problem).__name__}: {problem}"
            if not type(problem).__module__.startswith("holdfast"):
                error += "\n" + traceback.format_exc()
        stage.record(_Result(stage.reached, value, error))
    finally:
        # Not sys.exit: the zygote's own buffers and exit handlers are not the child's.
        os._exit(0)


def _serve(connection: Connection) -> None:
    # Read once for all children; and a collection in one would copy every page it shares with the zygote.
    for dialect in ("sqlite", postgres_driver.FOLDER, postgres_index.FOLDER, definitions.QUERY_FOLDER):
        queries.load(dialect)
    sqlite_migration.declared_schema("sqlite")
    definitions.declared_schema()
    gc.disable()
    with memory_folders.folder() as folder:
        children = _Children(folder)
        try:
            with contextlib.suppress(EOFError):
                while True:
                    method, *arguments = connection.recv()
                    connection.send(getattr(children, method)(*arguments))
        finally:
            children.kill_all()


class Zygote:
    """The client of a zygote process."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def run(self, task: Task, path: Any = "", args: dict[str, Any] | None = None, **how: Any) -> Outcome:
        """Run a child until it ends or stops."""
        return self._call("run", Order(task, os.fspath(path), args or {}, **how))

    def run_all(self, task: Task, path: Any, args: dict[str, Any], count: int, **how: Any) -> list[Outcome]:
        """Run many children at once, with a barrier between them."""
        return self._call("run_all", Order(task, os.fspath(path), args, **how), count)

    def start(self, task: Task, path: Any, args: dict[str, Any], **how: Any) -> int:
        """Start a child and return its pid."""
        return self._call("start", Order(task, os.fspath(path), args, **how))

    def wait(self, pid: int, number: signal.Signals | None = None) -> Outcome:
        """Send a signal, if one is given, and wait until the child ends or stops."""
        if number is not None:
            os.kill(pid, number)
        return self._call("wait", pid)

    def _call(self, method: str, *arguments: Any) -> Any:
        self._connection.send((method, *arguments))
        return self._connection.recv()


@contextlib.contextmanager
def start() -> Iterator[Zygote]:
    context = multiprocessing.get_context("spawn")
    connection, other = context.Pipe()
    process = context.Process(target=_serve, args=(other,), daemon=True)
    process.start()
    other.close()
    try:
        yield Zygote(connection)
    finally:
        connection.close()
        process.join(TIMEOUT)


def records(outcomes: Sequence[Outcome]) -> list[Any]:
    return [record for outcome in outcomes for record in outcome.records]
