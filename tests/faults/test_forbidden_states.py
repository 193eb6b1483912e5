"""Both databases refuse every forbidden state; fsck finds those that can be seen in tables without constraints."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import apsw
import psycopg
import pytest

from holdfast import types
from holdfast.store import queries
from holdfast.store.db import SessionDB
from holdfast.store.postgres import definitions
from tests.faults import checker, forbidden_states
from tests.faults.forbidden_states import in_postgres
from tests.support import memory_folders, postgres

STATES = {**forbidden_states.VISIBLE, **forbidden_states.INVISIBLE}
# Without a constraint a replacement has nothing to replace. Three states only SQLite's own integrity check can find.
CHECKED_BY_SQLITE = ("lease for an unknown purpose", "route without a name", "second budget")
VISIBLE = {name: sql for name, sql in forbidden_states.VISIBLE.items() if "OR REPLACE" not in sql}
TABLES = definitions.declared_schema().names("table")
# The search index can be thrown away and made again.
KEPT_TABLES = [name for name in TABLES if not name.startswith("search_")]

Connection = psycopg.Connection[tuple[Any, ...]]


def populate(target: str) -> None:
    with SessionDB(target) as db:
        forbidden_states.populate(db)
        assert checker.verify(db, also=["a", "b", "a-b", "e", "u"]) == []


class Sqlite:
    """A raw connection to a populated store. All states share it: a refused statement leaves nothing behind."""

    refusal: type[Exception] = apsw.ConstraintError

    def __init__(self, target: str) -> None:
        self.connection = apsw.Connection(target)
        self.connection.pragma("foreign_keys", True)
        self.connection.pragma("recursive_triggers", True)

    def commit(self, sql: str) -> None:
        with self.connection:
            self.connection.execute(sql)

    def check_and_roll_back(self, sql: str) -> None:
        self.connection.execute(f"BEGIN IMMEDIATE; {sql}")
        assert self.connection.execute("PRAGMA foreign_key_check").fetchall() == []
        self.connection.execute("ROLLBACK")


class Postgres:
    refusal: type[Exception] = psycopg.errors.IntegrityError

    def __init__(self, target: str) -> None:
        self.connection = psycopg.connect(target)

    def commit(self, sql: str) -> None:
        with self.connection.transaction():
            self.connection.execute(in_postgres(sql))

    def check_and_roll_back(self, sql: str) -> None:
        self.connection.execute(in_postgres(sql))
        self.connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        self.connection.rollback()


@pytest.fixture(scope="module", params=[Sqlite, Postgres])
def database(request: pytest.FixtureRequest) -> Iterator[Sqlite | Postgres]:
    with memory_folders.folder() as folder:
        target = f"{folder}/store.db" if request.param is Sqlite else postgres.kept()
        populate(target)
        made: Sqlite | Postgres = request.param(target)
        yield made
        made.connection.close()
        with SessionDB(target) as db:
            assert db.admin.fsck().ok
            assert db.append_message("a", role="user", content="next").seq == 7


@pytest.mark.parametrize("sql", STATES.values(), ids=STATES)
def test_database_refuses_the_state(sql: str, database: Sqlite | Postgres) -> None:
    with pytest.raises(database.refusal):
        database.commit(sql)


@pytest.mark.parametrize("sql", forbidden_states.ALLOWED)
def test_database_allows_the_valid_states_they_are_made_from(sql: str, database: Sqlite | Postgres) -> None:
    database.check_and_roll_back(sql)  # raises when a constraint is violated


@pytest.mark.parametrize("table", KEPT_TABLES)
def test_postgresql_refuses_to_truncate(table: str) -> None:
    with psycopg.connect(postgres.fresh()) as connection, pytest.raises(psycopg.errors.IntegrityError):
        connection.execute(f"TRUNCATE {table} CASCADE")


def test_both_databases_have_the_same_triggers() -> None:
    made = set(definitions.declared_schema().names("trigger"))
    declared = set(re.findall(r"^CREATE TRIGGER (\w+)", queries.schema("sqlite"), re.MULTILINE))
    truncated = {f"{table}_is_not_truncated" for table in KEPT_TABLES}
    assert made - declared == truncated | {"conversation_insert_is_valid", "conversation_update_is_valid"}
    assert declared <= made


def test_both_databases_refuse_in_the_same_words() -> None:
    said = set(re.findall(r"(?:RAISE EXCEPTION|EXECUTE FUNCTION \w+\() ?'([^'%]+)'", queries.schema("postgres")))
    only_here = {f"CHECK constraint failed: {table}" for table in ("conversations", "messages")}
    sqlite = set(re.findall(r"ABORT, '([^']+)'", queries.schema("sqlite")))
    assert said - only_here - {"nothing is truncated here"} == sqlite


class UnconstrainedSqlite:
    """The same rows in tables that allow anything, restored after each statement."""

    def __init__(self, db: SessionDB, path: str) -> None:
        self.db = db
        self._connection: apsw.Connection = db.driver._writer  # type: ignore[attr-defined]
        self._content = _without_constraints(path)
        self.restore()

    def execute(self, sql: str) -> None:
        self._connection.execute(sql)

    def restore(self) -> None:
        self._connection.deserialize("main", self._content)


def _without_constraints(path: str) -> bytes:
    connection = apsw.Connection(":memory:")
    connection.execute(f"ATTACH '{path}' AS populated")
    schema = list(connection.execute("SELECT type, name, sql FROM populated.sqlite_schema WHERE sql IS NOT NULL"))
    for kind, name, sql in schema:
        if kind == "table" and not name.startswith("sqlite_"):
            stored = ", ".join(row[1] for row in connection.execute(f"PRAGMA populated.table_info({name})"))
            connection.execute(f"CREATE TABLE {name} ({', '.join(_bare_columns(sql))})")
            connection.execute(f"INSERT INTO {name} ({stored}) SELECT {stored} FROM populated.{name}")
    connection.execute(";".join(sql.replace("UNIQUE ", "") for kind, _, sql in schema if kind == "index"))
    connection.execute("DETACH populated")
    return bytes(connection.serialize("main"))


def _bare_columns(sql: str) -> Iterator[str]:
    """Names, and the expressions of computed ones."""
    for line in sql.splitlines()[1:-1]:
        column = re.match(r"\s+([a-z_]+) +[A-Z]+.*?(GENERATED ALWAYS AS \(.+?\) VIRTUAL)?,?$", line)
        if column:
            yield f"{column[1]} {column[2] or ''}"


class UnconstrainedPostgres:
    def __init__(self, db: SessionDB, address: str) -> None:
        self.db = db
        self.connection = psycopg.connect(address, autocommit=True)
        for table, name in self.connection.execute(_CONSTRAINTS).fetchall():
            self.connection.execute(f"ALTER TABLE {table} DROP CONSTRAINT IF EXISTS {name} CASCADE")
        for name in ("memories_once", "grants_once"):
            self.connection.execute(f"DROP INDEX {name}")
        for table in TABLES:
            self.connection.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        self._rows = {table: self._copy(table) for table in TABLES}

    def execute(self, sql: str) -> None:
        self.connection.execute(in_postgres(sql))

    def _copy(self, table: str) -> bytes:
        with self.connection.cursor().copy(f"COPY {table} TO STDOUT") as out:
            return b"".join(bytes(part) for part in out)

    def restore(self) -> None:
        with self.connection.transaction():
            self.connection.execute("; ".join(f"DELETE FROM {table}" for table in TABLES))
            for table, rows in self._rows.items():
                if rows:
                    with self.connection.cursor().copy(f"COPY {table} FROM STDIN") as into:
                        into.write(rows)


Unconstrained = UnconstrainedSqlite | UnconstrainedPostgres
_CONSTRAINTS = """
SELECT r.relname, c.conname FROM pg_constraint c JOIN pg_class r ON r.oid = c.conrelid
 WHERE r.relnamespace = current_schema()::regnamespace AND c.contype IN ('c', 'f', 'p', 'u')
 ORDER BY c.contype = 'f' DESC
