"""A PostgreSQL schema is made once, whoever comes and whatever happens meanwhile; who may not create it is told why."""

from __future__ import annotations

import json
import logging
import re
import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
    """A connection to a store that nobody has open."""
    with psycopg.connect(postgres.fresh(), autocommit=True) as connection:
        yield connection


def _told(connection: Connection) -> list[str]:
    return [str(fault) for fault in postgres_migration.Migration(connection.execute).faults()]


def _label(connection: Connection, key: str, value: str) -> None:
    connection.execute("UPDATE meta SET value = %s WHERE key = %s", (value, key))


def _lines(connection: Connection, key: str) -> list[str]:
    return [row[0] for row in connection.execute("SELECT value FROM meta WHERE key = %s", (key,))]


# --- making -----------------------------------------------------------------------------------------------


def test_schema_is_made_once_by_all_who_open_it_at_once(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reached: list[str] = []
    monkeypatch.setattr(fault_points, "hook", reached.append)

    def opened(_: int) -> None:
        with psycopg.connect(empty, autocommit=True) as connection:
            postgres_migration.Migration(connection.execute).prepare(1.0)
            assert _told(connection) == []

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(opened, range(8)))
    assert reached.count("migrate.CREATE TABLE messages") == 1
    assert reached.count("migrate.labels") == 1


