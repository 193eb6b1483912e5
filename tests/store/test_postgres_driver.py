"""The PostgreSQL driver: several writers of one conversation, connections that break, waits that take too long."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast import NewMessage, SessionDB, errors, fault_points
from holdfast.store import conversation_row
from holdfast.store.driver import Tx
from holdfast.store.postgres import driver as postgres_driver
from holdfast.store.postgres import transaction
from tests.support import conversations, mail, postgres, two_hosts

# --- several writers of one conversation ----------------------------------------------------------------------


def test_what_is_acknowledged_among_several_writers_is_on_the_disk(
    pair: two_hosts.Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversations.begin(pair.one, "talk", "a")
    committed: list[Any] = []
    one = transaction.PostgresTransaction.one

    def noted(tx: transaction.PostgresTransaction, query: str, /, **values: Any) -> Any:
        row = one(tx, query, **values)
        if query == "append_message" and row is not None and values["unsynced"]:
            # Its commit is the last that was written, and the disk need not have it yet.
            committed.append(postgres.admin().execute("SELECT pg_current_wal_insert_lsn()").fetchone())
        return row

    monkeypatch.setattr(transaction.PostgresTransaction, "one", noted)
    for number in range(20):
        for db in (pair.one, pair.other):
            db.append_message("talk", role="user", content=f"number {number}")
            flushed = "SELECT pg_current_wal_flush_lsn() >= %s::pg_lsn"
            assert not committed or postgres.admin().execute(flushed, committed[-1]).fetchone() == (True,)
    # Each learns that the other writes too from the first number it guesses wrong.
    assert len(committed) > 30
    assert [message.seq for message in pair.one.transcript("talk")] == list(range(1, 42))


def test_a_writer_cut_off_before_the_disk_has_its_message_writes_it_once(
    pair: two_hosts.Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversations.begin(pair.one, "talk", "a")
    for db in (pair.one, pair.other) * 2:
        db.append_message("talk", role="user", content="before")
    one = transaction.PostgresTransaction.one

    def cut(tx: transaction.PostgresTransaction, query: str, /, **values: Any) -> Any:
        if query == "flush_wal":
            tx.connection.close()
        return one(tx, query, **values)

    monkeypatch.setattr(transaction.PostgresTransaction, "one", cut)
    receipt = pair.one.append_message("talk", role="user", content="in doubt", uid="u")
    assert (receipt.seq, receipt.duplicate) == (6, True)
    assert [message.uid for message in pair.one.transcript("talk")].count("u") == 1


def test_only_what_need_not_outlast_a_power_cut_does_not_wait_for_the_disk(
    pair: two_hosts.Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
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


# --- connections that break -----------------------------------------------------------------------------------


def cut(name: str) -> None:
    postgres.admin().execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s", (name,)
    )


@pytest.mark.parametrize("point", ["queued", "begun", "message_insert", "committing", "committed"])
def test_an_append_whose_connection_is_cut_is_done_once(
    pair: two_hosts.Pair, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    conversations.begin(pair.one, "talk", "a")
    passed: list[str] = []

    def hook(name: str) -> None:
        passed.append(name)
        if name == f"append.{point}" and passed.count(name) == 1:
            cut(pair.name)

    pair.other.append_message("talk", role="user", content="b")
    monkeypatch.setattr(fault_points, "hook", hook)
    receipt = pair.other.append_message("talk", role="user", content="c")
    monkeypatch.setattr(fault_points, "hook", None)
    assert (receipt.seq, receipt.duplicate) == (3, False)
    assert conversations.contents(pair.one.transcript("talk")) == ["a", "b", "c"]
    assert pair.other.append_message("talk", role="user", content="d").seq == 4


def test_reading_goes_on_after_connections_were_cut(pair: two_hosts.Pair) -> None:
    conversations.begin(pair.one, "talk", "a")
    pair.other.transcript("talk")
    cut(pair.name)
    assert conversations.contents(pair.other.transcript("talk")) == ["a"]


def test_an_append_in_one_statement_survives_a_cut_too(pair: two_hosts.Pair) -> None:
    conversations.begin(pair.one, "talk", "a")
    pair.other.append_message("talk", role="user", content="b")
    cut(pair.name)
    assert pair.other.append_message("talk", role="user", content="c").seq == 3


# --- time -----------------------------------------------------------------------------------------------------


def test_a_write_that_waits_too_long_is_busy(pair: two_hosts.Pair) -> None:
    conversations.begin(pair.one, "talk", "a")
    address = pair.one.driver.target
    with SessionDB(f"{address}&application_name={pair.name}", write_timeout=0.2) as hasty:
        hasty.append_message("talk", role="user", content="b")
        busy: list[Any] = []

        def step(tx: Tx) -> None:
            conversation_row.lock(tx, "talk")
            for call in (
                lambda: hasty.append_message("talk", role="user", content="c"),
                lambda: hasty.append_messages("talk", [NewMessage(role="user", content=text) for text in "cd"]),
                lambda: hasty.end_conversation("talk", "done"),
            ):
                with pytest.raises(errors.StoreBusy) as refusal:
                    call()
                busy.append(refusal.value)

        pair.one.driver.write("test", step)
        assert len(busy) == 3
        assert hasty.append_message("talk", role="user", content="c").seq == 3


def test_leases_run_on_the_clock_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host whose clock is a day ahead takes nothing over."""
    address = postgres.fresh()
    with SessionDB(address) as db, SessionDB(address) as ahead:
        conversations.begin(db, "talk", "a")
        db.acquire_lease("talk", "turn", "me", 60)
        monkeypatch.setattr("time.time", lambda: 2e9)
        with pytest.raises(errors.Busy) as refusal:
            ahead.acquire_lease("talk", "turn", "you", 60)
        assert 0 < refusal.value.expires_in <= 60


