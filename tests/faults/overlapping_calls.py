"""Pairs of calls that overlap on a PostgreSQL server, compared with the same calls one after the other."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast import SessionDB, errors, fault_points, types
from tests.faults import checker, steps
from tests.faults.load import HANGS, Call
from tests.support import polling, two_hosts

CallOf = Callable[[SessionDB, str, types.Lease], Any]


def _append_batch(db: SessionDB, c: str, _: types.Lease) -> Any:
    return db.append_messages(c, [{"role": "user", "content": uid, "uid": f"{c}:{uid}"} for uid in ("new", "newer")])


CALLS: dict[str, CallOf] = {
    "append": lambda db, c, _: db.append_message(c, role="user", content="new", uid=f"{c}:new"),
    "append_batch": _append_batch,
    "acquire": lambda db, c, _: db.acquire_lease(c, "compact", "other"),
    "renew": lambda db, c, lease: db.renew_lease(lease),
    "commit": lambda db, c, lease: db.commit_compaction(lease, summary="covers 1,2,3", cut_seq=3, child_id=f"{c}-2"),
    "end": lambda db, c, _: db.end_conversation(c, "done"),
    "resume": lambda db, c, _: db.resume(c),
    "hide": lambda db, c, _: db.hide(c, 4, 4),
    "undo": lambda db, c, _: db.undo_compaction(c),
    "redact": lambda db, c, _: db.redact(c, 1),
    "branch": lambda db, c, _: db.branch(c, 4, branch_id=f"{c}-b"),
    "pin": lambda db, c, _: db.pin(c, 4),
}
PAIRS = list(itertools.product(CALLS, CALLS))


def _answer(result: Any) -> Any:
    """A result without the ids and times that differ between two runs, or the name of the refusal."""
    match result:
        case BaseException():
            assert isinstance(result, errors.HoldfastError), result
            return type(result).__name__
        case types.Receipt():
            return (result.seq, result.duplicate, result.resumed)
        case list():
            return [_answer(each) for each in result]
        case bool() | None:
            return result
        case _:
            return type(result).__name__


class Overlap:
    """A store that two clients have open; many pairs of calls are played in it."""

    def __init__(self, address: str) -> None:
        self.pair = two_hosts.Pair(address)
        self._names = (f"c{number}" for number in itertools.count())

    def close(self) -> None:
        self.pair.close()

    def _begin(self) -> tuple[str, list[Callable[[str], Any]]]:
        """A conversation, and the calls that each of the two clients can make."""
        c = next(self._names)
        steps.compacted(self.pair.one, c)
        lease = self.pair.one.acquire_lease(c, "compact", "me")
        return c, [lambda name, db=db: CALLS[name](db, c, lease) for db in (self.pair.one, self.pair.other)]

    def _outcome(self, c: str, answers: list[Any]) -> str:
        return f"{answers} {steps.observe(self.pair.one, c)}"

    def _in_order(self, first: str, second: str, step: int) -> str:
        """Make the second call before the first if the step is negative."""
        c, clients = self._begin()
        calls = list(zip(clients, (first, second), strict=True))
        answers = [_answer(Call(partial(client, name)).outcome()) for client, name in calls[::step]]
        return self._outcome(c, answers[::step])

    def play(self, first: str, second: str) -> list[str]:
        """The problems of two calls that overlap."""
        c, (one, other) = self._begin()
        held, go = threading.Event(), threading.Event()

        def hold(point: str) -> None:
            """Hold the first call at its commit; the second one starts when the first is held or has returned."""
            if point.endswith(".committing") and not held.is_set():
                held.set()
                assert go.wait(HANGS)

        fault_points.hook = hold
        try:
            calls = [Call(partial(one, first))]
            polling.until(lambda: held.is_set() or calls[0].is_done())
            held.set()
            calls.append(Call(partial(other, second)))
            polling.until(lambda: calls[1].is_done() or two_hosts.is_waiting(self.pair.name))
            go.set()
            answers = [_answer(call.outcome()) for call in calls]
        finally:
            fault_points.hook = None
            go.set()
        found, outcome = checker.verify(self.pair.one, also=[c], fsck=False), self._outcome(c, answers)
        serial = [self._in_order(first, second, step) for step in (1, -1)]
        if outcome not in serial:
            found.append(f"{outcome} is neither of {serial}")
        return [f"{first} and then {second}: {problem}" for problem in found]
