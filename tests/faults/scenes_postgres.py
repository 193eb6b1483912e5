"""Scenes in which a store on PostgreSQL shows what is wrong with it: nothing, if all is well."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import psycopg

from holdfast import errors, types
from holdfast.store import compactions, leases, log, sessions, visibility
from holdfast.store.db import SessionDB
from holdfast.store.driver import Tx
from holdfast.store.mail import chat_leases
from tests.faults import checker, interleavings, kills, overlaps, proxy, steps, storms
from tests.faults.mutants_postgres import Function
from tests.support import postgres

Without = Sequence[str]
Inside = Sequence[Function]
Played = Callable[[Callable[[Tx], Any], Callable[[], Any]], Any]
IN_DOUBT = ("append_batch", "undo", "redo", "hide", "delete", "redact", "route")
MAIL_IN_DOUBT = ("arrive", "begin_inbound", "settle_inbound", "begin_sending", "delivered")


def play(scene: str, inside: Inside = (), without_triggers: Without = ()) -> list[str]:
    """What is wrong in a scene, an error nobody expected included."""
    try:
        return SCENES[scene](inside, without_triggers)
    except (errors.HoldfastError, AssertionError) as error:
        return [f"{type(error).__name__}: {error}"]


def spoil(address: str, inside: Inside, without_triggers: Without) -> None:
    """What is changed in the schema itself, when all have opened it: who opens it would notice."""
    with psycopg.connect(address, autocommit=True) as connection:
        for change in inside:
            row = connection.execute("SELECT pg_get_functiondef(%s::regproc)", (change.name,)).fetchone()
            if row is None or row[0].count(change.old) != 1:
                raise LookupError(f"{change.name} does not have {change.old!r} once")
            connection.execute(row[0].replace(change.old, change.new))
        for name in without_triggers:
            table = connection.execute(interleavings.TABLE_OF, (name,)).fetchone()
            if table is None:
                raise LookupError(f"there is no trigger {name}")
            connection.execute(f"DROP TRIGGER {name} ON {table[0]}")


class Pair:
    """Two hosts at one store, and a clock both go by."""

    def __init__(self, address: str, stack: contextlib.ExitStack) -> None:
        self.clock = [1_000.0]
        self._name = f"w{id(self)}"
        self.one, self.other = (
            stack.enter_context(SessionDB(f"{address}{more}", clock=lambda: self.clock[0]))
            for more in ("", f"&application_name={self._name}")
        )
        steps.say(self.one, "c")
        self.history: list[checker.Record] = []
        self.writers: tuple[SessionDB, ...] = (self.other,)
        # From now on each knows where the log ends, and writes in one statement.
        for db in (self.one, self.other):
            self.say(db, "c", f"begin {id(db)}")

    def say(self, db: SessionDB, c: str, uid: str, **how: Any) -> types.Receipt:
        receipt = db.append_message(c, role="user", content=uid, uid=uid, **how)
        self.history.append(checker.Sent(f"client {id(db)}", c, uid, uid, receipt))
        return receipt

    def meanwhile(self, change: Callable[[Tx], Any], call: Callable[[], Any]) -> Any:
        """What the call gives, or raises, that came while the change was not committed; and None of it waited."""
        return storms.meanwhile(self.one, change, call, lambda outcome: outcome or self._waits())

    def afterwards(self, change: Callable[[Tx], Any], call: Callable[[], Any]) -> Any:
        """What the call gives, or raises, that came when the change was committed."""
        self.one.driver.write("test", change)
        try:
            return call()
        except errors.HoldfastError as error:
            return error

    def _waits(self) -> bool:
        return storms.waits(self._name)

    def wrong(self) -> list[str]:
        """By the promises; that the schema was changed, which fsck sees too, is no finding."""
        found = checker.verify(self.one, self.history, also=["c"])
        return [each for each in found if not each.startswith("fsck: schema")]


@contextlib.contextmanager
def pair(inside: Inside, without_triggers: Without) -> Iterator[Pair]:
    address = postgres.fresh()
    with contextlib.ExitStack() as stack:
        made = Pair(address, stack)
        spoil(address, inside, without_triggers)
        yield made


def _overlapping(inside: Inside, without_triggers: Without) -> list[str]:
    with overlaps.stage() as stage:
        spoil(stage.address, inside, without_triggers)
        for order in overlaps.orders()[::4]:
            found = stage.play(order, 1)
            if found:
                return found
    return []


def _following_alone(inside: Inside, without_triggers: Without) -> list[str]:
    """Messages that come while something changes; nobody but the one who sends them seems to write."""
    with pair(inside, without_triggers) as both:
        return _followed(both, both.meanwhile)


def _coming_after(inside: Inside, without_triggers: Without) -> list[str]:
    """And those that come when it has changed."""
    with pair(inside, without_triggers) as both:
        return _followed(both, both.afterwards)


def _following(inside: Inside, without_triggers: Without) -> list[str]:
    """The same where each knows that the other writes too."""
    with pair(inside, without_triggers) as both:
        both.writers = (both.other, both.one, both.other)
        for db in both.writers:
            both.say(db, "c", f"again {len(both.history)}")
        return _followed(both, both.meanwhile)


def _followed(both: Pair, play: Played) -> list[str]:
    """A message that comes when the head moves, and then when the conversation ends; and two that must not follow."""
    lease = both.one.acquire_lease("c", "compact", "me")
    found = [play(_committing(lease, "c-1"), lambda: both.say(both.other, "c", "moved"))]
    strict = [
        play(
            lambda tx: tx.one("lock_conversation", id="c"),
            lambda: both.say(both.other, "c", "for the first", expect_head=True),
        )
    ]
    for db in both.writers:
        both.say(db, "c-1", f"to the second {len(both.history)}")
    lease = both.one.acquire_lease("c", "compact", "me")
    strict.append(
        play(_committing(lease, "c-2"), lambda: both.say(both.other, "c-1", "for the second", expect_head=True))
    )
    for db in both.writers:
        both.say(db, "c-2", f"before the end {len(both.history)}")
    found.append(
        play(lambda tx: sessions.end(tx, "c", "done", 1.0, whole=True), lambda: both.say(both.other, "c-2", "late"))
    )
    wrong = [f"{each}" for each in found if isinstance(each, Exception)]
    if not all(isinstance(each, errors.Superseded) for each in strict):
        wrong.append("a message was stored though it was for another head")
    return wrong + both.wrong()


def _committing(lease: types.Lease, child: str) -> Callable[[Tx], Any]:
    draft = compactions.make_draft(1, lease.snapshot.last_seq, "", (), None, None)
    return lambda tx: compactions.commit(tx, lease, child, draft, 1.0)


def _overtaking(inside: Inside, without_triggers: Without) -> list[str]:
    """A holder whose time is up comes while another takes over: its commit, and a message of its turn."""
    found = []
    with pair(inside, without_triggers) as both:
        for purpose in leases.PURPOSES:
            lost = both.other.acquire_lease("c", purpose, "slow", 30)
            both.clock[0] += 31

            def late(lost: types.Lease = lost) -> Any:
                if lost.purpose == "turn":
                    return both.say(both.other, "c", "late", lease=lost)
                return both.other.driver.write("commit", _committing(lost, "c-late"))

            taken = leases.current_holder("other")
            answer = both.meanwhile(
                lambda tx, purpose=purpose, taken=taken: leases.acquire(tx, "c", purpose, taken, 30), late
            )
            if not isinstance(answer, errors.LeaseLost):
                found.append(f"a {purpose} lease that was taken over was still good for {answer}")
        return found + both.wrong()


def _expired_turn(inside: Inside, without_triggers: Without) -> list[str]:
    """A turn writes after its time is up, though no other process has taken over."""
    with pair(inside, without_triggers) as both:
        lease, found = both.other.acquire_lease("c", "turn", "slow", 30), list[str]()
        both.say(both.other, "c", "in time", lease=lease)
        both.clock[0] += 31
        try:
            both.say(both.other, "c", "late", lease=lease)
            found.append("an expired turn has written")
        except errors.LeaseLost:
            pass
        return found + both.wrong()


def _committed_meanwhile(inside: Inside, without_triggers: Without) -> list[str]:
    """A commit waits while its lease is taken over, and another while the view changes."""
    with pair(inside, without_triggers) as both:
        lost, taken = both.other.acquire_lease("c", "compact", "slow", 30), leases.current_holder("other")
        both.clock[0] += 31

        def late(work: types.Lease | types.Snapshot, child: str) -> Callable[[], Any]:
            return lambda: both.other.commit_compaction(work, summary="", cut_seq=1, child_id=child)

        lapsed = both.meanwhile(lambda tx: leases.acquire(tx, "c", "compact", taken, 30), late(lost, "c-late"))
        seen = both.other.snapshot("c")
        behind = both.meanwhile(lambda tx: visibility.hide(tx, "c", 1, 1), late(seen, "c-behind"))
        found = [] if isinstance(lapsed, errors.LeaseLost) else [f"a lease that was lost was good for {lapsed}"]
        if not isinstance(behind, errors.Superseded):
            found.append(f"a compaction of what was not there any more became {behind}")
        return found + both.wrong()


def _watching(_: Inside, without_triggers: Without) -> list[str]:
    """Another process looks at every point of a commit."""
    return kills.half_states(kills.course_of("commit", postgres.fresh(), without_triggers))


def _acknowledging(inside: Inside, without_triggers: Without) -> list[str]:
    """Another process looks right after each acknowledgement, of a message alone and of several."""
    with pair(inside, without_triggers) as both:
        both.say(both.other, "new", "first", create=types.NewConversation(source="test"))
        for receipt in both.other.append_messages("c", [{"role": "user", "content": u, "uid": u} for u in "ab"]):
            both.history.append(checker.Sent("client", "c", receipt.uid, receipt.uid, receipt))
        return both.wrong()


def _retrying(inside: Inside, without_triggers: Without) -> list[str]:
    """Two send the same message at once, as after a connection that was lost."""
    with pair(inside, without_triggers) as both:
        for db in (both.other, both.one):
            both.say(db, "c", f"again {id(db)}")
        first = log.AppendRequest("c", [types.NewMessage(role="user", content="once", uid="once")], 1.0)
        answer = both.meanwhile(first, lambda: both.say(both.other, "c", "once"))
        again = both.say(both.one, "c", "once")
        found = [] if (answer.seq, answer.duplicate) == (again.seq, True) else [f"sent twice, it was told {answer}"]
        return found + both.wrong()


def _taking_turns(inside: Inside, without_triggers: Without) -> list[str]:
    """Two write in turns, so that neither knows the next number."""
    with pair(inside, without_triggers) as both:
        for number in range(6):
            both.say((both.one, both.other)[number % 2], "c", f"turn {number}")
        return both.wrong()


def _reading(inside: Inside, without_triggers: Without) -> list[str]:
    """A reader looks twice, and a compaction and a message come in between."""
    with pair(inside, without_triggers) as both:
        lease = both.one.acquire_lease("c", "compact", "me")

        def twice(tx: Tx) -> list[types.Context]:
            before = log.context(tx, "c", None)
            both.one.driver.write("commit", _committing(lease, "c-1"))
            both.say(both.one, "c", "meanwhile")
            return [before, log.context(tx, "c", None)]

        before, after = both.other.driver.read(twice)
        found = [] if (before.epoch, before.last_seq) == (after.epoch, after.last_seq) else ["two states in one read"]
        return found + both.wrong()


def _overtaken_meanwhile(inside: Inside, without_triggers: Without) -> list[str]:
    """A claim is taken over, which is not committed yet, while the one that had it begins, settles or sends."""
    with pair(inside, without_triggers) as both:
        arrival, key = steps.came(both.one, "c"), "route:chat:c"
        old = both.one.mail.acquire_chat_lease(key, 300.0, "me")
        both.one.mail.begin_inbound(old, arrival.id, "c")
        posted = both.one.mail.post(
            types.NewOutgoing(platform="far", chat="c", address={"chat": "c"}, text="a question")
        ).id
        seq, found = both.say(both.one, "c", "inbox:far:c").seq, list[str]()
        calls: dict[str, Callable[[types.ChatLease], Any]] = {
            "begun": lambda claim: both.other.mail.begin_inbound(claim, arrival.id, "c"),
            "settled": lambda claim: steps.answer(both.other, claim, arrival.id, seq),
            "sent": lambda claim: both.other.mail.begin_sending(claim, posted),
        }
        for what, call in calls.items():
            held = both.one.mail.acquire_chat_lease(key, 300.0, "me")

            def taken(tx: Tx) -> object:
                return chat_leases.acquire(tx, key, leases.current_holder("me"), 300.0)

            answer = both.meanwhile(taken, partial(call, held))
            if not isinstance(answer, errors.LeaseLost):
                found.append(f"by a claim that was taken over meanwhile it was {what}")
        return found + both.wrong()


def _in_doubt(_: Inside, __: Without) -> list[str]:
    """The answer to a commit is lost, of steps that know by different means whether they were done."""
    return _unheard(IN_DOUBT)


def _mail_in_doubt(_: Inside, __: Without) -> list[str]:
    """The same of what comes in and goes out; and whoever was the first is told so."""
    return _unheard(MAIL_IN_DOUBT)


def _unheard(names: Sequence[str]) -> list[str]:
    address, found = postgres.fresh(), list[str]()
    with proxy.Proxy() as network, SessionDB(address) as db, SessionDB(network.through(address)) as far:
        for name in names:
            step, wanted = steps.STEPS[name], f"undisturbed {name}"
            told = step.run(db, step.prepare(db, wanted))
            args = step.prepare(db, f"in doubt {name}")
            network.trap(b"COMMIT", proxy.UNHEARD)
            heard = step.run(far, args)
            if steps.observe(db, args["id"]) != steps.observe(db, wanted):
                found.append(f"{name} was not done once")
            if isinstance(told, bool) and heard != told:
                found.append(f"{name} was told that it was not the first")
    return found


SCENES: dict[str, Callable[[Inside, Without], list[str]]] = {
    "overlapping": _overlapping,
    "following": _following,
    "following alone": _following_alone,
    "coming after": _coming_after,
    "overtaking": _overtaking,
    "expired turn": _expired_turn,
    "committing meanwhile": _committed_meanwhile,
    "watching": _watching,
    "acknowledging": _acknowledging,
    "retrying": _retrying,
    "taking turns": _taking_turns,
    "reading": _reading,
    "in doubt": _in_doubt,
    "mail in doubt": _mail_in_doubt,
    "overtaken meanwhile": _overtaken_meanwhile,
}
