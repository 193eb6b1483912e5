"""`--continue` prefers the current folder, leaves out one-shot conversations, and says when it goes elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import SessionDB, content_parts, errors
from holdfast.cli import session_choice
from tests.support import cli_zygote, pty_terminal

OFFLINE = {"HOLDFAST_MODEL": "offline"}
NOTICE = "No earlier conversation in this folder: continuing the most recent one"


def spoken(db: SessionDB, name: str, folder: Path | None, source: str = "terminal", times: int = 1) -> None:
    db.create_session(name, source=source, folder=str(folder) if folder else None, title=f"About {name}")
    for _ in range(times):
        db.append_message(name, role="user", content="A question.")
        db.append_message(name, role="assistant", content="An answer.")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(db: SessionDB, *, one_shots: bool = False) -> tuple[str, str | None]:
    head, notice = session_choice.find_latest(db, one_shots=one_shots)
    return head.id, notice


def test_most_recent_conversation_of_the_folder_is_continued_before_newer_ones_elsewhere(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_choice, "PAGE", 5)
    with SessionDB(":memory:") as db:
        spoken(db, "elsewhere", here / "other")
        assert found(db) == ("elsewhere", f"{NOTICE}, from {here / 'other'}.")
        spoken(db, "nowhere", None)
        assert found(db) == ("nowhere", f"{NOTICE}.")
        spoken(db, "older", here)
        spoken(db, "newer", here)
        for number in range(session_choice.PAGE + 1):  # of no folder, so listed in each
            spoken(db, f"chat{number}", None)
        spoken(db, "last", here / "other")
        assert found(db) == ("newer", None)


def test_one_shot_conversation_is_continued_only_with_a_prompt_or_once_it_was_continued(here: Path) -> None:
    with SessionDB(":memory:") as db:
        spoken(db, "shot", here, "cli")
        with pytest.raises(errors.NoSuchSession, match="-c -p TEXT"):
            session_choice.find_latest(db, one_shots=False)
        spoken(db, "chat", here / "other")
        assert found(db) == ("chat", f"{NOTICE}, from {here / 'other'}.")
        assert found(db, one_shots=True) == ("shot", None)
        db.append_message("shot", role="user", content=[content_parts.notice("The build ended.", "process")])
        assert found(db)[0] == "chat"
        db.append_message("shot", role="user", content="And then?")
        assert found(db) == ("shot", None)


def test_prompt_continued_from_another_folder_tells_user_model_and_lists(
    tmp_path: Path, asking: cli_zygote.Server
) -> None:
    store = tmp_path / "data" / "holdfast.db"
    with SessionDB(store) as db:
        spoken(db, "talk", Path("/work/trip"))
    first = asking.run(tmp_path, "-c", "-p", "Where are we?", env=OFFLINE)
    moved = f"This conversation was in /work/trip. It continues in {tmp_path}."
    assert (first.code, first.err.splitlines()[:2]) == (0, [f"{NOTICE}, from /work/trip.", moved])
    with SessionDB(store) as db:
        (message,) = db.transcript("talk", 2, 3)
        assert str(tmp_path) in content_parts.text(
            [{**part, "type": "text"} for part in message.content if isinstance(part, dict)]
        )
    assert "folder" not in asking.run(tmp_path, "-c", "-p", "Thanks.", env=OFFLINE).err
    (listed,) = asking.run(tmp_path, "sessions", "list", "--json").data["conversations"]
    assert listed["folder"] == str(tmp_path)
    assert f"folder        {tmp_path}" in asking.run(tmp_path, "-c", "-p", "/status", env=OFFLINE).out


def test_chat_says_that_a_conversation_comes_from_another_folder(tmp_path: Path) -> None:
    with SessionDB(tmp_path / "data" / "holdfast.db") as db:
        spoken(db, "talk", Path("/work/trip"))
        spoken(db, "shot", tmp_path, "cli")
    with pty_terminal.opened(tmp_path, "-c", columns=200, env=OFFLINE) as screen:
        screen.wait_for("continuing the most recent one, from /work/trip.")
        screen.wait_for("About talk")
        screen.enter("Hello.")
        screen.wait_for("This conversation was in /work/trip. It continues in ")
        screen.enter("/status")
        screen.wait_for(f"folder        {tmp_path}")
        screen.enter("/quit")
        assert screen.end() == 0
