"""`sessions list`, `sessions tree` and `sessions search`."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import SessionDB, content_parts
from tests.cli.conftest import BRANCH, SECOND, THIRD, TRIP
from tests.support import backends, pty_terminal
from tests.support.cli_process import Holdfast


def set_raw_title(path: Path, title: str) -> None:
    """Write a title that the store itself would have cleaned."""
    with SessionDB(path) as db:
        backends.raw(db, "UPDATE conversations SET title = ? WHERE id = 'other'", title)


def test_list_has_one_line_per_conversation(sessions: Holdfast) -> None:
    done = sessions("list")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        'other                   1  2026-05-28 20:36  ended: done  -           "hi"',
        f"{BRANCH}            6  2026-05-28 20:34  live         /work/trip  Trip to Lisbon #2",
        f"{TRIP}  8  2026-05-28 20:33  live         /work/trip  Trip to Lisbon",
    ]
    everything = sessions("list", "--all")
    assert [line.split()[0] for line in everything.out.splitlines()] == ["other", BRANCH, THIRD, SECOND, TRIP]


@pytest.mark.parametrize(("command", "limit", "lines"), [("list", 2, 2), ("list", 3, 3), ("tree", 1, 2)])
def test_limit_is_applied_and_reported(sessions: Holdfast, command: str, limit: int, lines: int) -> None:
    done = sessions(command, "--limit", str(limit))
    assert (done.code, len(done.out.splitlines())) == (0, lines)
    assert ("--limit" in done.err) is (limit < 3)


def test_list_as_json(sessions: Holdfast, trip: Path) -> None:
    data = sessions("list", "--json").data
    assert (data["database"], data["more"]) == (str(trip), False)
    place = {"id": TRIP, "head": THIRD, "owner": "", "source": "cli", "folder": "/work/trip", "title": "Trip to Lisbon"}
    state = {"messages": 8, "last_active": 1_780_000_420.0, "live": True, "end_reason": None, "begins": "message 1"}
    assert data["conversations"][2] == place | state
    listed = sessions("list", "--json", "--all").data["sessions"]
    ended = next(session for session in listed if session["id"] == SECOND)
    assert (ended["conversation_id"], ended["parent_session_id"], ended["message_count"]) == (TRIP, TRIP, 2)
    assert (ended["first_seq"], ended["last_seq"], ended["end_reason"], ended["live"]) == (7, 8, "compression", False)


def test_conversation_without_title_is_shown_by_its_first_message(holdfast: Holdfast, tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    with SessionDB(path) as db:
        for name in ("empty", "first", "late", "noted"):
            db.create_session(name, source="test")
        db.append_message("first", role="system", content="You are helpful.")
        db.append_message("first", role="user", content=f"When does\n\x1b[2J the train {'x' * 100}")
        db.append_message("late", role="assistant", content="Hello!")
        noted = [content_parts.note("It is Sunday."), {"type": "text", "text": "Good morning"}]
        db.append_message("noted", role="user", content=noted)
    lines = holdfast("sessions", "list", "--db", path).out.splitlines()
    shown = {line.split()[0]: line.partition("live  -")[2].strip() for line in lines}
    first = f'"When does \\x1b[2J the train {"x" * 32}..."'
    assert shown == {"empty": "", "late": "", "first": first, "noted": '"Good morning"'}


@pytest.mark.parametrize("words", ["list", "tree", "show other", "list --json", "tree --json"])
def test_control_characters_of_a_title_are_escaped(sessions: Holdfast, trip: Path, words: str) -> None:
    set_raw_title(trip, "\x1b]0;owned\x07\x1b[2J\u202e\x9b")
    done = sessions(*words.split())
    assert done.code == 0
    assert "owned" in done.out
    assert not set(done.out) & set("\x1b\x07\u202e\x9b")


def test_lines_fit_a_terminal(trip: Path, tmp_path: Path) -> None:
    set_raw_title(trip, "漢字" * 50)
    plain = {"NO_COLOR": "1"}
    listed = pty_terminal.run(tmp_path, "sessions", "list", "--db", trip, columns=70, env=plain).out.splitlines()
    assert listed[0].startswith("conversation")
    assert listed[1].endswith("…")
    assert max(map(len, listed)) <= 70
    assert "\x1b[" in pty_terminal.run(tmp_path, "sessions", "tree", "--db", trip, columns=80).out


TREE = f"""\
{TRIP}  Trip to Lisbon  8 messages
├─ ○ {TRIP}  1–6  ended 2026-05-28 20:32: compression
│  └─ branch  {BRANCH}  Trip to Lisbon #2  6 messages  shares 1–5 of {TRIP}
│     └─ ● {BRANCH}  6  live  <- head
├─ ◆ cut after 4, 5–6 stay, epoch 2, pinned 2, summary of 17 characters, in force
├─ ○ {SECOND}  7–8  ended 2026-05-28 20:35: compression
├─ ◆ cut after 6, 7–8 stay, epoch 3, summary of 7 characters, undone
└─ ● {THIRD}  no messages  live  <- head
"""
OTHER = """\
other  1 message  ended
└─ ○ other  1  ended 2026-05-28 20:37: done  <- head
"""


@pytest.mark.parametrize(
    ("names", "shown"), [*(([name], TREE) for name in (TRIP, THIRD, BRANCH, "20260529")), ([], f"{OTHER}\n{TREE}")]
)
def test_tree_is_the_whole_lineage_of_any_part_or_of_all(sessions: Holdfast, names: list[str], shown: str) -> None:
    assert sessions("tree", *names) == (0, shown, "")


def test_hit_is_shown_with_its_place(sessions: Holdfast, trip: Path) -> None:
    with SessionDB(trip) as db:
        db.append_message("other", role="user", content="a walrus \x1b[31mred\x1b]0;title\x07")
    done = sessions("search", "only", "in", "the", "branches")
    assert (done.code, done.err) == (0, "")
    place = f"{BRANCH} 6 user 2026-05-28 20:34  Trip to Lisbon #2"
    assert done.out.splitlines()[:2] == [place, "   only in the branch"]
    assert "\x1b" not in sessions("search", "walrus").out
    nothing = sessions("search", "zebra")
    assert (nothing.code, nothing.out) == (1, "")
    assert "Nothing found" in nothing.err


@pytest.mark.parametrize(
    ("options", "seqs"),
    [
        (["--role", "tool"], [8]),
        (["--tool", "ls"], [8]),
        (["--in", "Trip to Lisbon"], [8]),
        (["--after", "2026-05-28 20:33"], [8]),
        (["--before", "2026-05-29", "--after", "2026-05-28"], [8]),
    ],
)
def test_filters_narrow_the_search(sessions: Holdfast, options: list[str], seqs: list[int]) -> None:
    done = sessions("search", '"etc home"', *options, "--json")
    assert [hit["seq"] for hit in done.data["hits"]] == seqs


@pytest.mark.parametrize(
    ("words", "code"), [("", 2), ("x --role king", 2), ("x --limit 0", 2), ("x --after soon", 2), ("x --in nowhere", 1)]
)
def test_invalid_filter_is_one_sentence(sessions: Holdfast, words: str, code: int) -> None:
    assert "%" not in sessions("search", *words.split()).failure(code)
