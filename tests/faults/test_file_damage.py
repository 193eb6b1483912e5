"""A damaged file is never read or salvaged as something else, and no reader hangs or crashes."""

from __future__ import annotations

import random
from pathlib import Path

import apsw
import pytest

from holdfast import errors
from holdfast.store.db import SessionDB
from tests.faults import file_damage, forbidden_states
from tests.faults import zygote as zygotes

# Impossible rows, and the conversation that then cannot be read.
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
def test_damage_is_never_read_or_salvaged_as_something_else(seed: int, zygote: zygotes.Zygote, place: Path) -> None:
    assert file_damage.run_trials(file_damage.Bench(place, zygote), random.Random(seed), 16) == []


def test_flipped_bit_is_noticed(zygote: zygotes.Zygote, place: Path) -> None:
    bench = file_damage.Bench(place, zygote)
    assert file_damage.run_flips(bench, random.Random(1), 40) == []
    for text in (b"says 2", b"summary of", b"in the branch", b"talk 1:"):
        at = bench.main.index(text)
        assert [bench.flip((at + offset) * 8 + offset % 7) for offset in range(len(text))] == [[]] * len(text)


@pytest.mark.parametrize("row", ROWS)
def test_impossible_row_is_a_typed_error_and_found_by_fsck(row: str, place: Path) -> None:
    sql, c = ROWS[row]
    with SessionDB(place / "store.db") as db:
        forbidden_states.populate(db)
    connection = apsw.Connection(str(place / "store.db"))
    connection.pragma("ignore_check_constraints", True)
    triggers = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    connection.execute(";".join(f"DROP TRIGGER {name}" for name, _ in triggers))
    connection.execute(sql)
    connection.close()
    with SessionDB(place / "store.db") as db:
        with pytest.raises(errors.StoreCorrupt):
            [message.content for message in (*db.context(c), *db.transcript(c))]
        assert not db.admin.fsck().ok
        if row.startswith("branch"):
            with pytest.raises(errors.StoreCorrupt):
                db.search("answer", session_id=c)
            with pytest.raises(errors.StoreCorrupt):
                db.redact(c, 1)


def test_store_too_damaged_to_be_examined_is_a_finding_and_no_error(place: Path) -> None:
    path = str(place / "store.db")
    SessionDB(path).close()
    connection = apsw.Connection(path)
    connection.pragma("writable_schema", True)
    wrong = "replace(sql, 'REFERENCES conversations (key)', 'REFERENCES conversations (kez)')"
    connection.execute(f"UPDATE sqlite_schema SET sql = {wrong} WHERE name = 'routes'")
    connection.close()
    with SessionDB(path) as db:
        assert "database" in {violation.promise for violation in db.admin.fsck().violations}
