"""PostgreSQL schemas: created once, migrated, repaired, and used by roles that may not create anything."""

from __future__ import annotations

import itertools
import json
import logging
import re
import secrets
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from holdfast import SessionDB, errors, fault_points, types
from holdfast.store import conversation_row
from holdfast.store.driver import SCHEMA_PLAN, SchemaPlan, Tx
from holdfast.store.postgres import definitions
from holdfast.store.postgres import migration as postgres_migration
from tests.faults import forbidden_states
from tests.support import conversations as steps
from tests.support import polling, postgres

Connection = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture
def empty() -> str:
    """The address of a schema with nothing in it."""
    return postgres.with_schema(postgres.dsn(), postgres.empty_schema())


@pytest.fixture
def made() -> Iterator[Connection]:
    """A connection to a store that no process has open."""
    with psycopg.connect(postgres.fresh(), autocommit=True) as connection:
        yield connection


def _faults(connection: Connection) -> list[str]:
    return [str(fault) for fault in postgres_migration.Migration(connection.execute).faults()]


def _prepare(connection: Connection, plan: SchemaPlan = SCHEMA_PLAN) -> None:
    postgres_migration.Migration(connection.execute, plan).prepare(1.0)


def _label(connection: Connection, key: str, value: str) -> None:
    connection.execute("UPDATE meta SET value = %s WHERE key = %s", (value, key))


def _lines(connection: Connection, key: str) -> list[str]:
    return [row[0] for row in connection.execute("SELECT value FROM meta WHERE key = %s", (key,))]


# --- making -----------------------------------------------------------------------------------------------


def test_concurrent_opens_create_the_schema_once(points: list[str]) -> None:
    name = f'"Not ""there"", {secrets.token_hex(4)}"'  # the schema that the address names does not exist

    def open_store(_: int) -> None:
        with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
            connection.execute(f"SET search_path = {name}")
            _prepare(connection)
            assert _faults(connection) == []

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(open_store, range(4)))
    postgres.admin().execute(f"DROP SCHEMA {name} CASCADE")
    assert points.count("migrate.CREATE TABLE messages") == points.count("migrate.labels") == 1


