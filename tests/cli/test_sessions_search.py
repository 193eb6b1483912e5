"""`sessions search` finds what was said, and says where."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import SessionDB
from tests.cli.conftest import BRANCH, TRIP
from tests.support import cli_process

Holdfast = Callable[..., cli_process.Run]


def test_a_hit_is_shown_with_its_place(holdfast: Holdfast, trip: Path) -> None:
    done = holdfast("sessions", "search", "only", "in", "the", "branches", "--db", trip)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[:2] == [
        f"{BRANCH} 6 user 2026-05-28 20:34  Trip to Lisbon #2",
        "   only in the branch",
    ]


def test_nothing_found_says_so_and_exits_with_1(holdfast: Holdfast, trip: Path) -> None:
    done = holdfast("sessions", "search", "walrus", "--db", trip)
    assert (done.code, done.out) == (1, "")
    assert "Nothing found" in done.err


def test_json_has_hits_and_neighbours(holdfast: Holdfast, trip: Path) -> None:
    data = holdfast("sessions", "search", '"message 3"', "--json", "--neighbours", "1", "--db", trip).data
    (hit,) = data["hits"]
    assert (hit["conversation_id"], hit["seq"], hit["content"]) == (TRIP, 3, "message 3")
    assert hit["title"] == "Trip to Lisbon"
    assert [message["content"] for message in hit["before"] + hit["after"]] == ["message 2", "message 4"]


def test_a_conversation_can_be_named_as_people_name_it(holdfast: Holdfast, trip: Path) -> None:
    data = holdfast("sessions", "search", "message", "--in", "Trip to Lisbon", "--json", "--db", trip).data
    assert {hit["conversation_id"] for hit in data["hits"]} == {TRIP}
    assert holdfast("sessions", "search", "message", "--in", "nowhere", "--db", trip).code == 1


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--role", "tool"], 1),
        (["--tool", "ls"], 2),
        (["--after", "2030-01-01"], 0),
    ],
)
def test_filters(holdfast: Holdfast, trip: Path, options: list[str], found: int) -> None:
    done = holdfast("sessions", "search", "etc", "home", "ls", *options, "--json", "--db", trip)
    assert len(done.data["hits"]) == found


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--after", "2026-05-28 20:33"], 1),
        (["--after", "2026-05-28T20:34:00"], 0),
        (["--before", "2026-05-28"], 0),
        (["--before", "2026-05-29", "--after", "2026-05-28"], 1),
    ],
)
def test_days_and_times_are_written_as_people_write_them(
    holdfast: Holdfast, trip: Path, options: list[str], found: int
) -> None:
    done = holdfast("sessions", "search", '"etc home"', *options, "--json", "--db", trip)
    assert len(done.data["hits"]) == found


def test_text_of_a_message_cannot_reach_the_terminal_raw(holdfast: Holdfast, trip: Path) -> None:
    with SessionDB(trip) as db:
        db.append_message("other", role="user", content="a walrus \x1b[31mred\x1b]0;title\x07")
    done = holdfast("sessions", "search", "walrus", "--db", trip)
    assert done.code == 0
    assert "\x1b" not in done.out


LOCKER = """
import apsw, sys
connection = apsw.Connection(sys.argv[1])
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_locked_index_is_searched_as_far_as_it_goes(holdfast: Holdfast, trip: Path) -> None:
    with SessionDB(trip) as db:
        db.admin.update_search_index()
        db.append_message("other", role="user", content="message of the last minute")
    command = [sys.executable, "-c", LOCKER, f"{trip}.search"]
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


@pytest.mark.parametrize("arguments", [[], ["x", "--role", "king"], ["x", "--limit", "0"], ["x", "--after", "soon"]])
def test_wrong_use_is_one_sentence_and_exits_with_2(holdfast: Holdfast, trip: Path, arguments: list[str]) -> None:
    done = holdfast("sessions", "search", *arguments, "--db", trip)
    assert done.code == 2
    assert "%" not in done.sentence
