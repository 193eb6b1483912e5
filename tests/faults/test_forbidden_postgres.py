"""Raw SQL against the server: PostgreSQL refuses every state that SQLite refuses, and TRUNCATE.

Once with everything on: each is refused, at the statement or at the commit, and nothing of it stays. Once in the same
tables without any constraint or trigger: each state that can be told by looking is found by fsck.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from holdfast.store import queries
from holdfast.store.db import SessionDB
from holdfast.store.postgres import definitions
from tests.faults import checker, dialects, forbidden, forbidden_mail
from tests.support import postgres

# Without a constraint there is nothing an upsert could meet.
SEEN = [bad for bad in dialects.POSTGRES if bad.seen and "ON CONFLICT" not in bad.sql]
TABLES = definitions.declared_schema().names("table")

Connection = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture(scope="module")
def furnished() -> Iterator[Connection]:
    address = postgres.kept()
    with SessionDB(address) as db:
        forbidden.furnish(db)
        assert checker.verify(db, also=["a", "b", "a-b", "e", "u"]) == []
    with psycopg.connect(address) as connection:
        yield connection
    with SessionDB(address) as db:
        assert db.admin.fsck().ok
        assert db.append_message("a", role="user", content="next").seq == 7


@pytest.mark.parametrize("bad", dialects.POSTGRES, ids=lambda bad: bad.name)
def test_forbidden_state_is_refused_by_postgresql(bad: forbidden.Forbidden, furnished: Connection) -> None:
    with pytest.raises(psycopg.errors.IntegrityError):
        _write(furnished, bad.sql)


def _write(connection: Connection, sql: str) -> None:
    try:
        connection.execute(sql)
        connection.commit()
    finally:
        connection.rollback()


@pytest.mark.parametrize(
    "allowed",
    [
        forbidden._rotated(),
        *forbidden_mail.ALLOWED,
        forbidden._conversation("other", last_seq=2, fork=f"'e', 2, NULL, {forbidden.E}"),
        forbidden._message(forbidden.E, 4, 1),
        f"{forbidden.BUDGET} ({forbidden.E}, 1, 'u', '{forbidden.SPENT}')",
        f"{forbidden.MEMORY} ('o', 'x', 1.0, 1.0, {forbidden.E})",
        f"{forbidden.INBOX} ({forbidden.A}, 'n', 'notice', 't', 1.0, NULL, NULL, NULL)",
        forbidden._set("inbox", "outcome = 'x', seq = 3, settled_at = 1.0, settled_by = 'u'", "id = 2"),
        forbidden._set("inbox", "text = '', redacted_at = 1.0", "id = 1"),
        f"{forbidden.PROCESS} ('n', {forbidden.A}, 'c', '/', '{{}}', 1.0, 'running', NULL)",
        f"{forbidden.INBOX} ({forbidden.A}, 'process:q', 'process', 't', 1.0, NULL, NULL, NULL); "
        + forbidden._set("processes", "state = 'gone', ended_at = 1.0, ended_by = 'u'", "id = 'q'"),
        f"{forbidden.GRANT} ('o', 'r', {forbidden.A}, 1.0, 'me')",
        f"{forbidden.AUDIT} ({forbidden.A}, 'n', 'c', 't', 's', 1, 'me', 1.0, NULL, NULL)",
        f"{forbidden.PIN} ({forbidden.A}, 6, 1.0)",
        f"DELETE FROM pins WHERE conversation = {forbidden.B}",
        forbidden._set("audit", "ended_at = 1.0, ok = 0", "id = 2"),
        forbidden._set("audit", "summary = '', redacted_at = 1.0", "id = 1"),
        forbidden._session(forbidden.B, 2, "1", 3, id="b-1")
        + "; "
        + forbidden._moved("head = 2, live = 1", forbidden.B),
    ],
)
def test_what_the_list_is_made_from_is_itself_allowed(allowed: str, furnished: Connection) -> None:
    """Else each state made from it would be refused for a reason of its own making."""
    furnished.execute(dialects.in_postgres(allowed))
    furnished.execute("SET CONSTRAINTS ALL IMMEDIATE")
    furnished.rollback()


def test_both_databases_have_the_same_triggers() -> None:
    made, declared = (
        set(definitions.declared_schema().names("trigger")),
        set(_TRIGGER.findall(queries.schema("sqlite"))),
    )
    truncated = {f"{table}_is_not_truncated" for table in dialects.TABLES}
    assert made - declared == truncated | {"conversation_insert_is_valid", "conversation_update_is_valid"}
    assert declared <= made


def test_both_databases_refuse_in_the_same_words() -> None:
    said = set(re.findall(r"(?:RAISE EXCEPTION|EXECUTE FUNCTION \w+\() ?'([^'%]+)'", queries.schema("postgres")))
    assert said - {
        "nothing is truncated here",
        "CHECK constraint failed: conversations",
        "CHECK constraint failed: messages",
    } == set(re.findall(r"ABORT, '([^']+)'", queries.schema("sqlite")))


_TRIGGER = re.compile(r"^CREATE TRIGGER (\w+)", re.MULTILINE)


# --- found afterwards -------------------------------------------------------------------------------------


class Bare:
    """The same rows in tables that allow anything; they are put back after each test."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.connection = psycopg.connect(address, autocommit=True)
        for table, name in self.connection.execute(_CONSTRAINTS).fetchall():
            self.connection.execute(f"ALTER TABLE {table} DROP CONSTRAINT IF EXISTS {name} CASCADE")
        for name in ("memories_once", "grants_once"):
            self.connection.execute(f"DROP INDEX {name}")
        for table in TABLES:
            self.connection.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        self._relabel()
        self._rows = {table: self._copied(table) for table in TABLES}

    def _relabel(self) -> None:
        """Else the next open would see a changed schema and bring it back to what is declared."""
        row = self.connection.execute(_COOKIE, definitions.declared_schema().parameters).fetchone()
        assert row is not None
        self.connection.execute("UPDATE meta SET value = %s WHERE key = 'schema_cookie'", row)

    def _copied(self, table: str) -> bytes:
        with self.connection.cursor().copy(f"COPY {table} TO STDOUT") as out:
            return b"".join(bytes(part) for part in out)

    def restore(self) -> None:
        with self.connection.transaction():
            self.connection.execute("; ".join(f"DELETE FROM {table}" for table in TABLES))
            for table, rows in self._rows.items():
                if rows:
                    with self.connection.cursor().copy(f"COPY {table} FROM STDIN") as into:
                        into.write(rows)


