"""Connections to PostgreSQL: what is set on them, when one is given up for another, and what is waited for."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import SessionDB, errors, fault_points
from holdfast.store.driver import Tx
from holdfast.store.postgres import connection
from holdfast.store.postgres import errors as postgres_errors
from tests.support import conversations, polling, postgres, postgres_proxy, two_hosts

# --- what is set ------------------------------------------------------------------------------------------------


def with_setting(address: str, setting: str) -> str:
    """The address of a store for whose sessions something else is the default."""
    return f"{address}%20{postgres.quote(f'-c{setting}', safe='')}"


@pytest.mark.parametrize(("durability", "kept"), [("power-loss", "on"), ("process-crash", "off")])
def test_what_is_acknowledged_is_on_the_disk_though_the_server_would_not_wait_for_it(
    durability: str, kept: str
) -> None:
    with SessionDB(with_setting(postgres.fresh(), "synchronous_commit=off"), durability=durability) as db:
        for _ in range(2):
            assert db.admin.info()["synchronous_commit"] == kept
            cut(db)  # so is a later connection


@pytest.mark.parametrize("level", ["serializable", r"repeatable\ read"])
def test_writers_go_on_beside_each_other_whatever_isolation_the_role_has_by_default(level: str) -> None:
    """A step that waited for another finds what that one wrote; it is not refused because of it."""
    address = with_setting(postgres.fresh(), f"default_transaction_isolation={level}")
    pair = two_hosts.Pair(address)
    conversations.begin(pair.one, "talk", "a")
    for name in ("b", "c"):
        pair.other.append_message("talk", role="user", content=name)
    outcome = pair.meanwhile(
        two_hosts.append(pair.one, "talk", "d"), lambda: pair.other.append_message("talk", role="user", content="e").seq
    )
    assert outcome == 5
    isolation = "SELECT current_setting('transaction_isolation')"
    assert pair.other.driver.write("test", lambda tx: tx.execute(isolation).fetchone()) == ("read committed",)  # type: ignore[attr-defined]
    pair.close()


# --- connections that are lost ----------------------------------------------------------------------------------


def cut(db: SessionDB) -> None:
    """All connections that wait for the next call, on the side of the server, and without a word to us."""
    pids = [tx.connection.pgconn.backend_pid for tx in db.driver._idle]
    assert pids
    for pid in pids:
        postgres.admin().execute("SELECT pg_terminate_backend(%s, 10000)", (pid,))


CALLS: dict[str, Callable[[SessionDB], object]] = {
    "facts": lambda db: db.admin.info(),
    "status": lambda db: db.driver.status(),
    "integrity_errors": lambda db: db.driver.integrity_errors(),
    "schema_faults": lambda db: db.driver.schema_faults(),
    "mend": lambda db: db.driver.repair_schema(),
    "fsck": lambda db: db.admin.fsck(),
    "allow": lambda db: db.driver.allow(postgres.USER),
    "scrub": lambda db: db.driver.scrub(),
    "shrink": lambda db: db.driver.shrink(),
    "read": lambda db: db.transcript("talk"),
    "append": lambda db: db.append_message("talk", role="user", content="b"),
    "search": lambda db: db.search("a"),
}


@pytest.fixture
def db() -> Iterator[SessionDB]:
    with SessionDB(postgres.fresh()) as made:
        conversations.begin(made, "talk", "a")
        yield made


def test_no_call_fails_because_its_connection_was_lost_while_it_waited(db: SessionDB) -> None:
    for name, call in CALLS.items():
        cut(db)
        try:
            call(db)
        except errors.HoldfastError as error:
            pytest.fail(f"{name}: {error}")


def test_one_lost_connection_is_taken_for_all_that_wait(db: SessionDB, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each of them would be found lost by itself, and waited for longer every time."""
    met = threading.Barrier(4, timeout=10)
    conversations.at_once(*[lambda: db.driver.read(lambda _: met.wait())] * 4)
    assert len(db.driver._idle) == 4
    cut(db)
    queued: list[str] = []
    monkeypatch.setattr(fault_points, "hook", lambda point: queued.append(point) if point == "append.queued" else None)
    db.append_message("talk", role="user", content="b")
    assert len(queued) == 2


def end_of(tx: Any) -> Callable[[], bool]:
    """Whether the server has ended this transaction's session."""
    pid = tx.connection.pgconn.backend_pid
    return lambda: postgres.admin().execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchone() is None


