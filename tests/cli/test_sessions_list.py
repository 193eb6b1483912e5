"""`sessions list` shows one line a conversation, whatever its title holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from holdfast import SessionDB, content_parts
from tests.cli.conftest import BRANCH, SECOND, THIRD, TRIP
from tests.support import cli_process

Holdfast = Callable[..., cli_process.Run]


def hostile(path: Path, title: str) -> None:
    """A title the store itself would have cleaned, written past it."""
    with SessionDB(path) as db:
        db.driver._writer.execute("UPDATE conversations SET title = ? WHERE id = 'other'", (title,))  # type: ignore[attr-defined]


def test_one_line_a_conversation_most_recent_first(holdfast: Holdfast, trip: Path) -> None:
    done = holdfast("sessions", "list", "--db", trip)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        'other                   1  2026-05-28 20:36  ended: done  -           "hi"',
        f"{BRANCH}            6  2026-05-28 20:34  live         /work/trip  Trip to Lisbon #2",
        f"{TRIP}  8  2026-05-28 20:33  live         /work/trip  Trip to Lisbon",
    ]


def test_all_lists_every_session(holdfast: Holdfast, trip: Path) -> None:
    done = holdfast("sessions", "list", "--all", "--db", trip)
    assert [line.split()[0] for line in done.out.splitlines()] == ["other", BRANCH, THIRD, SECOND, TRIP]


def test_limit_is_kept_and_said(holdfast: Holdfast, trip: Path) -> None:
    done = holdfast("sessions", "list", "--limit", "2", "--db", trip)
    assert (len(done.out.splitlines()), done.code) == (2, 0)
    assert "--limit" in done.err
    assert holdfast("sessions", "list", "--limit", "3", "--db", trip).err == ""


def test_json_has_every_conversation(holdfast: Holdfast, trip: Path) -> None:
    data = holdfast("sessions", "list", "--json", "--db", trip).data
    assert (data["database"], data["more"]) == (str(trip), False)
    assert data["conversations"][2] == {
        "id": TRIP,
        "title": "Trip to Lisbon",
        "owner": "",
        "source": "cli",
        "messages": 8,
        "last_active": 1_780_000_420.0,
        "live": True,
        "end_reason": None,
        "folder": "/work/trip",
        "head": THIRD,
        "begins": "message 1",
    }


def test_without_a_title_a_conversation_is_told_by_how_it_begins(holdfast: Holdfast, tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    with SessionDB(path) as db:
        for name in ("empty", "first", "late", "noted"):
            db.create_session(name, source="test")
        db.append_message("first", role="system", content="You are helpful.")
        db.append_message("first", role="user", content=f"When does\n\x1b[2J the train {'x' * 100}")
        db.append_message("late", role="assistant", content="Hello!")
        noted = [content_parts.note("It is Sunday."), {"type": "text", "text": "Good morning"}]
        db.append_message("noted", role="user", content=noted)
    ends = {
        line.split()[0]: line.partition("live  -")[2].strip()
        for line in holdfast("sessions", "list", "--db", path).out.splitlines()
    }
    begun = f'"When does \\x1b[2J the train {"x" * 32}..."'
    assert ends == {"empty": "", "late": "", "first": begun, "noted": '"Good morning"'}


def test_json_of_all_has_every_session(holdfast: Holdfast, trip: Path) -> None:
    sessions = holdfast("sessions", "list", "--json", "--all", "--db", trip).data["sessions"]
    ended = next(session for session in sessions if session["id"] == SECOND)
    assert (ended["conversation_id"], ended["parent_session_id"], ended["message_count"]) == (TRIP, TRIP, 2)
    assert (ended["first_seq"], ended["last_seq"], ended["end_reason"], ended["live"]) == (7, 8, "compression", False)


def test_an_empty_store_has_no_lines(holdfast: Holdfast, tmp_path: Path) -> None:
    SessionDB(tmp_path / "new.db").close()
    done = holdfast("sessions", "list", "--db", tmp_path / "new.db")
    assert (done.code, done.out) == (0, "")
    assert "no conversations" in done.err


def test_a_hostile_title_reaches_the_terminal_spelled_out(holdfast: Holdfast, trip: Path, tmp_path: Path) -> None:
    hostile(trip, "\x1b]0;owned\x07\x1b[2J\u202e\x9b")
    for arguments in (["list"], ["tree"], ["show", "other"], ["list", "--json"], ["tree", "--json"]):
        done = holdfast("sessions", *arguments, "--db", trip)
        assert done.code == 0
        assert "owned" in done.out
        assert not set(done.out) & set("\x1b\x07\u202e\x9b")


def test_on_a_terminal_lines_fit_and_have_a_heading(trip: Path, tmp_path: Path) -> None:
    hostile(trip, "漢字" * 50)
    shown = cli_process.run_in_terminal(tmp_path, "sessions", "list", "--db", trip, columns=70, env={"NO_COLOR": "1"})
    lines = shown.out.splitlines()
    assert lines[0].startswith("conversation")
    assert lines[1].endswith("…")
    assert all(len(line) <= 70 for line in lines)
    assert "\x1b" not in shown.out


def test_colour_is_for_terminals_only(trip: Path, tmp_path: Path, holdfast: Holdfast) -> None:
    assert "\x1b[" in cli_process.run_in_terminal(tmp_path, "sessions", "tree", "--db", trip, columns=80).out
    assert "\x1b" not in holdfast("sessions", "tree", "--db", trip).out