"""


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def unconstrained(request: pytest.FixtureRequest) -> Iterator[Unconstrained]:
    with memory_folders.folder() as folder:
        path = f"{folder}/store.db"
        target = path if request.param == "sqlite" else postgres.kept()
        populate(target)
        # Opened before the schema is changed: an open would bring it back to what is declared.
        with SessionDB(":memory:" if request.param == "sqlite" else target) as db:
            if request.param == "sqlite":
                yield UnconstrainedSqlite(db, path)
                return
            made = UnconstrainedPostgres(db, target)
            yield made
            made.connection.close()


@pytest.mark.parametrize("name", ["sound", *VISIBLE])
def test_fsck_finds_the_state_in_tables_without_constraints(name: str, unconstrained: Unconstrained) -> None:
    unconstrained.execute(VISIBLE.get(name, "SELECT 1"))
    found = {violation.promise for violation in unconstrained.db.admin.fsck().violations} - {"schema"}
    unconstrained.restore()
    ignored = isinstance(unconstrained, UnconstrainedSqlite) and name in CHECKED_BY_SQLITE
    assert bool(found) == (name != "sound" and not ignored)


CLOSED = f"{forbidden_states.end(1, 1, 120)}; {forbidden_states.move('live = NULL', 1)}"
MEMORIES = "INSERT INTO memories (owner, text, at, updated_at) SELECT 'o', 'fact ' || i, 1.0, 1.0 FROM generate_series"
RAISED = "UPDATE conversations SET fence = fence + 1 WHERE key = 1"
DELETED = """
    INSERT INTO tombstones VALUES ('d', 1.0);
    DELETE FROM conversations WHERE id = 'd';
    DELETE FROM messages WHERE conversation = 2;
    DELETE FROM sessions WHERE conversation = 2
