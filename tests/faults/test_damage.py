"""Damage nobody meant: a flipped bit, or rows that cannot be. Nobody is deceived, and nobody goes in circles."""

from __future__ import annotations

import random
from pathlib import Path

import apsw
import pytest

from holdfast import errors
from holdfast.store.db import SessionDB
from tests.faults import flips, forbidden_states
from tests.faults import zygote as zygotes

# What must not be there, and which conversation then cannot be read.
ROWS = {
    "message that is not JSON": ("UPDATE messages SET body = '{\"content' WHERE id = (5 << 32) + 2", "e"),
    "message of a session that is gone": ("UPDATE messages SET session = 9 WHERE id = (5 << 32) + 2", "e"),
    "summary that is not JSON": ("UPDATE compactions SET body = '{\"summary' WHERE conversation = 1", "a"),
    "compaction that is gone": ("DELETE FROM compactions WHERE conversation = 1", "a"),
    "compaction on a later one": ("UPDATE compactions SET base_epoch = 3, seen_seq = 9 WHERE conversation = 1", "a-b"),
    "branch of itself": ("UPDATE conversations SET origin = 3 WHERE key = 3", "a-b"),
    "branches of each other": ("UPDATE conversations SET origin = 3, forked_at = 6 WHERE key = 1", "a-b"),
}


@pytest.mark.parametrize("seed", range(2))
def test_flipped_bit_deceives_nobody(seed: int, zygote: zygotes.Zygote, place: Path) -> None:
    assert flips.flips(flips.Bench(str(place), zygote), random.Random(seed), 60) == []


def test_flips_within_a_message_or_a_summary_are_noticed(zygote: zygotes.Zygote, place: Path) -> None:
    bench = flips.Bench(str(place), zygote)
    for text in (b"answer answer", b"what was said in", b"in the branch", b"conversation 1:later"):
        at = bench.sound.index(text)
        assert [bench.flip((at + offset) * 8 + offset % 7) for offset in range(len(text))] == [None] * len(text)


@pytest.mark.parametrize("row", ROWS)
def test_row_that_cannot_be_is_a_typed_error_and_found_by_fsck(row: str, place: Path) -> None:
    sql, c = ROWS[row]
    _damage(place, sql)
    with SessionDB(place / "store.db") as db:
        with pytest.raises(errors.StoreCorrupt):
            _read(db, c)
        assert not db.admin.fsck().ok


def _read(db: SessionDB, c: str) -> None:
    assert [message.content for message in db.context(c)]
    assert [message.content for message in db.transcript(c)]


@pytest.mark.parametrize("row", ["branch of itself", "branches of each other"])
def test_search_and_redaction_of_a_circular_branch_end_with_an_error(row: str, place: Path) -> None:
    sql, c = ROWS[row]
    _damage(place, sql)
    with SessionDB(place / "store.db") as db:
        with pytest.raises(errors.StoreCorrupt):
            db.search("answer", session_id=c)
        with pytest.raises(errors.StoreCorrupt):
            db.redact(c, 1)


def _damage(place: Path, sql: str) -> None:
    """Execute a statement on a new store without triggers and CHECK constraints."""
    with SessionDB(place / "store.db") as db:
        forbidden_states.furnish(db)
    connection = apsw.Connection(str(place / "store.db"))
    connection.pragma("ignore_check_constraints", True)
    triggers = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    connection.execute(";".join(f"DROP TRIGGER {name}" for name, _ in triggers))
    connection.execute(sql)
    connection.close()
