"""`sessions search` finds messages and names their place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import SessionDB
from tests.cli.conftest import BRANCH, TRIP
from tests.support.cli_process import Holdfast


def test_hit_is_shown_with_its_place(holdfast: Holdfast, trip: Path) -> None:
    with SessionDB(trip) as db:
        db.append_message("other", role="user", content="a walrus \x1b[31mred\x1b]0;title\x07")
    done = holdfast("sessions", "search", "only", "in", "the", "branches", "--db", trip)
    assert (done.code, done.err) == (0, "")
    place = f"{BRANCH} 6 user 2026-05-28 20:34  Trip to Lisbon #2"
    assert done.out.splitlines()[:2] == [place, "   only in the branch"]
    assert "\x1b" not in holdfast("sessions", "search", "walrus", "--db", trip).out
    nothing = holdfast("sessions", "search", "zebra", "--db", trip)
    assert (nothing.code, nothing.out) == (1, "")
    assert "Nothing found" in nothing.err


def test_json_has_hits_with_neighbours(holdfast: Holdfast, trip: Path) -> None:
    data = holdfast("sessions", "search", '"message 3"', "--json", "--neighbours", "1", "--db", trip).data
    (hit,) = data["hits"]
    assert (hit["conversation_id"], hit["seq"], hit["content"]) == (TRIP, 3, "message 3")
    assert hit["title"] == "Trip to Lisbon"
    assert [message["content"] for message in hit["before"] + hit["after"]] == ["message 2", "message 4"]


@pytest.mark.parametrize(
    ("options", "seqs"),
    [
        (["--role", "tool"], [8]),
        (["--role", "user"], []),
        (["--tool", "ls"], [8]),
        (["--in", "Trip to Lisbon"], [8]),
        (["--after", "2026-05-28 20:33"], [8]),
        (["--after", "2026-05-28T20:34:00"], []),
        (["--before", "2026-05-28"], []),
        (["--before", "2026-05-29", "--after", "2026-05-28"], [8]),
    ],
)
def test_filters_narrow_the_search(holdfast: Holdfast, trip: Path, options: list[str], seqs: list[int]) -> None:
    done = holdfast("sessions", "search", '"etc home"', *options, "--json", "--db", trip)
    assert [hit["seq"] for hit in done.data["hits"]] == seqs


@pytest.mark.parametrize(
    ("words", "code"), [("", 2), ("x --role king", 2), ("x --limit 0", 2), ("x --after soon", 2), ("x --in nowhere", 1)]
)
def test_invalid_filter_is_one_sentence(holdfast: Holdfast, trip: Path, words: str, code: int) -> None:
    done = holdfast("sessions", "search", *words.split(), "--db", trip)
    assert done.code == code
    assert "%" not in done.sentence


LOCK = """
import apsw, sys
connection = apsw.Connection(sys.argv[1])
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"""


def test_locked_index_is_searched_with_a_warning(holdfast: Holdfast, trip: Path) -> None:
    with SessionDB(trip) as db:
        db.admin.update_search_index()
        db.append_message("other", role="user", content="message of the last minute")
    command = [sys.executable, "-c", LOCK, f"{trip}.search"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as locker:
        assert locker.stdout is not None
        assert locker.stdout.readline() == "locked\n"
        done = holdfast("sessions", "search", '"message 3"', "--json", "--db", trip)
        late = holdfast("sessions", "search", "minute", "--db", trip)
        locker.communicate("")
    assert (done.code, [hit["seq"] for hit in done.data["hits"]]) == (0, [3])
    assert "newest messages may be missing" in done.err
    assert (late.code, late.out) == (1, "")
    assert holdfast("sessions", "search", "minute", "--db", trip).code == 0
