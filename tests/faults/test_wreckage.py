"""A damaged file deceives nobody, hangs nobody and crashes nobody; what is left of it can be salvaged.

Fifty trials: flipped bits, pages swapped, zeroed and overwritten, files cut short, logs of noise.
"""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from holdfast.store.db import SessionDB
from tests.faults import wreckage
from tests.faults import zygote as zygotes


@pytest.mark.parametrize("seed", range(2))
def test_damage_is_never_read_as_something_else_and_never_salvaged_as_it(
    seed: int, zygote: zygotes.Zygote, place: Path
) -> None:
    assert wreckage.trials(wreckage.Bench(place), zygote, seed, 25) == []


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