_COOKIE = queries.load(definitions.QUERY_FOLDER)["cookie"]
_CONSTRAINTS = """
SELECT r.relname, c.conname FROM pg_constraint c JOIN pg_class r ON r.oid = c.conrelid
 WHERE r.relnamespace = current_schema()::regnamespace AND c.contype IN ('c', 'f', 'p', 'u')
 ORDER BY c.contype = 'f' DESC
"""


@pytest.fixture(scope="module")
def stripped() -> Iterator[tuple[Bare, SessionDB]]:
    address = postgres.kept()
    with SessionDB(address) as db:
        forbidden.furnish(db)
    bare = Bare(address)
    with SessionDB(address) as db:
        yield bare, db
    bare.connection.close()


@pytest.fixture
def bare(stripped: tuple[Bare, SessionDB]) -> Iterator[tuple[Bare, SessionDB]]:
    yield stripped
    stripped[0].restore()


def _found(db: SessionDB) -> set[str]:
    return {violation.promise for violation in db.admin.fsck().violations} - {"schema"}


def test_store_without_constraints_is_found_sound_as_long_as_it_is(bare: tuple[Bare, SessionDB]) -> None:
    assert _found(bare[1]) == set()


@pytest.mark.parametrize("bad", SEEN, ids=lambda bad: bad.name)
def test_forbidden_state_written_all_the_same_is_found_by_fsck(
    bad: forbidden.Forbidden, bare: tuple[Bare, SessionDB]
) -> None:
    bare[0].connection.execute(bad.sql)
    assert _found(bare[1])
