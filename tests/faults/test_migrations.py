"""Stores of other versions: older ones are brought up with their data, newer ones refused or left alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import apsw
import pytest

from holdfast import errors, fault_points
from holdfast.store import deletion
from holdfast.store.db import SessionDB
from holdfast.store.driver import SCHEMA_PLAN, SchemaPlan
from holdfast.store.sqlite import driver as sqlite_driver
from tests.faults import checker, kill_points, older_schemas, steps
from tests.faults import zygote as zygotes

KILLS, STATEMENT_KILLS = 20, 3
PARTS = 6


def kills_of(point: str) -> int:
    """Statements are within one transaction: a kill at any of them leaves the state before it."""
    return STATEMENT_KILLS if " " in point else KILLS


def _course(path: Path, plan: SchemaPlan = SCHEMA_PLAN) -> list[str]:
    """The points an open passes on its way."""
    names: list[str] = []
    with kill_points.hooked(names.append):
        sqlite_driver.SqliteDriver(str(path), plan=plan).close()
    assert fault_points.hook is None
    return names


@pytest.mark.parametrize("name", older_schemas.OLDER)
def test_older_store_is_brought_up_with_all_its_data(name: str, place: Path) -> None:
    path = place / "store.db"
    before = older_schemas.make(path, older_schemas.OLDER[name])
    assert len(_course(Path(shutil.copy(path, place / "watched.db")))) > 5
    with SessionDB(path) as db:
        assert older_schemas.contents(db) == before
        assert checker.verify(db, also=["a", "b", "a-b"]) == []
        # What it had not before works now.
        for step in ("hide", "redact", "redo", "delete", "acquire", "commit", "spend"):
            steps.STEPS[step].run(db, steps.STEPS[step].prepare(db, f"new-{step}"))
        history = [checker.Erased("new-delete"), checker.Erased("new-redact", 1)]
        assert checker.verify(db, history, also=["new-hide", "new-redact", "new-redo", "new-commit"]) == []
    # Once brought up, an open passes by.
    assert _course(path) == []


@pytest.mark.parametrize("is_older", [False, True], ids=["new", "older"])
@pytest.mark.parametrize("part", range(PARTS))
def test_next_open_completes_a_creation_or_migration_killed_at_any_point(
    part: int, is_older: bool, zygote: zygotes.Zygote, place: Path
) -> None:
    original, known = place / "original.db", set[str]()
    before = older_schemas.make(original, older_schemas.OLDER["much"]) if is_older else None
    course = _course(Path(shutil.copy(original, place / "watched.db")) if is_older else place / "watched.db")
    assert {"migrate.CREATE TABLE hides", "migrate.labels", "migrate.committing", "migrate.committed"} <= set(course)
    for number in range(part, len(course), PARTS):
        for _ in range(kills_of(course[number])):
            path = _fresh(place)
            if is_older:
                shutil.copy(original, path)
            outcome = zygote.run(steps.open_only, path, points=("migrate",), at=number, fingerprint=str(path.parent))
            assert outcome.state == "killed", course[number]
            if outcome.fingerprint not in known:
                _check_opened(path, before, course[number])
            known.add(outcome.fingerprint)


def _fresh(place: Path) -> Path:
    """Return the path of a new store in an empty folder."""
    folder = place / "killed"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    return folder / "store.db"


def _check_opened(path: Path, contents: str | None, where: str) -> None:
    """Assert that a store can be opened and written to, and has these contents if it is an older one."""
    with SessionDB(path) as db:
        if contents is None:
            steps.begin(db, "c", 1)
            assert db.admin.fsck().ok, where
        else:
            assert older_schemas.contents(db) == contents, where
            assert checker.verify(db, also=["a", "b", "a-b"]) == [], where


def test_next_open_completes_a_creation_killed_before_a_write(zygote: zygotes.Zygote, place: Path) -> None:
    assert kill_points.kill_creation(zygote, place, every=8) > 8


@pytest.mark.parametrize("part", range(PARTS))
def test_numbered_step_killed_at_any_point_is_done_once(part: int, zygote: zygotes.Zygote, place: Path) -> None:
    original, path = place / "original.db", place / "store.db"
    with SessionDB(original) as db:
        older_schemas.populate(db)
    course = _course(Path(shutil.copy(original, place / "watched.db")), older_schemas.NEXT)
    assert "migrate.ALTER TABLE routes" in course
    for number in range(part, len(course), PARTS):
        shutil.copy(original, path)
        outcome = zygote.run(older_schemas.open_as_next_version, path, points=("migrate",), at=number)
        assert outcome.state == "killed", course[number]
        assert zygote.run(older_schemas.open_as_next_version, path).error is None
        _is_of_next_version(path)
        kill_points.remove(path)


def _is_of_next_version(path: Path) -> None:
    connection = apsw.Connection(str(path))
    assert connection.pragma("user_version") == 2
    assert connection.execute("SELECT label, version FROM routes").fetchall() == [("from format 1: chat", 2)]
    assert connection.execute("SELECT title FROM conversations WHERE id = 'a'").fetchall() == [("TITLE OF A",)]
    connection.close()


def test_newer_format_is_refused_and_both_are_named(place: Path) -> None:
    path = place / "store.db"
    with SessionDB(path) as db:
        older_schemas.populate(db)
    sqlite_driver.SqliteDriver(str(path), plan=older_schemas.NEXT).close()
    with pytest.raises(errors.SchemaTooNew, match=r"2.*1|1.*2") as refused:
        SessionDB(path)
    assert (refused.value.found, refused.value.known) == (2, 1)
    _is_of_next_version(path)


MORE = """
ALTER TABLE sessions ADD COLUMN mood TEXT;
CREATE TABLE letters (id INTEGER PRIMARY KEY);
CREATE TRIGGER letters_is_read BEFORE DELETE ON letters BEGIN SELECT 1; END;
DROP TRIGGER tombstone_is_immutable;
CREATE TRIGGER tombstone_is_immutable BEFORE UPDATE ON tombstones BEGIN SELECT raise(ABORT, 'newer'); END;
UPDATE meta SET value = '99' WHERE key = 'schema_revision'
"""


@pytest.mark.parametrize("labelled", [True, False])
def test_newer_revision_is_left_alone(labelled: bool, place: Path) -> None:
    """Whether or not the newer version got to write down that the schema is its own."""
    path = place / "store.db"
    with SessionDB(path) as db:
        older_schemas.populate(db)
        before = older_schemas.contents(db)
    connection = apsw.Connection(str(path))
    connection.execute(MORE)
    if labelled:
        cookie = str(connection.pragma("schema_version"))
        connection.execute("UPDATE meta SET value = ? WHERE key = 'schema_cookie'", (cookie,))
    schema = "SELECT type, name, sql FROM sqlite_schema ORDER BY 1, 2"
    declared = connection.execute(schema).fetchall()
    with SessionDB(path) as db:
        assert older_schemas.contents(db) == before
        assert db.append_message("a", role="user", content="next").seq == 6
        assert db.admin.fsck().ok
        assert db.admin.get_meta("schema_revision") == "99"
    assert connection.execute(schema).fetchall() == declared
    connection.close()


def test_older_version_deletes_a_conversation_with_rows_it_does_not_know(place: Path) -> None:
    path = place / "store.db"
    with SessionDB(path) as db:
        steps.STEPS["delete"].prepare(db, "c")
        assert db.budget("c")[0] == 1
    older = sqlite_driver.SqliteDriver(str(path), plan=SchemaPlan(revision=2))
    statements: list[str] = []
    with kill_points.hooked(statements.append):
        older.write("delete", lambda tx: deletion.delete(tx, "c", 1.0))
    older.close()
    # It has no query for later objects, and needs none.
    known = ("budget", "inbox", "inbound", "process", "audit", "grant", "pin_", "pins")
    assert not any(word in point for point in statements for word in known)
    with SessionDB(path) as db:
        assert db.admin.fsck().ok
        assert db.driver.read(lambda tx: tx.one("budget_get", conversation=1)) is None
        assert (db.mail.inbox_entries(), db.processes.all(), db.permissions.audit_log()) == ([], [], [])
        assert db.driver.read(lambda tx: tx.all("pins_of", conversation=1)) == []
        assert [(each.text, each.source) for each in db.memory.all("c")] == [("likes tea", None)]


def test_database_of_another_program_is_not_touched(place: Path) -> None:
    path = place / "theirs.db"
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(errors.StoreUnusable):
        SessionDB(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("is_older", [False, True], ids=["new", "older"])
def test_store_opened_by_eight_processes_at_once_is_created_or_migrated_once(
    is_older: bool, zygote: zygotes.Zygote, place: Path
) -> None:
    for number in range(8 if is_older else 0):
        older_schemas.make(place / f"store.db.{number}", older_schemas.OLDER["much"])
    outcomes = zygote.run_all(older_schemas.open_and_append, place / "store.db", {"rounds": 8}, 8)
    assert [outcome.error for outcome in outcomes] == [None] * 8
    for number in range(8):
        with SessionDB(f"{place / 'store.db'}.{number}") as db:
            assert (len(db.list_sessions()), len(db.transcript("c"))) == (3 * is_older + 1, 8 * 3)
            assert checker.verify(db, also=["c"]) == []