@pytest.mark.parametrize("limit", ["standstill", "transaction_timeout"])
def test_a_write_that_the_server_ended_for_standing_still_is_done_again(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = postgres.fresh()
    if limit == "standstill":
        monkeypatch.setattr(connection, "IDLE_IN_TRANSACTION_TIMEOUT", 0.2)
    elif postgres.admin().info.server_version < 170000:
        pytest.skip("this server has no such limit")
    else:
        address = with_setting(address, "transaction_timeout=200ms")
    with SessionDB(address) as db:
        conversations.begin(db, "talk", "a")
        attempts: list[Tx] = []

        def step(tx: Tx) -> None:
            attempts.append(tx)
            if len(attempts) == 1:
                tx.one("meta_get", key="done")  # The transaction begins with its first statement.
                polling.until(end_of(tx))
            tx.run("meta_set", key="done", value=str(len(attempts)))

        db.driver.write("test", step)
        assert len(attempts) >= 2  # on a slow machine the limit may end others as well
        assert db.admin.get_meta("done") == str(len(attempts))


def test_a_write_goes_on_when_the_schema_is_changed_beside_it(db: SessionDB) -> None:
    """What a connection has prepared may not fit any more; another one prepares it anew."""
    other = "ALTER TABLE meta ALTER COLUMN value TYPE varchar"
    db.admin.set_meta("colour", "red")

    def step(tx: Tx) -> object:
        return tx.one("meta_get", key="colour")

    for _ in range(8):  # until it is prepared
        assert db.driver.write("test", step) == ("red",)
    with postgres.psycopg.connect(db.driver.target, autocommit=True) as owner:
        owner.execute(other)
    assert db.driver.write("test", step) == ("red",)


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("25P03", errors.StoreUnreachable),
        ("25P04", errors.StoreUnreachable),
        ("XX000", errors.StoreBroken),
        ("XX001", errors.StoreCorrupt),
        ("XX002", errors.StoreCorrupt),
        ("0A000", errors.StoreBroken),
    ],
)
def test_what_the_server_refuses_has_a_kind_of_its_own(state: str, kind: type[errors.StoreError]) -> None:
    assert type(postgres_errors.from_sqlstate(state, "said", "there")) is kind


# --- servers that take no writes, or nobody, for a while ----------------------------------------------------------


@pytest.fixture
def role() -> Iterator[str]:
    """One that may do everything and has settings of its own."""
    name, admin = f"r{postgres.secrets.token_hex(6)}", postgres.admin()
    admin.execute(f"CREATE ROLE {name} SUPERUSER LOGIN")
    yield name
    admin.execute(f"DROP ROLE {name}")


def test_a_store_that_takes_no_writes_for_a_while_is_waited_for(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a name leads to a standby until the primary is back: no connection to it is kept."""
    address = postgres.fresh().replace(f"{postgres.USER}@", f"{role}@")
    with SessionDB(address) as db:
        conversations.begin(db, "talk", "a")
        postgres.admin().execute(f"ALTER ROLE {role} SET default_transaction_read_only = on")
        cut(db)
        queued: list[str] = []

        def hook(point: str) -> None:
            queued.extend([point] if point == "append.queued" else [])
            if len(queued) == 3:
                postgres.admin().execute(f"ALTER ROLE {role} RESET default_transaction_read_only")

        monkeypatch.setattr(fault_points, "hook", hook)
        assert db.append_message("talk", role="user", content="b").seq == 2
        assert len(queued) >= 3


def test_a_store_that_takes_no_writes_says_so_and_takes_them_when_it_does_again(role: str) -> None:
    address = postgres.fresh().replace(f"{postgres.USER}@", f"{role}@")
    with SessionDB(address, write_timeout=0.1) as db:
        conversations.begin(db, "talk", "a")
        postgres.admin().execute(f"ALTER ROLE {role} SET default_transaction_read_only = on")
        cut(db)
        with pytest.raises(errors.StoreUnusable, match="read-only"):
            db.append_message("talk", role="user", content="b")
        assert conversations.contents(db.transcript("talk")) == ["a"]
        postgres.admin().execute(f"ALTER ROLE {role} RESET default_transaction_read_only")
        assert db.append_message("talk", role="user", content="b").seq == 2


def test_a_store_that_never_took_writes_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with SessionDB(with_setting(postgres.fresh(), "default_transaction_read_only=on")) as db:
        queued: list[str] = []
        monkeypatch.setattr(
            fault_points, "hook", lambda point: queued.append(point) if point.endswith("queued") else None
        )
        with pytest.raises(errors.StoreUnusable, match="primary"):
            db.create_session("talk", source="test")
        assert len(queued) == 1


@pytest.mark.parametrize(
    ("code", "words"),
    [("57P03", "das Datenbanksystem startet"), ("28P01", 'password authentication failed for user "me"')],
)
def test_a_server_that_lets_nobody_in_for_a_while_is_waited_for_by_who_was_in(
    code: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = postgres.fresh()
    with postgres_proxy.Proxy() as network, SessionDB(network.through(address)) as db:
        conversations.begin(db, "talk", "a")
        network.refuse(code, words)
        network.reset()

        def hook(point: str) -> None:
            if network.refused >= 2:
                network.admit()

        monkeypatch.setattr(fault_points, "hook", hook)
        assert db.append_message("talk", role="user", content="b").seq == 2
        assert network.refused >= 2


# --- notifications -----------------------------------------------------------------------------------


def test_a_receipt_does_not_wait_for_a_server_that_falls_silent_after_the_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message is stored, and its notification is sent by another thread."""
    receipts: list[int] = []
    with postgres_proxy.Proxy() as network, SessionDB(network.through(postgres.fresh()), write_timeout=60.0) as db:
        conversations.begin(db, "talk", "a")
        monkeypatch.setattr(fault_points, "hook", lambda point: network.hold() if point == "append.committed" else None)
        thread = threading.Thread(
            target=lambda: receipts.append(db.append_message("talk", role="user", content="b").seq)
        )
        thread.start()
        thread.join(60)
        assert receipts == [2]
        network.flow()


def test_of_several_servers_the_one_that_was_found_is_tried_first() -> None:
    """Else each connection would wait for those that are frozen or switched off and stand before it in the address."""
    server = postgres.shared()
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        silent.setblocking(False)
        schema = postgres.fresh().rpartition("search_path%3D")[2]
        port = silent.getsockname()[1]
        address = server.dsn(schema, tcp=True).replace("@127.0.0.1:", f"@127.0.0.1:{port},127.0.0.1:")
        with SessionDB(address, write_timeout=0.1) as db:
            for _ in range(3):
                db.driver._drop_idle()
                db.admin.info()
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):
            silent.accept()