"""


class Conflict(NamedTuple):
    """Two conflicting writes, the state before them, and the words of the refusal."""

    name: str
    first: str
    second: str
    words: str
    before: str = ""


MADE = forbidden_states.add_compaction(1, 2, 2, "NULL", 4, 6, "NULL")


def _compacted(id: str) -> str:
    return "; ".join(
        (
            forbidden_states.end(1, 1, 120),
            forbidden_states.add_session(1, 2, "1", 121, id),
            MADE,
            "UPDATE conversations SET epoch = 2, head = 2, compaction_epoch = 2 WHERE key = 1",
        )
    )


CONFLICTS = [
    Conflict(
        "a message behind the end", CLOSED, forbidden_states.add_message(1, 121, 1), "must belong to a live session"
    ),
    Conflict(
        "an end before the last message",
        forbidden_states.add_message(1, 121, 1),
        CLOSED,
        "must end at the last message",
    ),
    Conflict(
        "one number for two",
        forbidden_states.add_message(1, 121, 1),
        forbidden_states.add_message(1, 121, 1, "v"),
        "messages_pkey",
    ),
    # The end of a session would wait as well, so the compaction comes first.
    Conflict(
        "two compactions of one context", _compacted("x"), f"{MADE}; {_compacted('y')}", "must follow the current one"
    ),
    Conflict(
        "a lease with an old token",
        RAISED,
        f"{forbidden_states.LEASE} (1, 'turn', 1, 'x', 1.0, 'u', 120)",
        "newest",
        RAISED,
    ),
    Conflict(
        "a deleted id in use",
        DELETED,
        forbidden_states.add_conversation("other").replace("'other', NULL", "'d', NULL"),
        "cannot be reused",
    ),
    Conflict(
        "the 501st memory", f"{MEMORIES}(500, 500) i", f"{MEMORIES}(501, 501) i", "500 m", f"{MEMORIES}(1, 499) i"
    ),
]


@pytest.fixture
def address() -> Iterator[str]:
    address = postgres.fresh()
    with SessionDB(address, durability="process-crash") as db:
        db.create_session("c", source="test")
        db.append_messages("c", [types.NewMessage(role="user", content="x") for _ in range(120)])
        db.append_message("d", role="user", content="x", create=types.NewConversation(source="test"))
        yield address
        # Messages written by hand have no true digest.
        assert {bad.promise for bad in db.admin.fsck().violations} <= {"P1"}


@pytest.mark.parametrize("conflict", CONFLICTS, ids=lambda conflict: conflict.name)
def test_second_writer_is_checked_against_the_commit_of_the_first(conflict: Conflict, address: str) -> None:
    with psycopg.connect(address) as first, psycopg.connect(address) as second, ThreadPoolExecutor(1) as pool:
        first.execute(conflict.before)
        first.commit()
        first.execute(in_postgres(conflict.first))
        waiting = pool.submit(_committed, second, in_postgres(conflict.second))
        _await_wait(second.info.backend_pid, waiting)
        first.commit()
        with pytest.raises(psycopg.errors.IntegrityError, match=conflict.words):
            waiting.result()


def _committed(connection: Connection, sql: str) -> None:
    connection.execute(sql)
    connection.commit()


def _await_wait(pid: int, waiting: Future[None]) -> None:
    blocked = "SELECT 1 WHERE cardinality(pg_blocking_pids(%s)) > 0"
    while not postgres.admin().execute(blocked, (pid,)).fetchone():
        assert not waiting.done(), "the second did not wait for the first"
