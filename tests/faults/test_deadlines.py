"""Every call to PostgreSQL returns, also while the server is frozen or the backend of an open connection is gone."""

from __future__ import annotations

import asyncio
import itertools
import os
import queue
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast import AsyncSessionDB, SessionDB, errors, types
from holdfast.store import notifications
from holdfast.store.postgres import notify
from tests.faults import checker, proxy, steps, storms
from tests.support import postgres

# A call that takes this long hangs; the limits under test are seconds.
HANGS = 60.0
HASTY, PATIENT = 0.3, 60.0  # write_timeout

pytestmark = pytest.mark.usefixtures("quick_deadlines")


class Call:
    """A call in a thread of its own, which does not keep the test from failing when it hangs."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call, self._outcome = call, queue.Queue[Any]()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self._outcome.put(self._call())
        except BaseException as error:
            self._outcome.put(error)

    def outcome(self) -> Any:
        return self._outcome.get(timeout=HANGS)


@contextmanager
def frozen(server: postgres.Server) -> Iterator[None]:
    os.kill(server.pid, signal.SIGSTOP)  # first: it makes no more children
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    for child in children:
        os.kill(int(child), signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in (server.pid, *map(int, children)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


# --- a frozen primary and a promoted standby ----------------------------------------------------------------------


@pytest.fixture
def primary() -> Iterator[postgres.Server]:
    with postgres.Server(settings=postgres.REPLICATES) as made:
        yield made


def administer(server: postgres.Server, *statements: str) -> Any:
    with postgres.psycopg.connect(server.dsn(), autocommit=True) as connection:
        (*_, last) = [connection.execute(statement) for statement in statements]
        return last.fetchone() if last.description else None


def wait_for_standbys(primary: postgres.Server, names: str) -> None:
    """Let commits wait for these from now on, or from a moment later."""
    administer(primary, f"ALTER SYSTEM SET synchronous_standby_names = '{names}'", "SELECT pg_reload_conf()")


def either(primary: postgres.Server, standby: postgres.Server, schema: str) -> str:
    """The address of whichever of the two takes writes."""
    one, other = primary.address, standby.address
    address = one.dsn(schema, tcp=True, target_session_attrs="read-write", connect_timeout="2")
    return address.replace(f":{one.port}/", f":{one.port},127.0.0.1:{other.port}/")


class Client:
    """A program that appends numbered messages to its own conversation and reads them back, whatever happens."""

    def __init__(self, address: str, name: str, write_timeout: float) -> None:
        self.name, self.acknowledged, self.failed, self.read = name, list[str](), 0, 0
        self._db, self._done = SessionDB(address, write_timeout=write_timeout), threading.Event()
        self._db.create_session(name, source="test")
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._write, self._look)]
        for thread in self._threads:
            thread.start()

    def _write(self) -> None:
        uid = uuid.uuid4().hex
        while not self._done.is_set():
            try:
                self._db.append_message(self.name, role="user", content=uid, uid=uid)
            except (errors.StoreUnreachable, errors.StoreBusy):
                self.failed += 1
            else:
                self.acknowledged.append(uid)
                uid = uuid.uuid4().hex

    def _look(self) -> None:
        while not self._done.is_set():
            with suppress(errors.StoreUnreachable):
                self.read = max(self.read, len(self._db.transcript(self.name)))

    def close(self) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join(HANGS)
            assert not thread.is_alive()
        Call(self._db.close).outcome()


def test_clients_of_a_frozen_primary_go_on_with_the_promoted_standby(
    primary: postgres.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "HEARTBEAT", 0.2)
    administer(primary, "CREATE SCHEMA store")
    with postgres.Server(settings=postgres.REPLICATES, primary=primary) as standby:
        wait_for_standbys(primary, "*")
        synchronous = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
        storms.wait_until(lambda: administer(primary, synchronous), "the standby is synchronous")
        address, heard = either(primary, standby, "store"), queue.Queue[notifications.Hint]()
        hasty = [Client(address, f"c{number}", HASTY) for number in range(2)]
        patient = Client(address, "c2", PATIENT)
        clients = [*hasty, patient]
        listener = SessionDB(address, write_timeout=HASTY)
        listener.driver.listen(heard.put)
        assert heard.get(timeout=HANGS) == notifications.LOST

        def went_on() -> bool:
            return all(
                len(client.acknowledged) > before + 5 and client.read > before + 5
                for client, before in zip(clients, known, strict=True)
            )

        known = [0] * len(clients)
        storms.wait_until(went_on, "every client has written and read")
        with frozen(primary):
            assert administer(standby, "SELECT pg_promote()") == (True,)
            known = [len(client.acknowledged) for client in clients]
            storms.wait_until(went_on, "every client goes on with the new primary")
            assert all(client.failed for client in hasty)
            assert patient.failed == 0
            while heard.get(timeout=HANGS) != notifications.LOST:
                pass  # the listener has another connection
            for client in clients:
                client.close()
            Call(listener.close).outcome()
            with SessionDB(standby.dsn("store")) as db:
                for client in clients:
                    stored = [message.content for message in db.transcript(client.name)]
                    assert set(client.acknowledged) <= set(stored)
                    assert len(stored) == len(set(stored)) <= len(client.acknowledged) + 1
                assert checker.verify(db, also=[client.name for client in clients]) == []


def test_commit_that_waits_for_an_absent_standby_is_bounded_and_stored_once(primary: postgres.Server) -> None:
    with SessionDB(primary.dsn(), write_timeout=3.0) as db:  # enough for another attempt, which waits for the commit
        steps.say(db, "c")
        wait_for_standbys(primary, "absent")
        numbers = itertools.count()

        def append(number: int) -> types.Receipt:
            return db.append_message("c", role="user", content="x", uid=f"x{number}")

        while not isinstance(outcome := Call(lambda: append(next(numbers))).outcome(), errors.HoldfastError):
            pass
        waiting = len(db.transcript("c")) - 4
        assert isinstance(outcome, errors.StoreUnreachable)
        wait_for_standbys(primary, "")
        storms.wait_until(lambda: len(db.transcript("c")) == 5 + waiting, "the commit ends")
        assert append(waiting).duplicate


# --- every kind of call -------------------------------------------------------------------------------------------

CALLS: dict[str, Callable[[SessionDB], object]] = {
    "append": lambda db: db.append_message("c", role="user", content="x", uid="x"),
    "batch": lambda db: db.append_messages("c", [{"role": "user", "content": name} for name in "ab"]),
    "create": lambda db: db.create_session("new", source="test"),
    "lease": lambda db: db.acquire_lease("c", "compact", "me"),
    "compaction": lambda db: db.commit_compaction(db.snapshot("c"), summary="gist", cut_seq=2),
    "read": lambda db: db.transcript("c"),
    "context": lambda db: db.context("c"),
    "search": lambda db: db.search("a"),
    "rebuild": lambda db: db.admin.rebuild_search_index(),
    "delete": lambda db: db.delete_conversation("d"),
    "blob": lambda db: db.blobs.put(b"x" * 100_000),
    "facts": lambda db: db.admin.info(),
    "status": lambda db: db.driver.status(),
    "fsck": lambda db: db.admin.fsck(),
    "repair": lambda db: db.driver.repair_schema(),
    "grant": lambda db: db.driver.allow(postgres.USER),
    "scrub": lambda db: db.admin.scrub(),
    "prune": lambda db: db.admin.plan_prune(older_than_days=0),
}


@pytest.fixture
def network() -> Iterator[proxy.Proxy]:
    with proxy.Proxy() as made:
        yield made


def call_all(network: proxy.Proxy, fault: Callable[[], None], write_timeout: float) -> dict[str, Any]:
    """The outcome of every call, each over a connection that was idle when the fault began."""
    address = network.through(postgres.fresh())
    stores = {name: SessionDB(address, write_timeout=write_timeout) for name in CALLS}
    for name in "cd":
        steps.say(stores["append"], name)
    fault()
    calls = {name: Call(lambda db=db, name=name: CALLS[name](db)) for name, db in stores.items()}  # type: ignore[misc]
    outcomes = {name: call.outcome() for name, call in calls.items()}
    for db in stores.values():
        Call(db.close).outcome()
    return outcomes


def test_every_call_returns_while_the_server_is_silent(network: proxy.Proxy) -> None:
    outcomes = call_all(network, network.hold, HASTY)
    assert {name: out for name, out in outcomes.items() if not isinstance(out, errors.StoreUnreachable)} == {}
    opened = Call(lambda: SessionDB(network.through(postgres.fresh()), write_timeout=HASTY)).outcome()
    assert isinstance(opened, errors.StoreUnreachable)


def test_every_call_goes_on_over_a_new_connection_when_the_backend_of_its_own_is_gone(network: proxy.Proxy) -> None:
    outcomes = call_all(network, network.orphan, PATIENT)
    assert {name: out for name, out in outcomes.items() if isinstance(out, BaseException)} == {}


def test_answer_that_is_stuck_on_its_way_counts_as_silence(network: proxy.Proxy) -> None:
    """Its backend executes the statement for as long as it waits for its client."""

    def read(tx: Any) -> None:
        network.stall()
        tx.execute("SELECT repeat('x', 100000) FROM generate_series(1, 1000)")

    with SessionDB(network.through(postgres.fresh()), write_timeout=HASTY) as db:
        assert isinstance(Call(lambda: db.driver.read(read)).outcome(), errors.StoreUnreachable)


def test_large_request_on_a_slow_network_is_waited_for(network: proxy.Proxy) -> None:
    """The backend waits for its client, and the client for the socket, while the kernel sends the request."""
    network.throttle(1_000_000)
    with SessionDB(network.through(postgres.fresh()), write_timeout=HASTY) as db:
        steps.say(db, "c")
        (receipt,) = Call(
            lambda: db.append_messages("c", [types.NewMessage(role="user", content="x" * 4_000_000)])
        ).outcome()
        assert receipt.seq == 5


def test_cancelled_calls_and_close_return_while_the_server_is_silent(network: proxy.Proxy) -> None:
    db = SessionDB(network.through(postgres.fresh()), write_timeout=HASTY)
    for name in "ab":
        steps.say(db, name)

    async def story() -> None:
        async with asyncio.timeout(HANGS):
            adb = AsyncSessionDB(db)
            network.hold()
            calls = [
                asyncio.create_task(call)
                for name in "ab"
                for call in (adb.append_message(name, role="user", content="x"), adb.transcript(name))
            ]
            calls.append(asyncio.create_task(adb.acquire_lease("a", "turn")))
            await asyncio.sleep(0)
            for call in calls[::2]:
                call.cancel()
            closing = asyncio.create_task(adb.close())
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            await closing
            assert [type(each) for each in outcomes] == [
                asyncio.CancelledError if number % 2 == 0 else errors.StoreUnreachable for number in range(len(calls))
            ]

    assert Call(lambda: asyncio.run(story())).outcome() is None


def test_calls_that_wait_for_others_are_not_kept_waiting_by_each_of_them(network: proxy.Proxy) -> None:
    """A silent server is tried a few times for all of them, and not once for each."""
    db = SessionDB(network.through(postgres.fresh()), write_timeout=HASTY)

    async def story() -> None:
        async with asyncio.timeout(HANGS), AsyncSessionDB(db) as adb:
            network.hold()
            outcomes = await asyncio.gather(
                *(adb.append_message(f"c{number}", role="user", content="x") for number in range(300)),
                *(adb.transcript(f"c{number}") for number in range(100)),
                *(adb.acquire_lease(f"c{number}", "turn") for number in range(100)),
                return_exceptions=True,
            )
            assert {type(each) for each in outcomes} == {errors.StoreUnreachable}

    assert Call(lambda: asyncio.run(story())).outcome() is None
