"""SQLite schemas are compared by their meaning; differences are reported and repaired."""

from __future__ import annotations

import logging
from pathlib import Path

import apsw
import pytest

from holdfast import SessionDB
from holdfast.store.sqlite import migration as sqlite_migration
from tests.support import backends

TABLE = "CREATE TABLE t (\n  a INTEGER NOT NULL, -- why\n  b TEXT CHECK (b IN ('x', 'y')),\n  UNIQUE (a, b)\n) STRICT"


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ("CREATE TABLE t (a INTEGER NOT NULL, b TEXT CHECK (b IN ('x', 'y')), UNIQUE (a, b)) STRICT", True),
        ("CREATE TABLE t (b TEXT CHECK (b IN ('x', 'y')), a INTEGER NOT NULL, UNIQUE (a, b)) STRICT", True),
        ("CREATE TABLE t (a INTEGER, b TEXT CHECK (b IN ('x', 'y')), UNIQUE (a, b)) STRICT", False),
        ("CREATE TABLE t (a INTEGER NOT NULL, b TEXT CHECK (b IN ('x', 'z')), UNIQUE (a, b)) STRICT", False),
        ("CREATE TABLE t (a INTEGER NOT NULL, b TEXT CHECK (b IN ('x', 'y'))) STRICT", False),
        ("CREATE TABLE t (a INTEGER NOT NULL, b TEXT CHECK (b IN ('x', 'y')), UNIQUE (a, b))", False),
    ],
)
def test_tables_are_compared_column_by_column(other: str, same: bool) -> None:
    assert (sqlite_migration.normalize_declaration(TABLE) == sqlite_migration.normalize_declaration(other)) is same


def test_repair_at_the_next_open_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with SessionDB(tmp_path / "store.db"):
        pass
    raw = apsw.Connection(str(tmp_path / "store.db"))
    raw.execute("DROP TRIGGER tombstone_is_immutable")
    raw.close()
    with caplog.at_level(logging.WARNING, "holdfast.store"), SessionDB(tmp_path / "store.db") as db:
        assert db.driver.schema_faults() == []
    assert caplog.messages == ["Schema repair: recreating the trigger tombstone_is_immutable, which is missing."]


def test_trigger_that_is_no_text_is_reported(path: Path) -> None:
    with SessionDB(path) as db:
        backends.raw(db, "PRAGMA writable_schema = ON")
        backends.raw(db, "UPDATE sqlite_schema SET sql = CAST(sql AS BLOB) WHERE name = 'tombstone_is_immutable'")
        violation = ("schema", "the trigger tombstone_is_immutable differs from its declaration")
        assert violation in [(bad.promise, bad.detail) for bad in db.admin.fsck().violations]