@pytest.mark.parametrize("blind", [False, True], ids=["", "role"])
def test_only_the_same_backend_of_the_same_server_counts_as_working(blind: bool) -> None:
    """`blind`: the address sets a role that may not see the activity of its own login."""
    address, admin, key = postgres.fresh(), postgres.admin(), postgres.secrets.randbits(60)
    with SessionDB(address) as db:
        made: connection.Connector = db.driver._connector
        role = f"r{postgres.secrets.token_hex(6)}"
        admin.execute(f"CREATE ROLE {role}")
        tx = db.driver._connect()
        if blind:
            tx.execute(f"SET ROLE {role}")
            made.configure(tx.connection, tx.execute)
        backend = tx.connection.backend
        assert (backend.start is None) == blind
        assert not made._is_working(tx.connection)  # it has answered
        admin.execute("SELECT pg_advisory_lock(%s)", (key,))
        waiting = threading.Thread(target=tx.execute, args=(f"SELECT pg_advisory_lock({key})",))
        waiting.start()
        polling.until(lambda: made._is_working(tx.connection))
        for other in ({"pid": admin.info.backend_pid}, {"server_start": "1.0"}, {"start": "1.0"}):
            tx.connection.backend = backend._replace(**other)
            assert not made._is_working(tx.connection), other
        admin.execute("SELECT pg_advisory_unlock(%s)", (key,))
        waiting.join()
        tx.connection.close()
        admin.execute(f"DROP ROLE {role}")


# --- forks --------------------------------------------------------------------------------------------------------

FORKED = """
import gc, os, sys
from holdfast import SessionDB, errors
db = SessionDB(sys.argv[1])
db.create_session("talk", source="test")
db.append_message("talk", role="user", content="a")
pid = db.driver.read(lambda tx: tx.connection.pgconn.backend_pid)
child = os.fork()
if child == 0:
    append = lambda: db.append_message("talk", role="user", content="x")
    calls = [append, lambda: db.context("talk"), db.admin.fsck, db.admin.info]
    for call in calls:
        try:
            call()
        except errors.StoreForked:
            print("forked", flush=True)
    db.close()
    del db
    gc.collect()
    sys.exit()
os.waitpid(child, 0)
db.append_message("talk", role="user", content="b")
assert pid == db.driver.read(lambda tx: tx.connection.pgconn.backend_pid)
print([m.content for m in db.context("talk")], db.admin.fsck().ok)
"""


def test_a_store_in_a_forked_child_is_an_error_and_the_parent_goes_on_with_its_connection() -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKED, postgres.fresh()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["forked"] * 4 + ["['a', 'b'] True"]
