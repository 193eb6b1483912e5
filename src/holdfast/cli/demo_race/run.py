"""Runs a race: real processes, each step begun by all of them together.

Every process waits at its pipe; the word to go is sent to all at once and the next step begins when
all have answered. A process that fails ends the race, and none outlives it.
"""

from __future__ import annotations

import multiprocessing
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import NamedTuple

from holdfast import errors
from holdfast.cli.demo_race import values

PATIENCE = 60.0
# Without masks nothing can be held back, and nothing is.
LEAVING = {signal.SIGTERM, signal.SIGHUP} if hasattr(signal, "pthread_sigmask") else set[signal.Signals]()


class Plan(NamedTuple):
    """How many take part, for how long, and what chance decides: how much each one says."""

    processes: int
    rounds: int
    seed: int

    @property
    def compactors(self) -> int:
        return (self.processes + 1) // 2

    def role(self, number: int) -> values.Role:
        return "compactor" if number < self.compactors else "appender"


class Entrant(NamedTuple):
    """A process in the race, as seen from outside."""

    role: values.Role
    process: BaseProcess
    pipe: Connection


def race(side: values.Side, path: str, plan: Plan, progress: Callable[[int], None]) -> values.Result:
    """One side of the demo, from an empty database to what became of it."""
    side.create(path)
    chance = random.Random(plan.seed)
    answers: list[values.Answer] = []
    with _entrants(side, path, plan) as entrants:
        for number in range(1, plan.rounds + 1):
            progress(number)
            for step in values.STEPS:
                answers += _step(entrants, step, number, chance)
    acknowledged = tuple(label for answer in answers for label in answer.acknowledged)
    return side.measured(path, acknowledged, answers)


def _step(entrants: list[Entrant], step: values.Step, number: int, chance: random.Random) -> list[values.Answer]:
    orders = [values.Order(step, number, _to_say(entrant, step, chance)) for entrant in entrants]
    going = list(zip(entrants, orders, strict=True))
    chance.shuffle(going)
    for entrant, order in going:
        with _gone_is_an_error():
            entrant.pipe.send(order)
    return [_answer(entrant) for entrant in entrants]


def _to_say(entrant: Entrant, step: values.Step, chance: random.Random) -> int:
    return 0 if entrant.role == "compactor" or step == "read" else chance.randint(1, 3)


def _answer(entrant: Entrant) -> values.Answer:
    with _gone_is_an_error():
        if not entrant.pipe.poll(PATIENCE):
            raise errors.HoldfastError(f"A process of the race gave no answer for {PATIENCE:.0f} s.")
        answer = entrant.pipe.recv()
    if not isinstance(answer, values.Answer):
        raise errors.HoldfastError(f"A process of the race failed: {answer}")
    return answer


@contextmanager
def _gone_is_an_error() -> Iterator[None]:
    try:
        yield
    except (EOFError, ConnectionError):
        raise errors.HoldfastError("A process of the race ended before its time.") from None


# --- processes ---------------------------------------------------------------------------------------


@contextmanager
def _entrants(side: values.Side, path: str, plan: Plan) -> Iterator[list[Entrant]]:
    with ExitStack() as stack:
        with _interrupts_held():
            entrants = [_started(stack, side, path, plan.role(number), number) for number in range(plan.processes)]
        for entrant in entrants:
            _answer(entrant)
        yield entrants


def _started(stack: ExitStack, side: values.Side, path: str, role: values.Role, number: int) -> Entrant:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    name = f"{role[0]}{number + 1}"
    process = spawn.Process(target=take_part, args=(theirs, side.racer, path, role, name, number), daemon=True)
    process.start()
    theirs.close()
    stack.callback(_dismissed, process, ours)
    return Entrant(role, process, ours)


def _dismissed(process: BaseProcess, pipe: Connection) -> None:
    """A closed pipe is the end of the race; who does not see it is ended."""
    pipe.close()
    process.join(5)
    if process.is_alive():
        process.kill()
        process.join()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C reaches every process of the terminal, and only this one is to answer it.

    A process started while the signal is blocked keeps it blocked; here it is delivered afterwards. Others are
    held for so long, too: a process that is only half started when we leave would complain.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # Started with the first process otherwise, and then it would lift the block.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *LEAVING})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def take_part(
    pipe: Connection,
    racer: Callable[[str, values.Role, str, int], values.Racer],
    path: str,
    role: values.Role,
    name: str,
    number: int,
) -> None:
    """The whole life of a process in the race."""
    if LEAVING:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, LEAVING)
    try:
        taking_part = racer(path, role, name, number)
        pipe.send(values.Answer())
        try:
            while True:
                pipe.send(taking_part.take(pipe.recv()))
        finally:
            taking_part.close()
    except (EOFError, ConnectionError):
        return
    except errors.HoldfastError as error:
        pipe.send(f"{type(error).__name__}: {error}")
