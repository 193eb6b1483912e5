"""Raw SQL against the file: the database refuses every state that must not exist.

Once with everything on: each is refused, at the statement or at the commit. Once with triggers gone and
foreign keys and checks off (and, where that is not enough, tables without any constraint): each state
that can be told by looking is found by fsck.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from holdfast.store.db import SessionDB
from tests.faults import checker, forbidden, forbidden_mail
from tests.faults import zygote as zygotes

SEEN = [bad for bad in forbidden.EVERY if bad.seen]


@pytest.fixture(scope="module")
def furnished() -> Iterator[Path]:
    with zygotes.folder() as made:
        path = Path(made) / "store.db"
        with SessionDB(path) as db:
            forbidden.furnish(db)
            assert checker.verify(db, also=["a", "b", "a-b", "e", "u"]) == []
        yield path


@pytest.fixture
def path(furnished: Path, place: Path) -> Path:
    # No process has it open, so it is one file and may be copied as one.
    assert not Path(f"{furnished}-wal").exists()
    return Path(shutil.copy(furnished, place / "store.db"))


def _connected(path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    connection.pragma("foreign_keys", True)
    connection.pragma("recursive_triggers", True)
    return connection


def test_list_is_long_and_names_are_unique() -> None:
    assert len({bad.name for bad in forbidden.EVERY}) == len(forbidden.EVERY) >= 60


@pytest.mark.parametrize("bad", forbidden.EVERY, ids=lambda bad: bad.name)
def test_forbidden_state_is_refused_by_the_database(bad: forbidden.Forbidden, path: Path) -> None:
    connection = _connected(path)
    with pytest.raises(apsw.ConstraintError):
        _write(connection, bad)
    connection.close()
    with SessionDB(path) as db:
        assert db.admin.fsck().ok
        assert db.append_message("a", role="user", content="next").seq == 7


def test_what_the_list_is_made_from_is_itself_allowed(path: Path) -> None:
    """Else each state made from it would be refused for a reason of its own making."""
    connection = _connected(path)
    for allowed in (
        forbidden._rotated(),
        *forbidden_mail.ALLOWED,
        forbidden._conversation("other", last_seq=2, fork=f"'e', 2, NULL, {forbidden.E}"),
        forbidden._message(forbidden.E, 4, 1),
        f"{forbidden.BUDGET} ({forbidden.E}, 1, 'u', '{forbidden.SPENT}')",
        f"{forbidden.MEMORY} ('o', 'x', 1.0, 1.0, {forbidden.E})",
        f"{forbidden.INBOX} ({forbidden.A}, 'n', 'notice', 't', 1.0, NULL, NULL, NULL)",
        forbidden._set("inbox", "outcome = 'x', seq = 3, settled_at = 1.0, settled_by = 'u'", "key = 'n'"),
        forbidden._set("inbox", "text = '', redacted_at = 1.0", "key = 'n'"),
        f"{forbidden.PROCESS} ('n', {forbidden.A}, 'c', '/', '{{}}', 1.0, 'running', NULL)",
        f"{forbidden.INBOX} ({forbidden.A}, 'process:n', 'process', 't', 1.0, NULL, NULL, NULL)",
        forbidden._set("processes", "state = 'gone', ended_at = 1.0, ended_by = 'u'", "id = 'n'"),
        f"{forbidden.GRANT} ('o', 'r', {forbidden.A}, 1.0, 'me')",
        f"{forbidden.AUDIT} ({forbidden.A}, 'n', 'c', 't', 's', 1, 'me', 1.0, NULL, NULL)",
        f"{forbidden.PIN} ({forbidden.A}, 6, 1.0)",
        f"DELETE FROM pins WHERE conversation = {forbidden.B}",
        forbidden._set("audit", "ended_at = 1.0, ok = 0", "uid = 'n'"),
        forbidden._set("audit", "summary = '', redacted_at = 1.0", "uid = 'n'"),
        forbidden._session(forbidden.B, 2, "1", 3, id="b-1")
        + "; "
        + forbidden._moved("head = 2, live = 1", forbidden.B),
    ):
        _write(connection, forbidden.Forbidden("allowed", allowed))
    connection.close()


def _write(connection: apsw.Connection, bad: forbidden.Forbidden) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(bad.sql)
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


@pytest.mark.parametrize("bad", SEEN, ids=lambda bad: bad.name)
def test_forbidden_state_written_all_the_same_is_found_by_fsck(bad: forbidden.Forbidden, path: Path) -> None:
    try:
        _write_unguarded(path, bad)
    except apsw.ConstraintError:
        # A primary key or UNIQUE still stood in the way.
        path = _without_constraints(path)
        _write_unguarded(path, bad)
    with SessionDB(path) as db:
        assert not db.admin.fsck().ok


def test_store_without_constraints_is_found_sound_as_long_as_it_is(path: Path) -> None:
    with SessionDB(_without_constraints(path)) as db:
        assert {violation.promise for violation in db.admin.fsck().violations} <= {"schema"}


def _write_unguarded(path: Path, bad: forbidden.Forbidden) -> None:
    connection = apsw.Connection(str(path))
    connection.pragma("foreign_keys", False)
    connection.pragma("ignore_check_constraints", True)
    triggers = list(connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'"))
    for name, _ in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    try:
        _write(connection, bad)
    finally:
        for _, sql in triggers:
            connection.execute(sql)
        _relabel(connection)
        connection.close()


def _without_constraints(path: Path) -> Path:
    """The same rows in tables that allow anything, so that even a primary key can be broken."""
    bare = path.with_name("bare.db")
    connection = apsw.Connection(str(bare))
    connection.execute(f"ATTACH '{path}' AS furnished")
    schema = list(connection.execute("SELECT type, name, sql FROM furnished.sqlite_schema WHERE sql IS NOT NULL"))
    for kind, name, sql in schema:
        if kind == "table" and not name.startswith("sqlite_"):
            stored = ", ".join(row[1] for row in connection.execute(f"PRAGMA furnished.table_info({name})"))
            connection.execute(f"CREATE TABLE {name} ({', '.join(_bare_columns(sql))})")
            connection.execute(f"INSERT INTO {name} ({stored}) SELECT {stored} FROM furnished.{name}")
    for kind, _, sql in schema:
        if kind == "index":
            connection.execute(sql)
    # fsck asks for all triggers; here they guard a table nobody writes.
    connection.execute("CREATE TABLE guarded (x)")
    for kind, name, _ in schema:
        if kind == "trigger":
            connection.execute(f"CREATE TRIGGER {name} BEFORE INSERT ON guarded BEGIN SELECT 1; END")
    for label in ("application_id", "user_version"):
        ((value,),) = connection.execute(f"PRAGMA furnished.{label}")
        connection.pragma(label, value)
    connection.execute("DETACH furnished")
    _relabel(connection)
    connection.close()
    return bare


def _bare_columns(sql: str) -> Iterator[str]:
    """Names, and the expressions of computed ones."""
    for line in sql.splitlines()[1:-1]:
        column = re.match(r"\s+([a-z_]+) +[A-Z]+.*?(GENERATED ALWAYS AS \(.+?\) VIRTUAL)?,?$", line)
        if column:
            yield f"{column[1]} {column[2] or ''}"


def _relabel(connection: apsw.Connection) -> None:
    """Else the next open would see a changed schema and bring it back to what is declared."""
    cookie = connection.pragma("schema_version")
    connection.execute("UPDATE meta SET value = ? WHERE key = 'schema_cookie'", (str(cookie),))
