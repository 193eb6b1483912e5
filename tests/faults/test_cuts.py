"""Connections to PostgreSQL that are cut, held back or slow, and answers nobody ever heard.

Whoever writes cannot know whether what was sent last was done. It asks again, by the ids and uids it made before the
first attempt, and is told what there is: everything happens once.
"""

from __future__ import annotations

import asyncio
import random
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import errors, fault_points
from holdfast.store import async_db, leases
from holdfast.store.db import SessionDB
from holdfast.store.postgres import connection
from tests.faults import checker, proxy, steps, storms
from tests.faults import zygote as zygotes
from tests.support import conversations as contract
from tests.support import mail, postgres

TOKEN = re.compile(r'(?<="compact", )\d+')


@pytest.fixture
def network() -> Iterator[proxy.Proxy]:
    with proxy.Proxy() as made:
        yield made


def undisturbed(db: SessionDB, name: str) -> str:
    step = steps.STEPS[name]
    args = step.prepare(db, "undisturbed")
    step.run(db, args)
    return steps.observe(db, "undisturbed")


# What was not sent is simply sent again, whatever it is; what was done and not heard of is each step's own matter.
CUTS = [(name, proxy.UNHEARD) for name in steps.STEPS] + [
    (name, proxy.UNSENT) for name in ("append", "append_batch", "acquire", "renew", "commit", "end", "delete")
]


@pytest.mark.parametrize(("name", "fate"), CUTS)
def test_a_write_is_done_once_though_its_commit_or_the_answer_to_it_was_lost(
    name: str, fate: str, network: proxy.Proxy
) -> None:
    address = postgres.fresh()
    with SessionDB(address) as db, SessionDB(network.through(address)) as far:
        args = steps.STEPS[name].prepare(db, "cut")
        # An append under a lease is committed by the one statement it is.
        network.trap(b"append_message" if name == "append_fenced" else b"COMMIT", fate)
        steps.STEPS[name].run(far, args)
        assert network.sprung == 1
        found, wanted = steps.observe(db, "cut"), undisturbed(db, name)
        # Whoever asks again for a lease gets the next token; the one nobody heard of is dead.
        assert (TOKEN.sub("", found) if "acquire" in name else found) == (
            TOKEN.sub("", wanted) if "acquire" in name else wanted
        )
        assert checker.verify(db, also=[] if name.startswith("delete") else ["cut"]) == []


