"""Connections to PostgreSQL that are cut, silent or slow: every call returns, and every write is done once."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from holdfast import AsyncSessionDB, errors, fault_points, types
from holdfast.store.db import SessionDB
from holdfast.store.postgres import connection
from tests.faults import checker, load, steps
from tests.faults import zygote as zygotes
from tests.faults.load import HANGS, HASTY, PATIENT, Call
from tests.support import conversations as contract
from tests.support import mail, postgres, postgres_proxy


@pytest.fixture
def network() -> Iterator[postgres_proxy.Proxy]:
    with postgres_proxy.Proxy() as made:
        yield made


# A write that was not sent is sent again, whatever it is; each step knows by its own means that it was done.
CUTS = [(name, postgres_proxy.UNHEARD) for name in steps.STEPS] + [
    (name, postgres_proxy.UNSENT) for name in ("append", "append_batch", "acquire", "commit", "end", "delete")
]


# These do not know that they were done by their own attempt, and return False.
UNTRACKED = {"release", "end", "memory", "pin", "audit"}
TOKEN = re.compile(r'(?<="compact", )\d+')


@pytest.mark.parametrize(("name", "fate"), CUTS)
def test_write_is_done_once_though_its_commit_or_the_answer_to_it_was_lost(
    name: str, fate: str, network: postgres_proxy.Proxy
) -> None:
    step, target = steps.STEPS[name], postgres.fresh()
    with SessionDB(target) as db, SessionDB(network.through(target)) as far:
        first = step.run(db, step.prepare(db, "undisturbed"))
        args = step.prepare(db, "lost")
        # An append under a lease is committed by the one statement it is.
        network.trap(b"append_message" if name == "append_fenced" else b"COMMIT", fate)
        again = step.run(far, args)
        assert network.sprung == 1
        # A client that asks for a lease again gets the next token; the unheard one is dead.
        states = [steps.observe(db, c) for c in ("lost", "undisturbed")]
        lost, undisturbed = (TOKEN.sub("", state) for state in states) if "acquire" in name else states
        assert lost == undisturbed
        if isinstance(first, bool) and not set(step.operations) & UNTRACKED:
            assert again == first
        assert checker.verify(db, also=[] if name.startswith("delete") else ["lost"]) == []


class Stores(NamedTuple):
    """One store, opened directly and through a network, with one conversation of four messages."""

    network: postgres_proxy.Proxy
    db: SessionDB
    far: SessionDB
    clock: contract.Clock


@pytest.fixture
def stores(network: postgres_proxy.Proxy) -> Iterator[Stores]:
    address, clock = postgres.fresh(), contract.Clock()
    with SessionDB(address, clock=clock) as db, SessionDB(network.through(address), clock=clock) as far:
        steps.begin(db, "c")
        yield Stores(network, db, far, clock)
        assert checker.verify(db, also=["c"]) == []


lost = pytest.mark.parametrize("fate", [postgres_proxy.UNHEARD, postgres_proxy.UNSENT])


@lost
def test_inbound_message_that_two_processes_deliver_is_new_for_one(
    fate: str, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second process delivers the message, with the platform's time, between the lost attempt and its retry."""
    delivered, new = list[bool](), mail.new(at=contract.NOON)

    def deliver_before_retry(point: str) -> None:
        if point == "arrive.queued" and stores.network.sprung:
            monkeypatch.setattr(fault_points, "hook", None)
            delivered.append(stores.db.mail.add_inbound(new)[1])

    monkeypatch.setattr(fault_points, "hook", deliver_before_retry)
    stores.network.trap(b"COMMIT", fate)
    stored, is_new = stores.far.mail.add_inbound(new)
    assert (is_new, delivered) == (fate == postgres_proxy.UNHEARD, [fate == postgres_proxy.UNSENT])
    assert stores.db.mail.open_inbound(new.route) == [stored]


@lost
def test_message_sent_in_one_statement_is_stored_once_though_its_answer_was_lost(fate: str, stores: Stores) -> None:
    for number in range(3):
        uid = f"in doubt {number}"
        stores.network.trap(uid.encode(), fate)
        receipt = stores.far.append_message("c", role="user", content="said", uid=uid)
        assert (receipt.seq, stores.network.sprung) == (5 + number, number + 1)
    assert stores.db.conversation("c").last_seq == 7


async def test_messages_of_a_shared_commit_are_stored_once_though_its_answer_was_lost(stores: Stores) -> None:
    names = [f"c{number}" for number in range(4)]
    for name in names:
        steps.begin(stores.db, name)
    async with AsyncSessionDB(stores.far) as shared:
        # Once the ends of the logs are known, all appends are one statement.
        for word, seqs in ((b"COMMIT", [5, 6, 7]), (b"unnest(", [8, 9, 10])):
            stores.network.trap(word, postgres_proxy.UNHEARD)
            sends = [shared.append_message(name, role="user", content=f"{k}") for k in range(3) for name in names]
            assert sorted(receipt.seq for receipt in await asyncio.gather(*sends)) == sorted(seqs * 4)
    assert stores.network.sprung == 2
    assert [stores.db.conversation(name).last_seq for name in names] == [10] * 4


