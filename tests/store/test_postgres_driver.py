"""The PostgreSQL driver: durability of contended appends, bounded waits, deferred changes and savepoints."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast import SessionDB, errors
from holdfast.store import queries
from holdfast.store.driver import Tx
from holdfast.store.postgres import notify, transaction
from tests.support import conversations, mail, postgres, two_hosts


@pytest.fixture
def db(address: str) -> Iterator[SessionDB]:
    with SessionDB(address) as made:
        yield made


# --- durability and time -----------------------------------------------------------------------------------------


def test_contended_append_is_on_disk_when_acknowledged(pair: two_hosts.Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    conversations.begin(pair.one, "talk", "a")
    committed: list[Any] = []
    one = transaction.PostgresTransaction.one

    def record(tx: transaction.PostgresTransaction, query: str, /, **values: Any) -> Any:
        row = one(tx, query, **values)
        if query == "append_message" and row is not None and values["unsynced"]:
            # Its commit is the last that was written, and the disk need not have it yet.
            committed.append(postgres.admin().execute("SELECT pg_current_wal_insert_lsn()").fetchone())
        return row

    monkeypatch.setattr(transaction.PostgresTransaction, "one", record)
    for db in (pair.one, pair.other) * 10:
        db.append_message("talk", role="user", content="b")
        flushed = "SELECT pg_current_wal_flush_lsn() >= %s::pg_lsn"
        assert not committed or postgres.admin().execute(flushed, committed[-1]).fetchone() == (True,)
    assert len(committed) > 10  # each host notices the other by the first wrong prediction
    assert [message.seq for message in pair.one.transcript("talk")] == list(range(1, 22))


def test_only_writes_without_durability_skip_the_disk(pair: two_hosts.Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: dict[str, str] = {}
    begin = transaction.PostgresTransaction.begin

    def noted(tx: transaction.PostgresTransaction, operation: str, how: str) -> None:
        begin(tx, operation, how)
        (waits[operation],) = tx.execute("SHOW synchronous_commit").fetchone()

    monkeypatch.setattr(transaction.PostgresTransaction, "begin", noted)
    (reply,) = pair.one.mail.replies(mail.answered(pair.one).id)
    pair.one.mail.begin_sending(pair.one.mail.acquire_chat_lease("out:far:1"), reply.id)
    pair.one.mail.mark_delivered(reply.id)
    assert {operation for operation, value in waits.items() if value == "off"} == {"take", "begin", "send"}
    assert {"arrive", "append", "settle", "delivered"} <= waits.keys()


def test_leases_use_the_clock_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host whose clock is a day ahead takes nothing over."""
    address = postgres.fresh()
    with SessionDB(address) as db, SessionDB(address) as ahead:
        conversations.begin(db, "talk", "a")
        db.acquire_lease("talk", "turn", "me", 60)
        monkeypatch.setattr("time.time", lambda: 2e9)
        with pytest.raises(errors.Busy) as refusal:
            ahead.acquire_lease("talk", "turn", "you", 60)
        assert 0 < refusal.value.expires_in <= 60


# --- refusals and imports -----------------------------------------------------------------------------------------


def test_error_does_not_contain_the_refused_row(pair: two_hosts.Pair) -> None:
    conversations.begin(pair.one, "talk", "a")
    with pytest.raises(errors.StoreRefused) as refusal:
        pair.one.driver.write(
            "test",
            lambda tx: tx.run(
                "import_message", conversation=1, seq=2, session=1, uid="u", role="user", at=1.0, body="secret",
                digest=b"short", redacted_at=None,
            ),
        )  # fmt: skip
    assert "secret" not in two_hosts.full_message(refusal.value)


