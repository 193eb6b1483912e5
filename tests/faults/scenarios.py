"""Scenarios in which a broken store must show itself: each returns the problems it found."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import psycopg

from holdfast import errors, types
from holdfast.store import leases, log
from holdfast.store.db import SessionDB
from holdfast.store.driver import Tx
from holdfast.store.mail import chat_leases
from tests.faults import checker, interleavings, kill_points, overlapping_calls, steps
from tests.faults.mutations import Function
from tests.support import postgres_proxy, two_hosts

# These do not know that they were done by their own attempt, and return False.
UNTRACKED = {"release", "end", "memory", "pin", "audit"}
OVERLAPS = [pair for pair in overlapping_calls.PAIRS if {*pair} <= {"acquire", "append_batch", "commit", "end", "hide"}]
TOKEN = re.compile(r'(?<="compact", )\d+')


def play(scenario: str, target: str, without_triggers: Sequence[str], functions: Sequence[Function]) -> list[str]:
    """The problems found in a scenario on a new store, an unexpected error included."""
    if scenario in interleavings.GROUPS:
        return interleavings.every_schedule(
            interleavings.GROUPS[scenario], stop_at=1, without_triggers=without_triggers
        ).problems
    try:
        if scenario == "watching":
            return kill_points.half_states(kill_points.course_of("commit", target, without_triggers))
        if scenario == "overlapping":
            return overlap(target, functions)
        if scenario.startswith("lost "):
            return lose_answer(target, scenario.removeprefix("lost "))
        return SCENARIOS[scenario](target)
    except (errors.HoldfastError, AssertionError) as error:
        return [f"{type(error).__name__}: {error}"]


def acknowledge(target: str) -> list[str]:
    """Another process looks right after each acknowledgement, of one message and of several."""
    with SessionDB(target) as db, SessionDB(target) as other:
        db.create_session("c", source="test")
        receipts = [db.append_message("c", role="user", content="first", uid="first")]
        found = _verify_sent(other, receipts)
        if found:
            return found  # the transaction is still open
        receipts += db.append_messages("c", [{"role": "user", "content": uid, "uid": uid} for uid in "ab"])
        return _verify_sent(other, receipts)


def _verify_sent(db: SessionDB, receipts: Sequence[types.Receipt]) -> list[str]:
    return checker.verify(db, [checker.Sent("client", "c", each.uid, each.uid, each) for each in receipts])


def overlap(target: str, functions: Sequence[Function]) -> list[str]:
    """Pairs of calls that overlap, on a server with changed functions."""
    with closing(overlapping_calls.Overlap(target)) as overlap:
        # After all have opened the store: a client that opens it would notice.
        with psycopg.connect(target, autocommit=True) as connection:
            for change in functions:
                row = connection.execute("SELECT pg_get_functiondef(%s::regproc)", (change.name,)).fetchone()
                assert row is not None
                if row[0].count(change.old) != 1:
                    raise LookupError(f"{change.name} does not have {change.old!r} once")
                connection.execute(row[0].replace(change.old, change.new))
        return next((found for pair in OVERLAPS if (found := overlap.play(*pair))), [])


def lose_answer(target: str, name: str, fate: str = postgres_proxy.UNHEARD) -> list[str]:
    """The commit of a step, or the answer to it, is lost: the step is done once, with the result of a first call."""
    step, found = steps.STEPS[name], list[str]()
    with postgres_proxy.Proxy() as network, SessionDB(target) as db, SessionDB(network.through(target)) as far:
        first = step.run(db, step.prepare(db, "undisturbed"))
        args = step.prepare(db, "lost")
        # An append under a lease is committed by the one statement it is.
        network.trap(b"append_message" if name == "append_fenced" else b"COMMIT", fate)
        again = step.run(far, args)
        assert network.sprung == 1
        # A client that asks for a lease again gets the next token; the unheard one is dead.
        states = [steps.observe(db, c) for c in ("lost", "undisturbed")]
        if "acquire" in name:
            states = [TOKEN.sub("", state) for state in states]
        if states[0] != states[1]:
            found.append(f"{name} was not done once")
        if isinstance(first, bool) and again != first and not set(step.operations) & UNTRACKED:
            found.append(f"{name} returned {again}")
        return found + checker.verify(db, also=[] if name.startswith("delete") else ["lost"])


def _read(pair: two_hosts.Pair) -> list[str]:
    """A reader looks twice, and a compaction and a message come in between."""
    steps.begin(pair.one, "c")
    lease = pair.one.acquire_lease("c", "compact", "me")

    def read_twice(tx: Tx) -> list[types.Context]:
        before = log.context(tx, "c", None)
        pair.one.commit_compaction(lease, summary="", cut_seq=1)
        pair.one.append_message("c", role="user", content="meanwhile")
        return [before, log.context(tx, "c", None)]

    before, after = pair.other.driver.read(read_twice)
    return [] if (before.epoch, before.last_seq) == (after.epoch, after.last_seq) else ["two states in one read"]


def _overtake_chat(pair: two_hosts.Pair) -> list[str]:
    """A chat lease is taken over, which is not committed yet, while its holder begins, settles or sends."""
    db, key, mail = pair.one, "route:chat:c", pair.other.mail
    steps.begin(db, "c")
    arrival = steps.came(db, "c")
    db.mail.begin_inbound(db.mail.acquire_chat_lease(key, 300.0, "me"), arrival.id, "c")
    posted = db.mail.post(types.NewOutgoing(platform="far", chat="c", address={"chat": "c"}, text="a question")).id
    seq = db.append_message("c", role="user", content="said c", uid="inbox:far:c").seq
    calls: dict[str, Callable[[types.ChatLease], Any]] = {
        "begun": lambda lease: mail.begin_inbound(lease, arrival.id, "c"),
        "settled": lambda lease: steps.answer(pair.other, lease, arrival.id, seq),
        "sent": lambda lease: mail.begin_sending(lease, posted),
    }
    found = []
    for name, call in calls.items():
        held = db.mail.acquire_chat_lease(key, 300.0, "me")
        answer = two_hosts.run_meanwhile(
            db,
            lambda tx: chat_leases.acquire(tx, key, leases.current_holder("me"), 300.0),
            partial(call, held),
            lambda future: future.done() or two_hosts.is_waiting(pair.name),
        )
        if not isinstance(answer, errors.LeaseLost):
            found.append(f"{name} under a chat lease that was taken over meanwhile")
    return found


def _with_pair(scenario: Callable[[two_hosts.Pair], list[str]], target: str) -> list[str]:
    pair = two_hosts.Pair(target)
    try:
        return scenario(pair) + checker.verify(pair.one, also=["c"])
    finally:
        pair.one.close()
        pair.other.close()


SCENARIOS: dict[str, Callable[[str], list[str]]] = {
    "acknowledging": acknowledge,
    "reading": partial(_with_pair, _read),
    "overtaken": partial(_with_pair, _overtake_chat),
}
