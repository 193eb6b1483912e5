"""Processes that do a job at the same moment. They are started once and serve every job of a run.

A job is a generator: what comes before its one `yield` is preparation, what comes after begins in all
processes at the same instant, and what it returns is the result.
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


class Crew:
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
        """What job(index, *arguments) returned in each of the first `members` processes."""
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
        raise TimeoutError("a process of the bench does not answer")
    answer = line.recv()
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _serve(line: Connection) -> None:
    # A closed line means that the run is over, or was given up: nobody is left to tell anything.
    with suppress(EOFError, OSError):
        while True:
            job, arguments = line.recv()
            try:
                answer = _do(job(*arguments), line)
            except Exception as error:  # noqa: BLE001 - whatever it was, the run that asked must hear of it
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