def test_interrupted_creation_is_repeated(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server ends the connection at a point, as it does when the client dies."""
    every = len(definitions.declared_schema().statements)
    for cut in (0, every // 2, every + 1):
        with psycopg.connect(empty, autocommit=True) as connection:
            reached = itertools.count()

            def hook(_: str, pid: int = connection.info.backend_pid, cut: int = cut, reached: Any = reached) -> None:
                if next(reached) == cut:
                    monkeypatch.setattr(fault_points, "hook", None)
                    postgres.admin().execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))

            monkeypatch.setattr(fault_points, "hook", hook)
            with pytest.raises(psycopg.OperationalError):
                _prepare(connection)
        with psycopg.connect(empty) as connection:
            assert connection.execute("SELECT to_regclass('meta')").fetchone() == (None,)
    with psycopg.connect(empty, autocommit=True) as connection:
        _prepare(connection)
        assert _faults(connection) == []


def test_store_of_an_older_revision_is_completed(made: Connection) -> None:
    made.execute("DROP TABLE pins, blob_parts; ALTER TABLE audit DROP COLUMN redacted_at CASCADE")
    made.execute("DROP INDEX inbox_waiting; ALTER TABLE leases DROP COLUMN boot")
    made.execute("ALTER TABLE conversations DROP COLUMN folder CASCADE")
    made.execute("DROP FUNCTION append_message; DROP TRIGGER tombstone_is_immutable ON tombstones")
    made.execute("DELETE FROM meta WHERE key IN ('schema_shape', 'schema_cookie')")
    _label(made, "schema_revision", "1")
    _prepare(made)
    assert _faults(made) == []
    assert _lines(made, "schema_revision") == [str(SCHEMA_PLAN.revision)]
    made.execute("SELECT redacted_at FROM audit; SELECT seq FROM pins; SELECT folder FROM conversations")


def test_objects_of_an_older_version_are_kept_and_not_required(made: Connection) -> None:
    made.execute("CREATE FUNCTION of_old() RETURNS bigint LANGUAGE sql AS 'SELECT 1'")
    (shape,) = _lines(made, "schema_shape")
    recorded = [*json.loads(shape), ["function", "of_old", "", "SELECT 1"], ["index", "of_old", "messages", "x"]]
    _label(made, "schema_shape", json.dumps(recorded))
    _label(made, "schema_revision", "1")
    _prepare(made)
    assert postgres_migration.Migration(made.execute).faults() == []
    # Processes of that version may still be at work.
    assert made.execute("SELECT of_old()").fetchone() == (1,)


def test_store_of_an_older_format_is_migrated_step_by_step(made: Connection) -> None:
    steps = {
        2: ["UPDATE meta SET value = value || '+2' WHERE key = 'generation'"],
        3: ["DELETE FROM meta WHERE key = 'x'"],
    }
    plan = SchemaPlan(format=3, revision=9, steps=steps)
    _prepare(made, plan)
    assert (_lines(made, "schema_format"), _lines(made, "generation")) == (["3"], ["1+2"])
    with pytest.raises(errors.SchemaTooNew, match=r"schema 3; .* up to 1"):
        _prepare(made)


def test_objects_of_a_newer_version_are_left_alone(made: Connection) -> None:
    made.execute("CREATE TRIGGER newer BEFORE INSERT ON meta FOR EACH ROW WHEN (false) EXECUTE FUNCTION refuse('x')")
    changed = "BEFORE UPDATE ON tombstones FOR EACH ROW EXECUTE FUNCTION refuse('newer words')"
    made.execute(f"CREATE OR REPLACE TRIGGER tombstone_is_immutable {changed}")
    _label(made, "schema_revision", "99")
    _prepare(made)
    assert _faults(made) == []
    assert _lines(made, "schema_revision") == ["99"]
    made.execute("INSERT INTO tombstones VALUES ('d', 1.0)")
    with pytest.raises(psycopg.errors.IntegrityError, match="newer words"):
        made.execute("UPDATE tombstones SET id = 'e'")


def test_tables_of_another_program_are_refused_and_left_alone(empty: str) -> None:
    with psycopg.connect(empty, autocommit=True) as connection:
        connection.execute("CREATE TABLE messages (words text); CREATE TABLE meta (key text, value text)")
        with pytest.raises(errors.StoreUnusable, match=r"another program \(.*messages.*search_path"):
            _prepare(connection)
        assert connection.execute("SELECT to_regclass('sessions')").fetchone() == (None,)


def test_changed_objects_are_recreated_at_open_and_logged(made: Connection, caplog: pytest.LogCaptureFixture) -> None:
    made.execute(
        "DROP TRIGGER tombstone_is_immutable ON tombstones; ALTER TABLE messages DISABLE TRIGGER message_is_counted"
    )
    made.execute(_IDLE)
    with caplog.at_level(logging.WARNING, "holdfast.store"):
        _prepare(made)
    assert _faults(made) == []
    assert len(caplog.messages) == 3
    assert "Schema repair: recreating the trigger tombstone_is_immutable, which is missing." in caplog.messages


def test_migration_waits_for_writers_without_blocking_them(made: Connection) -> None:
    waits = "SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s"
    plan = SCHEMA_PLAN._replace(revision=SCHEMA_PLAN.revision + 1)
    upgrades = list[Future[None]]()

    def step(tx: Tx) -> None:
        here = conversation_row.lock(tx, "talk")
        tx.run("memory_insert", owner="me", text="tea", at=1.0, updated_at=1.0, source=None)
        upgrades.append(threads.submit(_prepare, made, plan))
        polling.until(lambda: postgres.admin().execute(waits, (made.info.backend_pid,)).fetchone() == ("Lock",))
        tx.run("title_set", key=here.key, title="written meanwhile")

    address = postgres.with_schema(postgres.dsn(), _schema(made))
    with ThreadPoolExecutor(1) as threads, SessionDB(address) as db:
        steps.begin(db, "talk", "a")
        db.driver.write("test", step)
        upgrades[0].result(60)
        assert db.conversation("talk").title == "written meanwhile"
    assert _lines(made, "schema_revision") == [str(plan.revision)]


# --- faults -----------------------------------------------------------------------------------------------

_RULE = "ALTER TABLE hides DROP CONSTRAINT hide_range_is_ordered, ADD CONSTRAINT hide_range_is_ordered CHECK"
_IDLE = "CREATE OR REPLACE FUNCTION message_is_counted() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
FAULTS = {
    "constraint sessions_conversation_live_fkey of sessions is disabled": "ALTER TABLE sessions DISABLE TRIGGER ALL",
    "constraint hide_range_is_ordered of hides was never checked against the existing rows": (
        f"{_RULE} (from_seq <= to_seq) NOT VALID"
    ),
    "constraint hide_range_is_ordered of hides differs from its declaration": f"{_RULE} (true)",
    "index memories_once differs from its declaration": (
        "DROP INDEX memories_once; CREATE INDEX memories_once ON memories (owner)"
    ),
    "function message_is_counted differs from its declaration": _IDLE,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_schema_fault_is_reported_and_repaired(fault: str, made: Connection) -> None:
    made.execute(FAULTS[fault])
    assert f"the {fault}" in _faults(made)
    postgres_migration.Migration(made.execute).repair(1.0)
    assert _faults(made) == []


def test_rows_that_violate_a_lost_constraint_are_found(made: Connection) -> None:
    made.execute("ALTER TABLE memories DROP CONSTRAINT memories_text_check")
    made.execute("INSERT INTO memories (owner, text, at, updated_at) VALUES ('o', '', 1, 1)")
    with pytest.raises(psycopg.errors.CheckViolation):
        postgres_migration.Migration(made.execute).repair(1.0)
    assert postgres_migration.Migration(made.execute).violations() == ["1 rows break memories_text_check of memories"]
    assert _faults(made) == ["the constraint memories_text_check of memories is missing"]


def _schema(connection: Connection) -> str:
    return str(connection.execute("SELECT current_schema()::text").fetchall()[0][0])


def test_functions_find_their_tables_with_any_search_path(made: Connection) -> None:
    with SessionDB(postgres.with_schema(postgres.dsn(), _schema(made))) as db:
        forbidden_states.populate(db)
    schema = _schema(made)
    insert = f"INSERT INTO {schema}.messages VALUES (5, %s, 1, %s, 'user', 1, '{{}}', decode(repeat('00', 16), 'hex'))"
    with psycopg.connect(postgres.dsn(), autocommit=True) as elsewhere:
        with pytest.raises(psycopg.errors.IntegrityError, match="numbered without gaps"):
            elsewhere.execute(insert, (9, "u"))
        elsewhere.execute(insert, (4, "u"))
        assert elsewhere.execute(f"SELECT last_seq FROM {schema}.conversations WHERE key = 5").fetchone() == (4,)


def test_server_that_is_too_old_is_refused_and_left_alone(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_migration, "MIN_SERVER_VERSION", 99)
    with pytest.raises(errors.StoreUnusable, match=r"This server is PostgreSQL \d\d; at least 99 is needed\."):
        SessionDB(empty)
    with psycopg.connect(empty) as connection:
        assert connection.execute("SELECT to_regclass('meta')").fetchone() == (None,)


def test_database_with_another_encoding_is_refused_with_the_remedy() -> None:
    name, admin = postgres.empty_schema(), postgres.admin()  # an unused name
    admin.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0 STRATEGY file_copy")
    try:
        address = postgres.dsn().replace(f"/{postgres.DATABASE}?", f"/{name}?")
        with pytest.raises(errors.StoreUnusable, match=r"as LATIN1, .*createdb .*--encoding=UTF8"):
            SessionDB(address)
    finally:
        admin.execute(f"DROP DATABASE {name}")


# --- a role that may make nothing ---------------------------------------------------------------------------


@pytest.fixture
def granted(made: Connection, role: str) -> str:
    """The address of the store for a role with the privileges that it needs, and no other."""
    for statement in postgres_migration.grant_statements(role, _schema(made)):
        made.execute(statement)
    return postgres.with_schema(postgres.dsn(), _schema(made), role)


@pytest.mark.parametrize(
    "sql",
    [
        "ALTER TABLE messages DISABLE TRIGGER ALL",
        "TRUNCATE meta",
        "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
        "SET session_replication_role = replica",
    ],
)
def test_granted_role_cannot_remove_the_guards_of_the_rows(sql: str, granted: str) -> None:
    with psycopg.connect(granted) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(sql)


LACKING = {
    "REVOKE DELETE ON leases FROM {role}": r"lacks privileges .*: DELETE on leases\. .*holdfast db init",
    "REVOKE ALL ON ALL TABLES IN SCHEMA {schema} FROM {role}": r"DELETE on arrivals, .* and \d+ more\. .*db init",
    "DROP TRIGGER tombstone_is_immutable ON tombstones": "tombstone_is_immutable is missing; .* may not create it",
}


@pytest.mark.parametrize("change", LACKING)
def test_role_with_too_few_privileges_gets_the_reason(change: str, made: Connection, role: str, granted: str) -> None:
    made.execute(change.format(role=role, schema=_schema(made)))
    with pytest.raises(errors.StoreUnusable, match=LACKING[change]):
        SessionDB(granted)


def test_role_that_cannot_create_the_store_is_refused_with_the_reason(empty: str, role: str) -> None:
    schema = re.findall(r"search_path%3D(\w+)", empty)[0]
    postgres.admin().execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
    message = f"{schema} holds no store, .* holdfast db init ADDRESS --role {role}"
    with pytest.raises(errors.StoreUnusable, match=message):
        SessionDB(postgres.with_schema(postgres.dsn(), schema, role))
    with pytest.raises(errors.StoreUnusable, match=f"no schema nowhere, and the role {role} may not create one"):
        SessionDB(postgres.with_schema(postgres.dsn(), "nowhere", role))


def test_granted_role_works_without_leases_when_their_table_is_lost(made: Connection, granted: str, role: str) -> None:
    with SessionDB(granted) as db:
        steps.begin(db, "talk", "a")
        made.execute(f"REVOKE ALL ON leases FROM {role}")
        assert isinstance(db.begin_compaction("talk"), types.Snapshot)
        made.execute("DROP TABLE leases")
        assert isinstance(db.begin_compaction("talk"), types.Snapshot)
