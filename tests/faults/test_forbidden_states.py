"""Both databases refuse every forbidden state; fsck finds those that can be seen in tables without constraints."""

from __future__ import annotations

import contextlib
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
from holdfast.store.postgres import migration as postgres_migration
from tests.faults import checker, forbidden_states
from tests.faults.forbidden_states import LEASE, add_compaction, add_message, add_session, end, in_postgres, move
from tests.support import consistency, memory_folders, postgres

STATES = {**forbidden_states.VISIBLE, **forbidden_states.INVISIBLE}
# Without a constraint a replacement has nothing to replace. Three states only SQLite's own integrity check can find.
CHECKED_BY_SQLITE = ("lease for an unknown purpose", "route without a name", "second budget")
VISIBLE = {name: sql for name, sql in forbidden_states.VISIBLE.items() if "OR REPLACE" not in sql}
TABLES = definitions.declared_schema().names("table")
# The search index can be thrown away and made again.
KEPT_TABLES = [name for name in TABLES if not name.startswith("search_")]

Connection = psycopg.Connection[tuple[Any, ...]]


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


@contextlib.contextmanager
def populated(kind: Any) -> Iterator[tuple[Any, str]]:
    """A connection to a populated store, and its address."""
    with memory_folders.folder() as folder:
        target = f"{folder}/store.db" if issubclass(kind, Sqlite) else postgres.kept()
        with SessionDB(target) as db:
            forbidden_states.populate(db)
            assert checker.verify(db, also=["a", "b", "a-b", "e", "u"]) == []
        made = kind(target)
        yield made, target
        made.connection.close()


@pytest.fixture(scope="module", params=[Sqlite, Postgres])
def database(request: pytest.FixtureRequest) -> Iterator[Sqlite | Postgres]:
    with populated(request.param) as (made, target):
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


class UnconstrainedSqlite(Sqlite):
    """The same rows in tables that allow anything."""

    def __init__(self, target: str) -> None:
        self.connection = connection = apsw.Connection(":memory:")
        self.look = consistency.SqliteLook(connection)
        connection.execute(f"ATTACH '{target}' AS populated")
        schema = list(connection.execute("SELECT type, name, sql FROM populated.sqlite_schema WHERE sql IS NOT NULL"))
        for kind, name, sql in schema:
            if kind == "table" and not name.startswith("sqlite_"):
                stored = ", ".join(row[1] for row in connection.execute(f"PRAGMA populated.table_info({name})"))
                connection.execute(f"CREATE TABLE {name} ({', '.join(_bare_columns(sql))})")
                connection.execute(f"INSERT INTO {name} ({stored}) SELECT {stored} FROM populated.{name}")
        connection.execute(";".join(sql.replace("UNIQUE ", "") for kind, _, sql in schema if kind == "index"))
        connection.execute("DETACH populated")

    @contextlib.contextmanager
    def applied(self, sql: str) -> Iterator[None]:
        self.connection.execute(f"BEGIN; {sql}")
        yield
        self.connection.execute("ROLLBACK")

    def is_broken(self) -> bool:
        return consistency.is_broken(self.look)


def _bare_columns(sql: str) -> Iterator[str]:
    """Names, and the expressions of computed ones."""
    for line in sql.splitlines()[1:-1]:
        column = re.match(r"\s+([a-z_]+) +[A-Z]+.*?(GENERATED ALWAYS AS \(.+?\) VIRTUAL)?,?$", line)
        if column:
            yield f"{column[1]} {column[2] or ''}"


class UnconstrainedPostgres(Postgres):
    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.look = consistency.Look(self.connection)
        for table, name in self.connection.execute(_CONSTRAINTS).fetchall():
            self.connection.execute(f"ALTER TABLE {table} DROP CONSTRAINT IF EXISTS {name} CASCADE")
        for name in ("memories_once", "grants_once"):
            self.connection.execute(f"DROP INDEX {name}")
        for table in TABLES:
            self.connection.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        self.connection.commit()

    @contextlib.contextmanager
    def applied(self, sql: str) -> Iterator[None]:
        self.connection.execute(in_postgres(sql))
        yield
        self.connection.rollback()

    def is_broken(self) -> bool:
        execute = self.connection.execute
        return consistency.is_broken(self.look) or bool(postgres_migration.Migration(execute).violations())