@lost
def test_compaction_with_a_generated_child_id_is_committed_once(fate: str, stores: Stores) -> None:
    lease = stores.db.acquire_lease("c", "compact", "me")
    stores.network.trap(b"COMMIT", fate)
    made = stores.far.commit_compaction(lease, summary="gist", cut_seq=2)
    assert (stores.network.sprung, made) == (1, stores.db.head("c"))
    assert [each.session_id for each in stores.db.compactions("c")] == [made.id]


def test_holder_cut_off_past_its_expiry_cannot_commit(stores: Stores) -> None:
    expired = stores.far.acquire_lease("c", "compact", "far", 30)
    stores.network.hold()
    late = Call(lambda: stores.far.commit_compaction(expired, summary="", cut_seq=2, child_id="far"))
    stores.clock.now += 31
    lease = stores.db.acquire_lease("c", "compact", "near", 30)
    stores.network.flow()
    assert isinstance(late.outcome(), errors.LeaseLost)
    assert stores.db.commit_compaction(lease, summary="", cut_seq=1, child_id="near").id == "near"


@pytest.mark.usefixtures("quick_deadlines")
def test_missing_answer_is_noticed_though_the_server_is_well(network: postgres_proxy.Proxy) -> None:
    """One connection is dead without an error, as when a firewall has forgotten it; new ones work."""
    with SessionDB(network.through(postgres.fresh()), write_timeout=0.1) as db:
        steps.begin(db, "c")
        network.mute()
        with pytest.raises(errors.StoreUnreachable, match="does not answer"):
            db.append_messages("c", [{"role": "user", "content": "x", "uid": "x"}])
        assert db.append_message("c", role="user", content="x", uid="x").seq == 5


@pytest.mark.usefixtures("quick_deadlines")
def test_statement_that_takes_longer_than_a_probe_is_waited_for() -> None:
    with SessionDB(postgres.fresh(), write_timeout=0.1) as db:
        slow = "SELECT pg_sleep(1.0)"
        assert db.driver.read(lambda tx: tx.execute(slow).fetchone()) == ("",)


CALLS: dict[str, Callable[[SessionDB], object]] = {
    "append": lambda db: db.append_message("c", role="user", content="x", uid="x"),
    "batch": lambda db: db.append_messages("c", [{"role": "user", "content": name} for name in "ab"]),
    "compaction": lambda db: db.commit_compaction(db.snapshot("c"), summary="gist", cut_seq=2),
    "read": lambda db: db.transcript("c"),
    "search": lambda db: db.search("a"),
    "rebuild": lambda db: db.admin.rebuild_search_index(),
    "delete": lambda db: db.delete_conversation("d"),
    "blob": lambda db: db.blobs.put(b"x" * 100_000),
    "fsck": lambda db: db.admin.fsck(),
    "repair": lambda db: db.driver.repair_schema(),
    "scrub": lambda db: db.admin.scrub(),
}


def call_all(network: postgres_proxy.Proxy, fault: Callable[[], None], write_timeout: float) -> dict[str, Any]:
    """The outcome of every call, each over a connection that was idle when the fault began."""
    address = network.through(postgres.fresh())
    stores = {name: SessionDB(address, write_timeout=write_timeout) for name in CALLS}
    for name in "cd":
        steps.begin(stores["append"], name)
    fault()
    calls = {name: Call(lambda db=db, name=name: CALLS[name](db)) for name, db in stores.items()}  # type: ignore[misc]
    outcomes = {name: call.outcome() for name, call in calls.items()}
    for db in stores.values():
        Call(db.close).outcome()
    return outcomes


@pytest.mark.usefixtures("quick_deadlines")
def test_every_call_returns_while_the_server_is_silent(network: postgres_proxy.Proxy) -> None:
    outcomes = call_all(network, network.hold, HASTY)
    assert {name: out for name, out in outcomes.items() if not isinstance(out, errors.StoreUnreachable)} == {}
    opened = Call(lambda: SessionDB(network.through(postgres.fresh()), write_timeout=HASTY)).outcome()
    assert isinstance(opened, errors.StoreUnreachable)


@pytest.mark.usefixtures("quick_deadlines")
def test_every_call_goes_on_over_a_new_connection_when_its_backend_is_gone(network: postgres_proxy.Proxy) -> None:
    outcomes = call_all(network, network.orphan, PATIENT)
    assert {name: out for name, out in outcomes.items() if isinstance(out, BaseException)} == {}


