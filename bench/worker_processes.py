"""Worker processes that run a job at the same time. They are started once and run every job of a section.

A job is a generator with one `yield`: the code before it prepares the job, the code after it starts in all processes at
the same time, and the returned value is the result.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

Job = Callable[..., Generator[None, None, Any]]
HEAD_START = 0.05
PATIENCE = 120.0


class WorkerProcesses:
    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("spawn")
        pipes = [context.Pipe() for _ in range(size)]
        self._lines = [ours for ours, _ in pipes]
        self._processes = [context.Process(target=_serve, args=(theirs,), daemon=True) for _, theirs in pipes]
        for process in self._processes:
            process.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for line in self._lines:
            line.close()
        for process in self._processes:
            process.join(5)
            if process.is_alive():
                process.kill()

    def run(self, job: Job, members: int, *arguments: Any) -> list[Any]:
        """Return the results of job(index, *arguments) in each of the first `members` processes."""
        lines = self._lines[:members]
        for index, line in enumerate(lines):
            line.send((job, (index, *arguments)))
        for line in lines:
            _answer(line)
        start = time.monotonic() + HEAD_START
        for line in lines:
            line.send(start)
        return [_answer(line) for line in lines]


def _answer(line: Connection) -> Any:
    if not line.poll(PATIENCE):
        raise TimeoutError("a worker process does not answer")
    answer = line.recv()
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _serve(line: Connection) -> None:
    # A closed connection means that the run ended or was cancelled.
    with suppress(EOFError, OSError):
        while True:
            job, arguments = line.recv()
            try:
                answer = _do(job(*arguments), line)
            except Exception as error:  # noqa: BLE001 -- it is raised again in the main process
                answer = error
            line.send(answer)


def _do(running: Generator[None, None, Any], line: Connection) -> Any:
    next(running)
    line.send("ready")
    time.sleep(max(0.0, line.recv() - time.monotonic()))
    try:
        next(running)
    except StopIteration as finished:
        return finished.value
    raise RuntimeError("a job yields once")
