"""`--resume` without a value: typing finds a conversation, whoever leaves changes nothing, dumb terminals work, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import SessionDB
from holdfast.cli import session_choice
from tests.support import cli_zygote, pty_terminal

OFFLINE = {"HOLDFAST_MODEL": "offline"}
ENTER, ESCAPE, CTRL_C, DOWN = "\r", "\x1b", "\x03", "\x1b[B"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Twenty conversations: the first of them is not among those that a page has."""
    path, now = tmp_path / "data" / "holdfast.db", [1_780_000_000.0]
    with SessionDB(path, clock=lambda: now[0]) as db:
        for number in range(1, 21):
            now[0] += 60
            here = db.create_session(f"id{number:02}", source="test", title=f"Trip {number}" if number > 1 else None).id
            db.append_message(here, role="user", content=f"The boat number {number} is called {'Ada' * (number == 3)}.")
            db.append_message(here, role="assistant", content="Noted.")
    return path


# --- what is found -------------------------------------------------------------------------------------


def ids(heads: object) -> list[str]:
    assert isinstance(heads, list)
    return [head.conversation_id for head in heads]


def test_titles_and_ids_of_all_conversations_are_looked_through(store: Path) -> None:
    with SessionDB(store) as db:
        shelf = session_choice.ConversationList(db)
        assert len(shelf.find_by_name("")) == 20
        assert ids(shelf.find_by_name(""))[0] == "id20"
        assert ids(shelf.find_by_name("tRIP 2")) == ["id20", "id12", "id02"]
        assert ids(shelf.find_by_name("id01")) == ["id01"]
        assert ids(shelf.find_by_name("nobody")) == []


def test_what_was_said_is_found_and_nothing_that_cannot_be_searched_for_is_an_error(store: Path) -> None:
    with SessionDB(store) as db:
        shelf = session_choice.ConversationList(db)
        assert ids(shelf.find_by_message("called Ada"))[0] == "id03"
        for odd in ('"', "\x00", "*", "(", "'", "AND", "x" * 100_000):
            assert ids(shelf.find_by_message(odd)) == []
        assert shelf.first_message(shelf.find_by_name("id01")[0]).startswith("The boat number 1 is called")


# --- at a terminal -------------------------------------------------------------------------------------


def test_what_is_typed_finds_it_and_enter_takes_it(store: Path, tmp_path: Path) -> None:
    with pty_terminal.opened(tmp_path, "--resume", env=OFFLINE) as screen:
        screen.wait_for("Which conversation?")
        screen.wait_for("1 of 20")
        screen.type("id01")
        screen.wait_for("1 of 1")
        screen.type(ENTER)
        screen.wait_for("id01 · 2 messages")
        assert screen.leave() == 0


@pytest.mark.parametrize("key", [ESCAPE, CTRL_C], ids=["esc", "ctrl-c"])
def test_whoever_leaves_the_list_leaves_with_130_and_changes_nothing(store: Path, tmp_path: Path, key: str) -> None:
    with SessionDB(store) as db:
        before = db.list_sessions()
    with pty_terminal.opened(tmp_path, "--resume", env=OFFLINE) as screen:
        screen.wait_for("1 of 20")
        screen.type(f"Trip{key}")
        assert screen.end() == 130
        assert screen.shown.endswith("Interrupted.\n")
        assert screen.echoes()
    with SessionDB(store) as db:
        assert db.list_sessions() == before


def test_a_dumb_terminal_gets_numbers(store: Path, tmp_path: Path) -> None:
    with pty_terminal.opened(tmp_path, "--resume", env={**OFFLINE, "TERM": "dumb"}) as screen:
        screen.wait_for("  1  ")
        screen.wait_for("Trip 20")
        screen.wait_for("Conversation (number")
        screen.type(f"2{ENTER}")
        screen.wait_for("Trip 19 · 2 messages")


def test_without_conversations_that_is_said(tmp_path: Path) -> None:
    SessionDB(tmp_path / "empty.db").close()
    with pty_terminal.opened(tmp_path, "--resume", "--db", tmp_path / "empty.db", env=OFFLINE) as screen:
        assert screen.end() == 1
        assert "There are no conversations yet." in screen.shown


def test_without_a_terminal_it_is_wrong_use(store: Path, tmp_path: Path, waiting: cli_zygote.Server) -> None:
    done = waiting.run(tmp_path, "--resume", env=OFFLINE)
    assert done.code == 2
    assert "needs a terminal" in done.sentence