@pytest.mark.usefixtures("quick_deadlines")
def test_answer_that_is_stuck_on_its_way_counts_as_silence(network: postgres_proxy.Proxy) -> None:
    """Its backend executes the statement for as long as it waits for its client."""

    def read(tx: Any) -> None:
        network.stall()
        tx.execute("SELECT repeat('x', 100000) FROM generate_series(1, 1000)")

    with SessionDB(network.through(postgres.fresh()), write_timeout=HASTY) as db:
        assert isinstance(Call(lambda: db.driver.read(read)).outcome(), errors.StoreUnreachable)


@pytest.mark.usefixtures("quick_deadlines")
def test_large_request_on_a_slow_network_is_waited_for(network: postgres_proxy.Proxy) -> None:
    """The backend waits for its client, and the client for the socket, while the kernel sends the request."""
    network.throttle(1_000_000)
    with SessionDB(network.through(postgres.fresh()), write_timeout=HASTY) as db:
        steps.begin(db, "c")
        (receipt,) = Call(
            lambda: db.append_messages("c", [types.NewMessage(role="user", content="x" * 4_000_000)])
        ).outcome()
        assert receipt.seq == 5


@pytest.mark.usefixtures("quick_deadlines")
async def test_cancelled_calls_and_close_return_while_the_server_is_silent(network: postgres_proxy.Proxy) -> None:
    db = AsyncSessionDB(SessionDB(network.through(postgres.fresh()), write_timeout=HASTY))
    for name in "ab":
        steps.begin(db.db, name)
    async with asyncio.timeout(HANGS):
        network.hold()
        calls = [
            asyncio.create_task(call)
            for name in "ab"
            for call in (db.append_message(name, role="user", content="x"), db.transcript(name))
        ]
        calls.append(asyncio.create_task(db.acquire_lease("a", "turn")))
        await asyncio.sleep(0)
        for call in calls[::2]:
            call.cancel()
        closing = asyncio.create_task(db.close())
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        await closing
    expected = [asyncio.CancelledError, errors.StoreUnreachable]
    assert [type(each) for each in outcomes] == [expected[number % 2] for number in range(len(calls))]


@pytest.mark.usefixtures("quick_deadlines")
async def test_silent_server_is_not_tried_once_for_each_waiting_call(network: postgres_proxy.Proxy) -> None:
    db = SessionDB(network.through(postgres.fresh()), write_timeout=HASTY)
    async with asyncio.timeout(HANGS), AsyncSessionDB(db) as shared:
        network.hold()
        outcomes = await asyncio.gather(
            *(shared.append_message(f"c{number}", role="user", content="x") for number in range(300)),
            *(shared.transcript(f"c{number}") for number in range(100)),
            *(shared.acquire_lease(f"c{number}", "turn") for number in range(100)),
            return_exceptions=True,
        )
    assert {type(each) for each in outcomes} == {errors.StoreUnreachable}


def test_statement_that_takes_too_long_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    address = postgres.fresh()
    monkeypatch.setattr(connection, "STATEMENT_TIMEOUT", 0.1)
    with SessionDB(address) as db, SessionDB(address) as hasty:
        steps.begin(db, "c")

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


def test_full_server_says_so_and_takes_the_message_when_there_is_room() -> None:
    address = postgres.fresh()
    with SessionDB(address) as db, postgres.psycopg.connect(address, autocommit=True) as server:
        steps.begin(db, "c")
        server.execute(FULL)
        for call in (
            lambda: steps.STEPS["append"].run(db, {"id": "c"}),
            lambda: steps.STEPS["append_batch"].run(db, {"id": "c"}),
        ):
            with pytest.raises(errors.StoreFull, match="Free some space"):
                call()
        server.execute("DROP TRIGGER full_disk ON messages; DROP FUNCTION full_disk")
        assert db.append_message("c", role="user", content="x").seq == 5
        assert db.admin.fsck().ok


@pytest.mark.parametrize("kind", ["cut", "held", "unheard", "terminated"])
def test_nothing_is_lost_over_a_network_that_keeps_failing(
    kind: str, network: postgres_proxy.Proxy, zygote: zygotes.Zygote
) -> None:
    address, chance = postgres.fresh(), random.Random(kind)
    if kind == "cut":
        network.dawdle(kind)

    def terminate_some() -> None:
        theirs = "SELECT pid FROM pg_stat_activity WHERE application_name = 'storm'"
        pids = [pid for (pid,) in postgres.admin().execute(theirs).fetchall()]
        chosen = chance.sample(pids, chance.randint(1, len(pids)))
        postgres.admin().execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) pid", (chosen,))

    fault = {
        "cut": network.reset,
        "held": lambda: network.hold_for(chance.uniform(0.0, 0.1)),
        "unheard": lambda: network.trap(b"COMMIT", postgres_proxy.UNHEARD),
        "terminated": terminate_some,
    }[kind]
    through = network.through(address, application_name="storm")
    assert load.problems_after(zygote, address, [fault] * 2, through) == []
