"""`salvage` saves what can be read, lists what cannot, and changes nothing of what it reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from holdfast import SessionDB
from tests.cli.conftest import TRIP
from tests.support import cli_process

Holdfast = Callable[..., cli_process.Run]


def test_a_sound_store_comes_over_whole(holdfast: Holdfast, trip: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.db"
    done = holdfast("salvage", trip, new)
    assert (done.code, "Nothing was lost." in done.out) == (0, True)
    with SessionDB(trip) as old, SessionDB(new) as saved:
        assert [message.body for message in saved.transcript(TRIP)] == [
            message.body for message in old.transcript(TRIP)
        ]


def test_what_was_lost_is_listed_and_the_damaged_file_is_as_it_was(
    holdfast: Holdfast, trip: Path, tmp_path: Path
) -> None:
    whole = trip.read_bytes()
    place = whole.index(b"message 3")
    broken = whole[:place] + b"MESSAGE" + whole[place + 7 :]
    trip.write_bytes(broken)
    done = holdfast("salvage", trip, tmp_path / "new.db", "--json")
    assert done.code == 1
    assert any((lost["conversation_id"], lost["first_seq"]) == (TRIP, 3) for lost in done.data["lost"])
    assert done.data["messages"] == 9, "what stands for it was not saved"
    assert trip.read_bytes() == broken
    assert holdfast("doctor", "--db", tmp_path / "new.db").code == 0


def test_file_of_something_else_is_not_said_to_be_saved(holdfast: Holdfast, tmp_path: Path) -> None:
    for name, content in (("letter", b"Dear Ann,\n"), ("empty", b"")):
        (tmp_path / name).write_bytes(content)
        done = holdfast("salvage", tmp_path / name, tmp_path / f"{name}.db")
        assert (done.code, "Nothing was lost." in done.out) == (1, False)
        assert "the file holds no data of a store" in done.out


def test_nothing_is_ever_replaced(holdfast: Holdfast, trip: Path) -> None:
    assert holdfast("salvage", trip, trip).code == 1
    assert holdfast("doctor", "--db", trip).code == 0


def test_nothing_to_read_is_said(holdfast: Holdfast, tmp_path: Path) -> None:
    done = holdfast("salvage", tmp_path / "nowhere.db", tmp_path / "new.db")
    assert (done.code, done.out) == (1, "")
    assert not (tmp_path / "new.db").exists()