@pytest.mark.parametrize("fate", [proxy.UNHEARD, proxy.UNSENT])
def test_inbound_message_that_two_processes_deliver_is_new_for_one(
    fate: str, network: proxy.Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second process delivers the message, with the platform's time, between the lost attempt and its retry."""
    address, delivered, new = postgres.fresh(), list[bool](), mail.new(at=contract.NOON)
    with SessionDB(address) as db, SessionDB(network.through(address)) as far:

        def deliver_before_retry(point: str) -> None:
            if point == "arrive.queued" and network.sprung:
                monkeypatch.setattr(fault_points, "hook", None)
                delivered.append(db.mail.add_inbound(new)[1])

        monkeypatch.setattr(fault_points, "hook", deliver_before_retry)
        network.trap(b"COMMIT", fate)
        stored, is_new = far.mail.add_inbound(new)
        assert (is_new, delivered) == (fate == proxy.UNHEARD, [fate == proxy.UNSENT])
        assert db.mail.open_inbound(new.route) == [stored]


@pytest.mark.parametrize("fate", [proxy.UNHEARD, proxy.UNSENT])
def test_a_message_sent_in_one_statement_is_stored_once_though_nobody_heard(fate: str, network: proxy.Proxy) -> None:
    address = postgres.fresh()
    with SessionDB(address) as db, SessionDB(network.through(address)) as far:
        steps.say(db, "c")
        for number in range(10):
            uid = f"in doubt {number}"
            network.trap(uid.encode(), fate)
            receipt = far.append_message("c", role="user", content="said", uid=uid)
            assert (receipt.seq, network.sprung) == (5 + number, number + 1)
        assert db.conversation("c").last_seq == 14
        assert db.admin.fsck().ok


def test_messages_that_share_a_commit_are_each_stored_once_though_nobody_heard(network: proxy.Proxy) -> None:
    address = postgres.fresh()
    with SessionDB(address) as db, SessionDB(network.through(address)) as far:
        names = [f"c{number}" for number in range(4)]
        for name in names:
            steps.say(db, name)

        async def all_at_once(shared: async_db.AsyncSessionDB, word: bytes) -> list[int]:
            network.trap(word, proxy.UNHEARD)
            sends = [shared.append_message(n, role="user", content=f"{k}") for k in range(3) for n in names]
            return sorted(receipt.seq for receipt in await asyncio.gather(*sends))

        async def twice() -> None:
            async with async_db.AsyncSessionDB(far) as shared:
                assert await all_at_once(shared, b"COMMIT") == sorted([5, 6, 7] * 4)
                # From here on the ends of the logs are known, and all of it is one statement.
                assert await all_at_once(shared, b"unnest(") == sorted([8, 9, 10] * 4)

        asyncio.run(twice())
        assert network.sprung == 2
        assert [db.conversation(name).last_seq for name in names] == [10] * 4


@pytest.mark.parametrize("fate", [proxy.UNHEARD, proxy.UNSENT])
def test_a_compaction_whose_child_nobody_named_is_committed_once(fate: str, network: proxy.Proxy) -> None:
    address = postgres.fresh()
    with SessionDB(address) as db, SessionDB(network.through(address)) as far:
        steps.say(db, "c")
        lease = db.acquire_lease("c", "compact", "me")
        network.trap(b"COMMIT", fate)
        made = far.commit_compaction(lease, summary="gist", cut_seq=2)
        assert network.sprung == 1
        assert made == db.head("c")
        assert [each.session_id for each in db.compactions("c")] == [made.id]
        assert checker.verify(db, also=["c"]) == []


# --- a network that holds everything back -----------------------------------------------------------------------


def test_a_holder_cut_off_past_its_expiry_cannot_commit(network: proxy.Proxy) -> None:
    address, clock = postgres.fresh(), contract.Clock()
    with SessionDB(address, clock=clock) as db, SessionDB(network.through(address), clock=clock) as far:
        steps.say(db, "c")
        lost = far.acquire_lease("c", "compact", "far", 30)
        network.hold()
        outcome = Background(lambda: far.commit_compaction(lost, summary="", cut_seq=2, child_id="far"))
        clock.now += 31
        lease = db.acquire_lease("c", "compact", "near", 30)
        network.flow()
        assert isinstance(outcome.result(), errors.LeaseLost)
        assert db.commit_compaction(lease, summary="", cut_seq=1, child_id="near").id == "near"
        assert checker.verify(db, also=["c"]) == []


def test_a_turn_cut_off_past_its_expiry_cannot_append_while_a_take_over_holds_the_row(network: proxy.Proxy) -> None:
    address, clock = postgres.fresh(), contract.Clock()
    with (
        SessionDB(address, clock=clock) as db,
        SessionDB(network.through(address, application_name="late"), clock=clock) as far,
    ):
        steps.say(db, "c")
        lost = far.acquire_lease("c", "turn", "far", 30)
        clock.now += 31
        network.hold()
        outcome = Background(lambda: far.append_message("c", role="user", content="late", uid="late", lease=lost))

        def take_over(tx: Any) -> None:
            tx.shared = True  # the transaction stays open after it
            leases.acquire(tx, "c", "turn", leases.current_holder("near"), 30)
            network.flow()
            storms.wait_until(lambda: storms.waits("late"), "the late message waits for the row")

        db.driver.write("test", take_over)
        assert isinstance(outcome.result(), errors.LeaseLost)
        assert db.conversation("c").last_seq == 4


def test_a_connection_that_is_taken_and_never_answered_is_given_up(network: proxy.Proxy) -> None:
    address = postgres.fresh()
    network.hold()
    with pytest.raises(errors.StoreUnreachable, match=r"127\.0\.0\.1"):
        SessionDB(network.through(address), write_timeout=0.1)


@pytest.mark.usefixtures("quick_deadlines")
def test_a_network_that_falls_silent_in_the_middle_is_noticed_and_what_was_sent_is_done_once(
    network: proxy.Proxy,
) -> None:
    address = postgres.fresh()
    with SessionDB(address) as db, SessionDB(network.through(address), write_timeout=0.1) as far:
        steps.say(db, "c")
        far.append_message("c", role="user", content="heard", uid="heard")
        network.hold()
        with pytest.raises(errors.StoreUnreachable, match=r"does not answer|timeout"):
            far.append_message("c", role="user", content="unheard", uid="unheard")
        with pytest.raises(errors.StoreUnreachable):
            far.transcript("c")
        network.flow()
        # The message that was held back may have come through by now: then this is a repetition.
        assert far.append_message("c", role="user", content="unheard", uid="unheard").seq == 6
        assert db.conversation("c").last_seq == 6


@pytest.mark.usefixtures("quick_deadlines")
def test_an_answer_that_never_comes_is_noticed_though_the_server_is_well(network: proxy.Proxy) -> None:
    """One connection is dead and nobody says so, as when a firewall has forgotten it; new ones work."""
    address = postgres.fresh()
    with SessionDB(address) as db, SessionDB(network.through(address), write_timeout=0.1) as far:
        steps.say(db, "c")
        network.mute()
        with pytest.raises(errors.StoreUnreachable, match="does not answer"):
            far.append_messages("c", [{"role": "user", "content": "x", "uid": "x"}])
        assert far.append_message("c", role="user", content="x", uid="x").seq == 5


@pytest.mark.usefixtures("quick_deadlines")
def test_a_statement_that_only_takes_long_is_waited_for() -> None:
    with SessionDB(postgres.fresh(), write_timeout=0.1) as db:
        slow = "SELECT pg_sleep(2.0)"
        assert db.driver.read(lambda tx: tx.execute(slow).fetchone()) == ("",)


# --- limits of the server ---------------------------------------------------------------------------------------


def test_a_statement_that_takes_too_long_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    address = postgres.fresh()
    monkeypatch.setattr(connection, "STATEMENT_TIMEOUT", 0.1)
    with SessionDB(address) as db, SessionDB(address) as hasty:
        steps.say(db, "c")

        def step(tx: Any) -> None:
            tx.one("lock_conversation", id="c")
            with pytest.raises(errors.StoreBusy, match="statement timeout"):
                hasty.append_message("c", role="user", content="x", uid="x")

        db.driver.write("test", step)
        assert hasty.append_message("c", role="user", content="x", uid="x").seq == 5


FULL = """
CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$;
CREATE TRIGGER full_disk BEFORE INSERT ON messages EXECUTE FUNCTION full_disk();
"""


def test_a_server_without_room_says_so_and_takes_the_message_when_there_is_some() -> None:
    address = postgres.fresh()
    with SessionDB(address) as db, postgres.psycopg.connect(address, autocommit=True) as server:
        steps.say(db, "c")
        server.execute(FULL)
        for call in (lambda: steps._append(db, {"id": "c"}), lambda: steps._batch(db, {"id": "c"})):
            with pytest.raises(errors.StoreFull, match="Free some space"):
                call()
        server.execute("DROP TRIGGER full_disk ON messages; DROP FUNCTION full_disk")
        assert db.append_message("c", role="user", content="x").seq == 5
        assert db.admin.fsck().ok


# --- under load -------------------------------------------------------------------------------------------------


def harm_of(network: proxy.Proxy, kind: str, chance: random.Random) -> Callable[[], None]:
    def hold() -> None:
        network.hold()
        threading.Timer(chance.uniform(0.0, 0.1), network.flow).start()

    def trap() -> None:
        network.trap(b"COMMIT", proxy.UNHEARD)

    return {"cut": network.reset, "held": hold, "unheard": trap}[kind]


@pytest.mark.parametrize("kind", ["cut", "held", "unheard"])
def test_nothing_is_lost_over_a_network_that_keeps_failing(
    kind: str, network: proxy.Proxy, zygote: zygotes.Zygote
) -> None:
    address = postgres.fresh()
    if kind == "cut":
        network.dawdle(kind)
    with storms.Storm(zygote, address, network.through(address)) as storm:
        for _ in range(5):
            storm.harm(harm_of(network, kind, random.Random(kind)))
    assert storm.wrongs() == []


def test_backends_terminated_under_load_lose_nothing(zygote: zygotes.Zygote) -> None:
    address, chance = postgres.fresh(), random.Random("terminated")
    through = f"{address}&application_name=storm"
    theirs = "SELECT pid FROM pg_stat_activity WHERE application_name = 'storm'"
    with storms.Storm(zygote, address, through) as storm:
        for _ in range(8):
            pids = [pid for (pid,) in postgres.admin().execute(theirs).fetchall()]
            chosen = chance.sample(pids, chance.randint(1, len(pids)))
            storm.harm(lambda chosen=chosen: terminate(chosen))
    assert storm.wrongs() == []


def terminate(pids: list[int]) -> None:
    postgres.admin().execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) pid", (pids,))


class Background:
    """A call that somebody else makes meanwhile."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._outcome: list[Any] = []
        self._thread = threading.Thread(target=self._run, args=(call,))
        self._thread.start()

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self._outcome.append(call())
        except errors.HoldfastError as error:
            self._outcome.append(error)

    def result(self) -> Any:
        self._thread.join(60)
        (outcome,) = self._outcome
        return outcome