# --- what is refused, and what is loaded --------------------------------------------------------------------------


def test_an_error_does_not_carry_the_row_that_was_refused(pair: two_hosts.Pair) -> None:
    conversations.begin(pair.one, "talk", "a")
    with pytest.raises(errors.StoreRefused) as refusal:
        pair.one.driver.write(
            "test",
            lambda tx: tx.run(
                "import_message", conversation=1, seq=2, session=1, uid="u", role="user", at=1.0, body="secret",
                digest=b"short", redacted_at=None,
            ),
        )  # fmt: skip
    assert "secret" not in two_hosts.told(refusal.value)


def test_psycopg_is_loaded_by_those_who_need_it_and_its_absence_says_how_to_get_it(tmp_path: Path) -> None:
    code = f"""
import sys
from holdfast import SessionDB, errors
SessionDB({str(tmp_path / "store.db")!r}).close()
assert "psycopg" not in sys.modules
assert not [name for name in sys.modules if name.startswith("holdfast.store.postgres")]
sys.modules["psycopg"] = None
try:
    SessionDB("postgresql://host/db")
except errors.PartMissing as error:
    assert "pip install 'holdfast[pg]'" in str(error)
else:
    raise AssertionError
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_only_the_owner_of_the_tables_may_do_is_not_claimed_to_be_done(pair: two_hosts.Pair) -> None:
    role, admin = f"r{postgres.secrets.token_hex(6)}", postgres.admin()
    admin.execute(f"CREATE ROLE {role} LOGIN")
    try:
        pair.one.driver.allow(role)
        address = pair.one.driver.target.replace(f"{postgres.USER}@", f"{role}@")
        with SessionDB(address) as poor:
            conversations.begin(poor, "talk", "a")
            with pytest.raises(errors.StoreUnusable, match="Only the owner of the tables"):
                poor.admin.scrub()
        assert pair.one.admin.get_meta("scrubbed_at") is None
        pair.one.admin.scrub()
        assert pair.one.admin.get_meta("scrubbed_at") is not None
    finally:
        admin.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_tables_are_written_anew_however_long_it_takes(pair: two_hosts.Pair) -> None:
    with pair.one.driver._transaction() as tx:
        limits: list[str] = []

        def execute(sql: str, values: object = None) -> object:
            if sql.startswith("VACUUM"):
                limits.extend(tx.execute("SHOW statement_timeout").fetchone())
            return tx.execute(sql, values)

        postgres_driver.rewrite_tables(execute, ("meta", "audit"), 1.0)
    assert limits == ["0", "0"]
    with SessionDB(pair.one.driver.target) as db:
        db.driver.rewrite("scrub", ("meta",))
        with db.driver._transaction() as tx:
            assert tx.execute("SHOW statement_timeout").fetchone() == ("10min",)


# --- what was refused within a step -----------------------------------------------------------------------------------


def twice(tx: Tx) -> None:
    for _ in range(2):
        tx.defer("meta_set", key="noted", value="x")
    tx.defer("route_insert", key="chat", conversation=None, at=1.0)
    tx.defer("route_insert", key="chat", conversation=None, at=1.0)


def test_a_step_that_went_on_after_a_refusal_is_not_taken_for_done() -> None:
    def step(tx: Tx) -> None:
        tx.run("meta_set", key="noted", value="x")
        with pytest.raises(errors.StoreRefused):
            tx.one("route_insert", key="", conversation=None, at=1.0)

    with SessionDB(postgres.fresh()) as db:
        with pytest.raises(errors.StoreRefused, match="rolled back"):
            db.driver.write("test", step)
        assert db.admin.get_meta("noted") is None


def test_what_was_gathered_within_a_savepoint_is_undone_with_it() -> None:
    def step(tx: Tx) -> None:
        with pytest.raises(errors.StoreRefused), tx.savepoint():
            twice(tx)
        tx.run("meta_set", key="after", value="y")

    with SessionDB(postgres.fresh()) as db:
        db.driver.write("test", step)
        assert (db.admin.get_meta("noted"), db.admin.get_meta("after")) == (None, "y")


def test_step_that_raises_before_its_first_statement_undoes_no_other_step_of_its_group() -> None:
    def note(tx: Tx) -> None:
        tx.defer("meta_set", key="noted", value="x")

    def fail(_: Tx) -> None:
        raise errors.InvalidArgument("no statement was sent")

    def group(tx: Tx) -> None:
        tx.shared = True
        with tx.savepoint():
            note(tx)
        with pytest.raises(errors.InvalidArgument), tx.savepoint():
            fail(tx)

    with SessionDB(postgres.fresh()) as db:
        db.driver.write("test", group)
        assert db.admin.get_meta("noted") == "x"


def test_refused_change_of_one_step_is_not_undone_as_if_it_belonged_to_the_next() -> None:
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

    with SessionDB(postgres.fresh()) as db:
        with pytest.raises(errors.StoreError):
            db.driver.write("test", group)
        assert db.admin.get_meta("noted") is None