_CONSTRAINTS = """
SELECT r.relname, c.conname FROM pg_constraint c JOIN pg_class r ON r.oid = c.conrelid
 WHERE r.relnamespace = current_schema()::regnamespace AND c.contype IN ('c', 'f', 'p', 'u')
 ORDER BY c.contype = 'f' DESC
"""


@pytest.fixture(scope="module", params=[UnconstrainedSqlite, UnconstrainedPostgres])
def unconstrained(request: pytest.FixtureRequest) -> Iterator[Any]:
    with populated(request.param) as (made, _):
        yield made


@pytest.mark.parametrize("name", ["sound", *VISIBLE])
def test_fsck_finds_the_state_in_tables_without_constraints(name: str, unconstrained: Any) -> None:
    ignored = isinstance(unconstrained, UnconstrainedSqlite) and name in CHECKED_BY_SQLITE
    with unconstrained.applied(VISIBLE.get(name, "SELECT 1")):
        assert unconstrained.is_broken() == (name != "sound" and not ignored)


# Other checks report these states, too: by a digest, a head, or the order of the sessions.
ALSO_REPORTED = {
    "check_p1_uids": VISIBLE["uid used twice"],
    "check_p3_live": VISIBLE["two live sessions"],
    "check_p4_forks": add_session(forbidden_states.A, 3, "1", 7),
}


@pytest.mark.parametrize("check", ALSO_REPORTED)
def test_check_finds_a_state_that_others_report_too(check: str, unconstrained: Any) -> None:
    with unconstrained.applied(ALSO_REPORTED[check]):
        assert unconstrained.look.all(check)


CLOSED = f"{end(1, 1, 120)}; {move('live = NULL', 1)}"
MEMORIES = "INSERT INTO memories (owner, text, at, updated_at) SELECT 'o', 'fact ' || i, 1.0, 1.0 FROM generate_series"
RAISED = "UPDATE conversations SET fence = fence + 1 WHERE key = 1"
DELETED = """
    INSERT INTO tombstones VALUES ('d', 1.0);
    DELETE FROM conversations WHERE id = 'd';
    DELETE FROM messages WHERE conversation = 2;
    DELETE FROM sessions WHERE conversation = 2
"""


MADE = add_compaction(1, 2, 2, "NULL", 4, 6, "NULL")


def _compacted(id: str) -> str:
    moved = "UPDATE conversations SET epoch = 2, head = 2, compaction_epoch = 2 WHERE key = 1"
    return "; ".join((end(1, 1, 120), add_session(1, 2, "1", 121, id), MADE, moved))


class Conflict(NamedTuple):
    """Two conflicting writes, the words of the refusal of the second one, and the state before them."""

    first: str
    second: str
    words: str
    before: str = ""


MESSAGE = add_message(1, 121, 1)
CONFLICTS = {
    "a message behind the end": Conflict(CLOSED, MESSAGE, "must belong to a live session"),
    "an end before the last message": Conflict(MESSAGE, CLOSED, "must end at the last message"),
    "one number for two": Conflict(MESSAGE, add_message(1, 121, 1, "v"), "messages_pkey"),
    # The end of a session would wait as well, so the compaction comes first.
    "two compactions of one context": Conflict(
        _compacted("x"), f"{MADE}; {_compacted('y')}", "must follow the current one"
    ),
    "a lease with an old token": Conflict(RAISED, f"{LEASE} (1, 'turn', 1, 'x', 1.0, 'u', 120)", "newest", RAISED),
    "a deleted id in use": Conflict(
        DELETED, forbidden_states.add_conversation("other").replace("'other', NULL", "'d', NULL"), "cannot be reused"
    ),
    "the 501st memory": Conflict(
        f"{MEMORIES}(500, 500) i", f"{MEMORIES}(501, 501) i", "500 m", f"{MEMORIES}(1, 499) i"
    ),
}


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


@pytest.mark.parametrize("conflict", CONFLICTS.values(), ids=CONFLICTS)
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
