"""`--continue` prefers the current folder; `--resume` without a value offers a list."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import SessionDB, content_parts, errors, types
from holdfast.cli import session_choice
from tests.support.cli_process import OFFLINE, Holdfast
from tests.support.pty_terminal import open_terminal

ENTER, ESCAPE, CTRL_C = "\r", "\x1b", "\x03"
NOTICE = "No earlier conversation in this folder: continuing the most recent one"


def create(db: SessionDB, name: str, folder: Path | None, source: str = "terminal") -> None:
    db.create_session(name, source=source, folder=str(folder) if folder else None, title=f"About {name}")
    db.append_message(name, role="user", content="A question.")
    db.append_message(name, role="assistant", content="An answer.")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def find(db: SessionDB, *, one_shots: bool = False) -> tuple[str, str | None]:
    head, notice = session_choice.find_latest(db, one_shots=one_shots)
    return head.id, notice


def test_conversation_of_the_folder_precedes_newer_ones_elsewhere(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_choice, "PAGE", 5)
    with SessionDB(":memory:") as db:
        create(db, "elsewhere", here / "other")
        assert find(db) == ("elsewhere", f"{NOTICE}, from {here / 'other'}.")
        create(db, "nowhere", None)
        assert find(db) == ("nowhere", f"{NOTICE}.")
        create(db, "older", here)
        create(db, "newer", here)
        for number in range(session_choice.PAGE + 1):  # without a folder, so listed in every folder
            create(db, f"chat{number}", None)
        create(db, "last", here / "other")
        assert find(db) == ("newer", None)


def test_one_shot_conversation_is_continued_with_a_prompt_or_after_a_reply(here: Path) -> None:
    with SessionDB(":memory:") as db:
        create(db, "shot", here, "cli")
        with pytest.raises(errors.NoSuchSession, match="-c -p TEXT"):
            session_choice.find_latest(db, one_shots=False)
        create(db, "chat", here / "other")
        assert find(db) == ("chat", f"{NOTICE}, from {here / 'other'}.")
        assert find(db, one_shots=True) == ("shot", None)
        db.append_message("shot", role="user", content=[content_parts.notice("The build ended.", "process")])
        assert find(db)[0] == "chat"
        db.append_message("shot", role="user", content="And then?")
        assert find(db) == ("shot", None)


@pytest.fixture
def store(home: Path) -> Path:
    """Twenty conversations: the first one is not on the first page."""
    path, now = home / "holdfast.db", [1_780_000_000.0]
    with SessionDB(path, clock=lambda: now[0]) as db:
        for number in range(1, 21):
            now[0] += 60
            here = db.create_session(f"id{number:02}", source="test", title=f"Trip {number}" if number > 1 else None).id
            db.append_message(here, role="user", content=f"The boat number {number} is called {'Ada' * (number == 3)}.")
            db.append_message(here, role="assistant", content="Noted.")
    return path


def test_list_is_searched_by_title_id_and_text(store: Path) -> None:
    def ids(heads: list[types.Session]) -> list[str]:
        return [head.conversation_id for head in heads]

    with SessionDB(store) as db:
        found = session_choice.ConversationList(db)
        assert len(found.find_by_name("")) == 20
        assert ids(found.find_by_name(""))[0] == "id20"
        assert ids(found.find_by_name("tRIP 2")) == ["id20", "id12", "id02"]
        assert ids(found.find_by_name("id01")) == ["id01"]
        assert ids(found.find_by_name("unknown")) == []
        assert ids(found.find_by_message("called Ada"))[0] == "id03"
        for odd in ('"', "\x00", "*", "(", "'", "AND", "x" * 100_000):
            assert ids(found.find_by_message(odd)) == []
        assert found.first_message(found.find_by_name("id01")[0]).startswith("The boat number 1 is called")


def test_typing_filters_the_list_and_enter_opens(store: Path, tmp_path: Path) -> None:
    with open_terminal(tmp_path, "--resume", env=OFFLINE) as screen:
        screen.wait_for("Which conversation?")
        screen.wait_for("1 of 20")
        screen.type("id01")
        screen.wait_for("1 of 1")
        screen.type(ENTER)
        screen.wait_for("id01 · 2 messages")
        assert screen.leave() == 0


@pytest.mark.parametrize("key", [ESCAPE, CTRL_C], ids=["esc", "ctrl-c"])
def test_list_is_left_with_130_and_without_a_change(store: Path, tmp_path: Path, key: str) -> None:
    with SessionDB(store) as db:
        before = db.list_sessions()
    with open_terminal(tmp_path, "--resume", env=OFFLINE) as screen:
        screen.wait_for("1 of 20")
        screen.type(f"Trip{key}")
        assert screen.end() == 130
        assert screen.shown.endswith("Interrupted.\n")
        assert screen.echoes()
    with SessionDB(store) as db:
        assert db.list_sessions() == before


def test_dumb_terminal_offers_numbers(store: Path, tmp_path: Path) -> None:
    with open_terminal(tmp_path, "--resume", env={**OFFLINE, "TERM": "dumb"}) as screen:
        screen.wait_for("  1  ")
        screen.wait_for("Trip 20")
        screen.wait_for("Conversation (number")
        screen.type(f"2{ENTER}")
        screen.wait_for("Trip 19 · 2 messages")


def test_resume_needs_a_terminal_and_conversations(holdfast: Holdfast, tmp_path: Path) -> None:
    SessionDB(tmp_path / "empty.db").close()
    with open_terminal(tmp_path, "--resume", "--db", tmp_path / "empty.db", env=OFFLINE) as screen:
        assert screen.end() == 1
        assert "There are no conversations yet." in screen.shown
    assert "needs a terminal" in holdfast("--resume", **OFFLINE).failure(2)
