"""PostgreSQL servers that die, freeze, fail over or are full: nothing is lost, and clients go on by themselves."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast import SessionDB, errors, types
from tests.faults import checker, kill_points, load, steps
from tests.faults import zygote as zygotes
from tests.faults.load import HASTY, PATIENT, Call
from tests.support import polling, postgres

KILLS = 5


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Server]:
    """A server of this module's own, with a disk it waits for."""
    with postgres.Server(fsync=True) as made:
        yield made


@pytest.fixture
def address(server: postgres.Server) -> str:
    schema = f"s{time.monotonic_ns()}"
    with postgres.psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
    return server.dsn(schema)


def test_server_killed_under_load_loses_nothing_and_all_go_on(
    zygote: zygotes.Zygote, server: postgres.Server, address: str
) -> None:
    chance = random.Random("postmaster")

    def kill() -> None:
        time.sleep(chance.uniform(0.0, 0.03))
        server.kill()
        server.start()

    assert load.problems_after(zygote, address, [kill] * KILLS) == []


def test_token_that_a_server_forgot_writes_nothing(server: postgres.Server, address: str) -> None:
    """Leases and claims are not synced. A process that held one when the server died writes nothing once another
    process holds it, or the same process acquired it again under an explicit name."""
    now = [1_000.0]
    with SessionDB(address, clock=lambda: now[0]) as db:
        for name in (None, "me"):
            c = f"c of {name}"
            steps.begin(db, c)
            key, arrival = f"route:chat:{c}", steps.came(db, c).id
            lease, claim = db.acquire_lease(c, "turn", name, 30.0), db.mail.acquire_chat_lease(key, 30.0, name)
            server.kill()
            server.start()
            now[0] += 31
            db.acquire_lease(c, "turn", name, 30.0)
            db.mail.acquire_chat_lease(key, 30.0, name)
            with pytest.raises(errors.LeaseLost):
                db.append_message(c, role="user", content="late", lease=lease)
            with pytest.raises(errors.LeaseLost):
                db.mail.begin_inbound(claim, arrival, c)
            assert (len(db.transcript(c)), db.mail.open_inbound(f"chat:{c}")[0].attempts) == (4, 0)


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


@pytest.mark.usefixtures("quick_deadlines")
@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="children are found in /proc")
def test_frozen_server_is_given_up_and_the_unanswered_write_is_stored_once(
    server: postgres.Server, address: str
) -> None:
    with SessionDB(address, write_timeout=0.2) as db:
        steps.begin(db, "c")
        with frozen(server):
            with pytest.raises(errors.StoreUnreachable):
                db.append_message("c", role="user", content="sent", uid="sent")
            with pytest.raises(errors.StoreUnreachable):
                db.transcript("c")
            with pytest.raises(errors.StoreUnreachable):
                SessionDB(address, write_timeout=0.2)
        receipt = db.append_message("c", role="user", content="sent", uid="sent")
        assert (receipt.seq, db.conversation("c").last_seq) == (5, 5)
        assert db.admin.fsck().ok


def test_client_stopped_in_a_write_blocks_others_only_for_a_while(
    zygote: zygotes.Zygote,
) -> None:
    address = postgres.fresh()
    with SessionDB(address) as db:
        args = {**steps.STEPS["commit"].prepare(db, "c"), "step": "commit"}
        at = kill_points.course_of("commit", postgres.fresh()).names.index("commit.committing")
        stopped = zygote.run(steps.perform, address, args, points=("commit",), at=at, fault=signal.SIGSTOP)
        assert stopped.state == "stopped"
        # The server rolls back the transaction of the stopped process.
        assert db.append_message("c", role="user", content="waited", uid="waited").seq == 6
        assert db.head("c").id == "c-1"
        # It begins anew when it goes on, and finds that nothing has changed for it.
        assert (zygote.wait(stopped.pid, signal.SIGCONT).error, db.head("c").id) == (None, "c-2")
        assert db.admin.fsck().ok


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
    """A program that appends messages to its own conversation, whatever happens."""

    def __init__(self, address: str, name: str, write_timeout: float) -> None:
        self.name, self.acknowledged, self.failed, self._done = name, list[str](), 0, threading.Event()
        self._db = SessionDB(address, write_timeout=write_timeout)
        self._db.create_session(name, source="test")
        self._writing = Call(self._write)

    def _write(self) -> None:
        while not self._done.is_set():
            uid = f"{self.name}.{len(self.acknowledged)}"
            try:
                self._db.append_message(self.name, role="user", content=uid, uid=uid)
            except (errors.StoreUnreachable, errors.StoreBusy):
                self.failed += 1
            else:
                self.acknowledged.append(uid)

    def close(self) -> None:
        self._done.set()
        assert self._writing.outcome() is None
        Call(self._db.close).outcome()


@pytest.mark.usefixtures("quick_deadlines")
def test_clients_of_a_frozen_primary_go_on_with_the_promoted_standby(primary: postgres.Server) -> None:
    administer(primary, "CREATE SCHEMA store")
    with postgres.Server(settings=postgres.REPLICATES, primary=primary) as standby:
        wait_for_standbys(primary, "*")
        synchronous = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
        polling.until(lambda: administer(primary, synchronous), "the standby is synchronous")
        address = either(primary, standby, "store")
        hasty, patient = clients = [Client(address, "c0", HASTY), Client(address, "c1", PATIENT)]
        polling.until(lambda: all(len(client.acknowledged) > 5 for client in clients), "every client has written")
        with frozen(primary):
            polling.until(lambda: hasty.failed, "a client with little patience fails")
            assert administer(standby, "SELECT pg_promote()") == (True,)
            known = max(len(client.acknowledged) for client in clients)
            polling.until(
                lambda: all(len(client.acknowledged) > known + 5 for client in clients), "every client goes on"
            )
            for client in clients:
                client.close()
            assert patient.failed == 0
            with SessionDB(standby.dsn("store")) as db:
                for client in clients:
                    stored = [message.content for message in db.transcript(client.name)]
                    assert set(client.acknowledged) <= set(stored)
                    assert len(stored) == len(set(stored)) <= len(client.acknowledged) + 1
                assert checker.verify(db, also=[client.name for client in clients]) == []


@pytest.mark.usefixtures("quick_deadlines")
def test_commit_that_waits_for_an_absent_standby_is_bounded_and_stored_once(primary: postgres.Server) -> None:
    with SessionDB(primary.dsn(), write_timeout=3.0) as db:  # enough for another attempt, which waits for the commit
        steps.begin(db, "c")
        wait_for_standbys(primary, "absent")
        numbers = itertools.count()

        def append(number: int) -> types.Receipt:
            return db.append_message("c", role="user", content="x", uid=f"x{number}")

        while not isinstance(outcome := Call(lambda: append(next(numbers))).outcome(), errors.HoldfastError):
            pass
        waiting = len(db.transcript("c")) - 4
        assert isinstance(outcome, errors.StoreUnreachable)
        wait_for_standbys(primary, "")
        polling.until(lambda: len(db.transcript("c")) == 5 + waiting, "the commit ends")
        assert append(waiting).duplicate