def test_psycopg_is_loaded_on_demand_and_its_absence_names_the_extra(path: Path) -> None:
    code = f"""
import sys
from holdfast import SessionDB, errors, installation
SessionDB({str(path)!r}).close()
assert not [name for name in sys.modules if name.startswith(("psycopg", "holdfast.store.postgres"))]
sys.modules["psycopg"] = None
try:
    SessionDB("postgresql://host/db")
except errors.PartMissing as error:
    assert installation.install_command("pg") in str(error)
else:
    raise AssertionError
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_scrub_by_a_role_that_does_not_own_the_tables_is_refused(pair: two_hosts.Pair, role: str) -> None:
    pair.one.driver.allow(role)
    with SessionDB(pair.one.driver.target.replace(f"{postgres.USER}@", f"{role}@")) as poor:
        conversations.begin(poor, "talk", "a")
        with pytest.raises(errors.StoreUnusable, match="Only the owner of the tables"):
            poor.admin.scrub()
    assert pair.one.admin.get_meta("scrubbed_at") is None
    pair.one.admin.scrub()
    assert pair.one.admin.get_meta("scrubbed_at") is not None


def test_rewrite_has_no_statement_timeout_and_restores_it(db: SessionDB, monkeypatch: pytest.MonkeyPatch) -> None:
    execute, limits = transaction.PostgresTransaction.execute, set[str]()

    def record(tx: transaction.PostgresTransaction, sql: str, *values: Any) -> Any:
        if sql.startswith("VACUUM"):
            limits.add(*execute(tx, "SHOW statement_timeout").fetchone())
        return execute(tx, sql, *values)

    monkeypatch.setattr(transaction.PostgresTransaction, "execute", record)
    db.admin.scrub()
    assert limits == {"0"}
    assert db.driver.read(lambda tx: tx.execute("SHOW statement_timeout").fetchone()) == ("10min",)


# --- refusals within a step -------------------------------------------------------------------------------------------


def test_step_that_ignores_a_refusal_is_rolled_back(db: SessionDB) -> None:
    def step(tx: Tx) -> None:
        tx.run("meta_set", key="noted", value="x")
        with pytest.raises(errors.StoreRefused):
            tx.one("route_insert", key="", conversation=None, at=1.0)

    with pytest.raises(errors.StoreRefused, match="rolled back"):
        db.driver.write("test", step)
    assert db.admin.get_meta("noted") is None


def defer_refused(tx: Tx) -> None:
    tx.defer("meta_set", key="noted", value="x")
    for _ in range(2):
        tx.defer("route_insert", key="chat", conversation=None, at=1.0)


def test_deferred_changes_are_undone_with_their_savepoint(db: SessionDB) -> None:
    def step(tx: Tx) -> None:
        with pytest.raises(errors.StoreRefused), tx.savepoint():
            defer_refused(tx)
        tx.run("meta_set", key="after", value="y")

    db.driver.write("test", step)
    assert (db.admin.get_meta("noted"), db.admin.get_meta("after")) == (None, "y")


def test_step_that_fails_before_its_first_statement_undoes_no_other(db: SessionDB) -> None:
    def group(tx: Tx) -> None:
        tx.shared = True
        with tx.savepoint():
            tx.defer("meta_set", key="noted", value="x")
        with pytest.raises(errors.InvalidArgument), tx.savepoint():
            raise errors.InvalidArgument("no statement was sent")

    db.driver.write("test", group)
    assert db.admin.get_meta("noted") == "x"


def test_refused_deferred_change_of_a_step_fails_the_group(db: SessionDB) -> None:
    def group(tx: Tx) -> None:
        tx.shared = True
        with tx.savepoint():
            tx.defer("meta_set", key="noted", value="x")
            tx.defer("route_insert", key="", conversation=None, at=1.0)
        # The change above is sent with this statement. The first step is reported as done, so the group must fail.
        with suppress(errors.InvalidArgument), tx.savepoint():
            try:
                tx.one("meta_get", key="noted")
            except errors.StoreRefused:
                raise errors.InvalidArgument("the step reports an error of its own") from None

    with pytest.raises(errors.StoreError):
        db.driver.write("test", group)
    assert db.admin.get_meta("noted") is None


def test_deferred_changes_are_sent_before_the_next_query_and_the_commit(db: SessionDB) -> None:
    keys = [f"key {number}" for number in range(transaction.MAX_DEFERRED + 2)]

    def step(tx: Tx) -> None:
        tx.defer("meta_set", key="first", value="x")
        assert tx.one("meta_get", key="first") == ("x",)
        for key in keys:
            tx.defer("meta_set", key=key, value="x")

    db.driver.write("meta", step)
    assert all(db.driver.read(lambda tx: [tx.one("meta_get", key=key) for key in keys]))


def test_no_query_uses_md5() -> None:
    """It is not available on servers that permit only approved functions."""
    sql = [notify._SEND, notify.SELECT_CHANNEL, queries.schema("postgres")]
    for folder in ("postgres", "postgres_search", "postgres_catalog"):
        sql += queries.load(folder).values()
    assert not [each for each in sql if "md5(" in each]
