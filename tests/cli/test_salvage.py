"""`holdfast salvage` saves what is readable, lists what is lost, and never changes its source."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import SessionDB
from tests.cli.conftest import TRIP
from tests.support.cli_process import Holdfast


def test_sound_store_is_saved_whole(holdfast: Holdfast, trip: Path, tmp_path: Path) -> None:
    done = holdfast("salvage", trip, tmp_path / "new.db")
    assert (done.code, "Nothing was lost." in done.out) == (0, True)
    with SessionDB(trip) as old, SessionDB(tmp_path / "new.db") as new:
        assert [each.body for each in new.transcript(TRIP)] == [each.body for each in old.transcript(TRIP)]


def test_lost_messages_are_listed_and_the_source_is_unchanged(holdfast: Holdfast, trip: Path, tmp_path: Path) -> None:
    broken = trip.read_bytes().replace(b"message 3", b"MESSAGE 3")
    trip.write_bytes(broken)
    done = holdfast("salvage", trip, tmp_path / "new.db", "--json")
    assert done.code == 1
    assert any((lost["conversation_id"], lost["first_seq"]) == (TRIP, 3) for lost in done.data["lost"])
    assert done.data["messages"] == 9, "the placeholder is not a saved message"
    assert trip.read_bytes() == broken
    assert holdfast("doctor", "--db", tmp_path / "new.db").code == 0


@pytest.mark.parametrize("content", [b"Dear Ann,\n", b"", None], ids=["text", "empty", "missing"])
def test_file_without_a_store_is_not_saved(holdfast: Holdfast, tmp_path: Path, content: bytes | None) -> None:
    source, target = tmp_path / "letter", tmp_path / "new.db"
    if content is not None:
        source.write_bytes(content)
    done = holdfast("salvage", source, target)
    assert (done.code, "Nothing was lost." in done.out) == (1, False)
    assert ("the file holds no data of a store" in done.out) is (content is not None)
    assert content is not None or not target.exists()


def test_existing_target_is_never_replaced(holdfast: Holdfast, trip: Path) -> None:
    assert holdfast("salvage", trip, trip).code == 1
    assert holdfast("doctor", "--db", trip).code == 0