def test_making_that_was_cut_off_is_begun_again(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    every = len(definitions.declared_schema().statements)
    for cut in (0, every // 3, every - 1, every, every + 1):
        _cut_off(empty, cut, monkeypatch)
        with psycopg.connect(empty) as connection:
            assert connection.execute("SELECT to_regclass('meta')").fetchone() == (None,)
    with psycopg.connect(empty, autocommit=True) as connection:
        postgres_migration.Migration(connection.execute).prepare(1.0)
        assert _told(connection) == []


def _cut_off(address: str, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server ends the connection at that point, as it does when the client dies."""
    reached = 0
    with psycopg.connect(address, autocommit=True) as connection:

        def hook(point: str) -> None:
            nonlocal reached
            if reached == at:
                monkeypatch.setattr(fault_points, "hook", None)
                postgres.admin().execute("SELECT pg_terminate_backend(%s, 5000)", (connection.info.backend_pid,))
            reached += 1

        monkeypatch.setattr(fault_points, "hook", hook)
        with pytest.raises(psycopg.OperationalError):
            postgres_migration.Migration(connection.execute).prepare(1.0)


def test_schema_that_the_address_names_is_made_too() -> None:
    """Also one whose name needs quotes."""
    name = f'"Not ""there"", {secrets.token_hex(4)}"'
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        connection.execute(f"SET search_path = {name}")
        postgres_migration.Migration(connection.execute).prepare(1.0)
        assert _told(connection) == []
        assert definitions.quote(_schema(connection)) == name
        connection.execute(f"DROP SCHEMA {name} CASCADE")


def test_store_of_an_older_revision_gets_what_it_lacks(made: Connection) -> None:
    made.execute("DROP TABLE pins, blob_parts; ALTER TABLE audit DROP COLUMN redacted_at CASCADE")
    made.execute("DROP INDEX inbox_waiting; ALTER TABLE leases DROP COLUMN boot")
    made.execute("ALTER TABLE conversations DROP COLUMN folder CASCADE")
    made.execute("DROP FUNCTION append_message; DROP TRIGGER tombstone_is_immutable ON tombstones")
    made.execute("DELETE FROM meta WHERE key IN ('schema_shape', 'schema_cookie')")
    _label(made, "schema_revision", "1")
    postgres_migration.Migration(made.execute).prepare(1.0)
    assert _told(made) == []
    assert _lines(made, "schema_revision") == [str(SCHEMA_PLAN.revision)]
    made.execute("SELECT redacted_at FROM audit; SELECT seq FROM pins; SELECT folder FROM conversations")


def test_functions_answer_processes_of_an_older_version_as_they_always_did(made: Connection) -> None:
    """One that was started before goes by position, and is not asked to know more."""
    shapes = {
        "lock_conversation": "''",
    }
    widths = {name: made.execute(f"SELECT * FROM {name}({given})").description for name, given in shapes.items()}
    assert {name: len(columns or ()) for name, columns in widths.items()} == {
        "lock_conversation": 17,
    }


def test_what_an_older_version_declared_and_this_one_does_not_is_nobodys_to_miss(made: Connection) -> None:
    made.execute("CREATE FUNCTION of_old() RETURNS bigint LANGUAGE sql AS 'SELECT 1'")
    (shape,) = _lines(made, "schema_shape")
    recorded = [*json.loads(shape), ["function", "of_old", "", "SELECT 1"], ["index", "of_old", "messages", "x"]]
    _label(made, "schema_shape", json.dumps(recorded))
    _label(made, "schema_revision", "1")
    postgres_migration.Migration(made.execute).prepare(1.0)
    assert postgres_migration.Migration(made.execute).faults() == []
    # Processes of that version may still be at work.
    assert made.execute("SELECT of_old()").fetchone() == (1,)


def test_store_of_an_older_format_is_changed_step_by_step(made: Connection) -> None:
    steps = {
        2: ["UPDATE meta SET value = value || '+2' WHERE key = 'generation'"],
        3: ["DELETE FROM meta WHERE key = 'x'"],
    }
    plan = SchemaPlan(format=3, revision=9, steps=steps)
    postgres_migration.Migration(made.execute, plan).prepare(1.0)
    assert (_lines(made, "schema_format"), _lines(made, "generation")) == (["3"], ["1+2"])
    with pytest.raises(errors.SchemaTooNew, match=r"schema 3; .* up to 1"):
        postgres_migration.Migration(made.execute).prepare(1.0)


def test_what_a_newer_version_added_is_left_alone(made: Connection) -> None:
    made.execute("CREATE TRIGGER newer BEFORE INSERT ON meta FOR EACH ROW WHEN (false) EXECUTE FUNCTION refuse('x')")
    made.execute("CREATE OR REPLACE TRIGGER tombstone_is_immutable BEFORE UPDATE ON tombstones FOR EACH ROW "
                 "EXECUTE FUNCTION refuse('newer words')")  # fmt: skip
    _label(made, "schema_revision", "99")
    postgres_migration.Migration(made.execute).prepare(1.0)
    assert _told(made) == []
    assert _lines(made, "schema_revision") == ["99"]
    row = made.execute("SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgname = 'tombstone_is_immutable' "
                       "AND tgrelid = 'tombstones'::regclass").fetchone()  # fmt: skip
    assert row is not None
    assert "newer words" in row[0]


def test_tables_of_another_program_are_refused_and_left_alone(empty: str) -> None:
    with psycopg.connect(empty, autocommit=True) as connection:
        connection.execute("CREATE TABLE messages (words text); CREATE TABLE meta (key text, value text)")
        with pytest.raises(errors.StoreUnusable, match=r"another program \(.*messages.*search_path"):
            postgres_migration.Migration(connection.execute).prepare(1.0)
        assert connection.execute("SELECT to_regclass('sessions')").fetchone() == (None,)


def test_what_was_changed_is_made_again_at_the_next_open_and_said(
    made: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    made.execute(
        "DROP TRIGGER tombstone_is_immutable ON tombstones; ALTER TABLE messages DISABLE TRIGGER message_is_counted"
    )
    with caplog.at_level(logging.WARNING, "holdfast.store"):
        postgres_migration.Migration(made.execute).prepare(1.0)
    assert _told(made) == []
    assert caplog.messages == [
        "Schema repair: recreating the trigger tombstone_is_immutable, which is missing.",
        "Schema repair: recreating the trigger message_is_counted, which is disabled.",
    ]


def test_function_that_was_changed_is_made_again_at_the_next_open_and_said(
    made: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    made.execute(_IDLE)
    with caplog.at_level(logging.WARNING, "holdfast.store"):
        postgres_migration.Migration(made.execute).prepare(1.0)
    assert _told(made) == []
    assert caplog.messages == [
        "Schema repair: recreating the function message_is_counted, which differs from its declaration."
    ]


def test_store_is_changed_by_who_waits_for_its_writers_and_holds_nothing_that_they_need(made: Connection) -> None:
    (schema, pid), outcomes = made.execute("SELECT current_schema(), pg_backend_pid()").fetchone() or ("", 0), []

    def upgrade() -> None:
        try:
            plan = SCHEMA_PLAN._replace(revision=SCHEMA_PLAN.revision + 1)
            postgres_migration.Migration(made.execute, plan).prepare(1.0)
            outcomes.append("upgraded")
        except psycopg.Error as error:
            outcomes.append(error)

    thread = threading.Thread(target=upgrade)
    waits = "SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s"

    def step(tx: Tx) -> None:
        here = conversation_row.lock(tx, "talk")
        tx.run("memory_insert", owner="me", text="tea", at=1.0, updated_at=1.0, source=None)
        thread.start()
        polling.until(lambda: postgres.admin().execute(waits, (pid,)).fetchone() == ("Lock",))
        tx.run("title_set", key=here.key, title="written meanwhile")

    with SessionDB(postgres.with_schema(postgres.dsn(), schema)) as db:
        steps.begin(db, "talk", "a")
        db.driver.write("test", step)
        thread.join(60)
        assert outcomes == ["upgraded"]
        assert db.conversation("talk").title == "written meanwhile"


# --- faults -----------------------------------------------------------------------------------------------

_RULE = "ALTER TABLE hides DROP CONSTRAINT hide_range_is_ordered, ADD CONSTRAINT hide_range_is_ordered CHECK"
_IDLE = "CREATE OR REPLACE FUNCTION message_is_counted() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
FAULTS = {
    "constraint sessions_conversation_live_fkey of sessions is disabled": "ALTER TABLE sessions DISABLE TRIGGER ALL",
    "constraint leases_pkey of leases is missing": "ALTER TABLE leases DROP CONSTRAINT leases_pkey",
    "constraint hide_range_is_ordered of hides was never checked against the existing rows": (
        f"{_RULE} (from_seq <= to_seq) NOT VALID"
    ),
    "constraint hide_range_is_ordered of hides differs from its declaration": f"{_RULE} (true)",
    "index memories_once differs from its declaration": (
        "DROP INDEX memories_once; CREATE INDEX memories_once ON memories (owner)"
    ),
    "table pins is missing": "DROP TABLE pins",
    "function message_is_counted differs from its declaration": _IDLE,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_of_the_schema_is_told_and_mended(fault: str, made: Connection) -> None:
    made.execute(FAULTS[fault])
    assert f"the {fault}" in _told(made)
    postgres_migration.Migration(made.execute).repair(1.0)
    assert _told(made) == []


def test_opening_does_not_make_people_forget_a_lost_constraint(made: Connection) -> None:
    made.execute(
        "ALTER TABLE leases DROP CONSTRAINT leases_pkey; ALTER TABLE hides DROP CONSTRAINT hide_is_shown_later"
    )
    postgres_migration.Migration(made.execute).prepare(1.0)
    assert _told(made) == ["the constraint hide_is_shown_later of hides is missing",
                           "the constraint leases_pkey of leases is missing"]  # fmt: skip


def test_constraint_that_rows_break_is_not_mended_but_they_are_found(made: Connection) -> None:
    made.execute("ALTER TABLE memories DROP CONSTRAINT memories_text_check")
    made.execute("INSERT INTO memories (owner, text, at, updated_at) VALUES ('o', '', 1, 1)")
    with pytest.raises(psycopg.errors.CheckViolation):
        postgres_migration.Migration(made.execute).repair(1.0)
    assert postgres_migration.Migration(made.execute).violations() == ["1 rows break memories_text_check of memories"]
    assert _told(made) == ["the constraint memories_text_check of memories is missing"]


def test_store_says_what_is_wrong_with_its_schema(made: Connection) -> None:
    with SessionDB(postgres.with_schema(postgres.dsn(), _schema(made))) as db:
        made.execute("DROP TRIGGER tombstone_is_immutable ON tombstones")
        assert "the trigger tombstone_is_immutable is missing" in [bad.detail for bad in db.admin.fsck().violations]
        db.driver.repair_schema()
        assert db.admin.fsck().ok


def _schema(connection: Connection) -> str:
    row = connection.execute("SELECT current_schema()::text").fetchone()
    assert row is not None
    return str(row[0])


def test_functions_find_their_tables_whatever_the_search_path(made: Connection) -> None:
    with SessionDB(postgres.with_schema(postgres.dsn(), _schema(made))) as db:
        forbidden_states.furnish(db)
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


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_database_that_cannot_keep_every_text_is_refused_with_the_command_that_makes_one(encoding: str) -> None:
    name, admin = postgres.empty_schema(), postgres.admin()  # a name nobody has
    admin.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0 STRATEGY file_copy")
    try:
        address = postgres.dsn().replace(f"/{postgres.DATABASE}?", f"/{name}?")
        with pytest.raises(errors.StoreUnusable, match=rf"as {encoding}, .*createdb .*--encoding=UTF8"):
            SessionDB(address)
    finally:
        admin.execute(f"DROP DATABASE {name}")


def test_store_is_not_begun_by_who_only_looks(empty: str) -> None:
    with pytest.raises(errors.StoreUnusable, match=r"There is no store in the schema t\w+ of this database\."):
        SessionDB(empty, create=False)
    with pytest.raises(errors.StoreUnusable, match="There is no store in the schema nowhere of this database"):
        SessionDB(postgres.with_schema(postgres.dsn(), "nowhere"), create=False)
    SessionDB(empty).close()
    SessionDB(empty, create=False).close()


# --- a role that may make nothing ---------------------------------------------------------------------------


@pytest.fixture
def role() -> Iterator[str]:
    name = postgres.empty_schema()  # a name nobody has
    admin = postgres.admin()
    admin.execute(f"CREATE ROLE {name} NOLOGIN")
    yield name
    admin.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


Granted = Callable[[Connection, str], str]


@pytest.fixture
def granted() -> Granted:
    """The address of a store for a role with the rights that it needs, and no other."""

    def grant(connection: Connection, role: str) -> str:
        for statement in postgres_migration.grant_statements(role, _schema(connection)):
            connection.execute(statement)
        return postgres.with_schema(postgres.dsn(), _schema(connection), role)

    return grant


def test_role_without_the_right_to_make_anything_runs_a_store(made: Connection, role: str, granted: Granted) -> None:
    with SessionDB(granted(made, role)) as db:
        forbidden_states.furnish(db)  # appends, compacts, branches, deletes
        assert db.admin.fsck().ok
        db.admin.prune_empty_sessions()


@pytest.mark.parametrize(
    "sql",
    [
        "ALTER TABLE messages DISABLE TRIGGER ALL",
        "DROP TRIGGER message_is_counted ON messages",
        "TRUNCATE meta",
        "CREATE TABLE mine (x bigint)",
        "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
        "SET session_replication_role = replica",
    ],
)
def test_such_a_role_cannot_take_down_what_guards_the_rows(
    sql: str, made: Connection, role: str, granted: Granted
) -> None:
    with psycopg.connect(granted(made, role)) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(sql)


def test_such_a_role_is_told_who_must_make_the_store(empty: str, role: str) -> None:
    schema = re.findall(r"search_path%3D(\w+)", empty)[0]
    postgres.admin().execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
    with pytest.raises(
        errors.StoreUnusable, match=f"{schema} holds no store, .* holdfast db init ADDRESS --role {role}"
    ):
        SessionDB(postgres.with_schema(postgres.dsn(), schema, role))


def test_such_a_role_is_told_which_rights_it_lacks(made: Connection, role: str, granted: Granted) -> None:
    address = granted(made, role)
    made.execute(f"REVOKE DELETE ON leases FROM {role}")
    with pytest.raises(errors.StoreUnusable, match=r"lacks privileges .*: DELETE on leases\. .*holdfast db init"):
        SessionDB(address)


def test_such_a_role_is_told_that_it_has_no_rights_at_all(made: Connection, role: str) -> None:
    made.execute(f"GRANT USAGE ON SCHEMA {_schema(made)} TO {role}")
    lacking = r"lacks privileges .*: DELETE on arrivals, .* and \d+ more\. .*db init"
    with pytest.raises(errors.StoreUnusable, match=lacking):
        SessionDB(postgres.with_schema(postgres.dsn(), _schema(made), role))


def test_such_a_role_is_told_what_is_missing(made: Connection, role: str, granted: Granted) -> None:
    address = granted(made, role)
    made.execute("DROP TRIGGER tombstone_is_immutable ON tombstones")
    with pytest.raises(
        errors.StoreUnusable, match=r"the trigger tombstone_is_immutable is missing; .* may not create it"
    ):
        SessionDB(address)


def test_such_a_role_works_without_leases_when_their_table_is_lost(
    made: Connection, role: str, granted: Granted, caplog: pytest.LogCaptureFixture
) -> None:
    with SessionDB(granted(made, role)) as db:
        steps.begin(db, "talk", "a")
        made.execute("DROP TABLE leases")
        assert isinstance(db.begin_compaction("talk"), types.Snapshot)
        assert "recreated" not in caplog.text
        postgres_migration.Migration(made.execute).repair(1.0)
        granted(made, role)
        assert isinstance(db.begin_compaction("talk"), types.Lease)


def test_such_a_role_runs_on_a_schema_that_was_only_moved(made: Connection, role: str, granted: Granted) -> None:
    """As after a restore of a dump: all is there, written by other transactions."""
    address = granted(made, role)
    _label(made, "schema_cookie", "of another server")
    with SessionDB(address) as db:
        assert db.admin.fsck().ok


def test_schema_that_is_not_there_and_may_not_be_made_is_named(role: str) -> None:
    with pytest.raises(errors.StoreUnusable, match=f"no schema nowhere, and the role {role} may not create one"):
        SessionDB(postgres.with_schema(postgres.dsn(), "nowhere", role))


def test_rights_are_those_of_rows_alone() -> None:
    text = json.dumps(postgres_migration.grant_statements("r", "s"))
    assert not re.search(r"TRUNCATE|TRIGGER|REFERENCES|ALL|CREATE", text)
    assert text.count('\\"s\\".\\"messages\\"') == 1
