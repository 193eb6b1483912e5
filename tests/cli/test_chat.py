"""The chat on a real terminal: what is typed is answered as it streams, Ctrl-C stops, and everything stays."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from holdfast import SessionDB
from holdfast.chat import chat
from tests.support import provider_process, pty_terminal

OFFLINE = {"HOLDFAST_MODEL": "offline"}
LEAVE = "\x04"
STOP = "\x03"
ENTER = "\r"


def log(home: Path) -> list[tuple[str, str]]:
    with SessionDB(home / "data" / "holdfast.db") as db:
        assert db.admin.fsck().ok
        heads = db.list_sessions()
        return [(each.role, _text(each.content)) for each in db.transcript(heads[0].id)] if heads else []


def _text(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "".join(p["text"] for p in content if p["type"] == "text")


# --- coming and going ----------------------------------------------------------------------------------


def test_a_conversation_is_remembered_when_it_goes_on(tmp_path: Path) -> None:
    with pty_terminal.opened(tmp_path, env=OFFLINE) as screen:
        screen.wait_for("A new conversation")
        screen.enter("My train leaves at 9:40.")
        screen.wait_for("Title: My train leaves at 9:40")
        screen.enter("/quit")
        assert screen.end() == 0
    with pty_terminal.opened(tmp_path, "--continue", env=OFFLINE) as screen:
        screen.wait_for("My train leaves at 9:40 · 2 messages")
        screen.wait_for("> My train leaves at 9:40.")
        screen.enter("When does my train leave?")
        screen.wait_for("“My train leaves at 9:40.”")
        assert screen.leave() == 0


def test_no_key_and_no_server_is_the_offline_model_which_says_so(tmp_path: Path) -> None:
    with pty_terminal.opened(tmp_path, columns=200) as screen:
        screen.wait_for("holdfast/offline")
        screen.wait_for("this is the built-in offline model")
        assert screen.leave() == 0


def test_whoever_says_nothing_leaves_nothing(tmp_path: Path) -> None:
    with pty_terminal.opened(tmp_path, env=OFFLINE) as screen:
        screen.enter("/new Trip")
        screen.wait_for("A new conversation")
        screen.enter("/status")
        screen.wait_for("begins with your first message")
        screen.enter("/sessions")
        screen.wait_for("There are no conversations yet.")
        assert screen.leave() == 0
    assert log(tmp_path) == []


@pytest.mark.parametrize(("keys", "code"), [(LEAVE, 0), (STOP + STOP, 0), (f"/quit{ENTER}", 0)])
def test_there_are_three_ways_to_leave(tmp_path: Path, keys: str, code: int) -> None:
    with pty_terminal.opened(tmp_path, env=OFFLINE) as screen:
        screen.wait_for("> ")
        for key in keys if keys.startswith(STOP) else [keys]:
            screen.type(key)
            if keys.startswith(STOP) and chat.LEAVE_WARNING not in screen.shown:
                screen.wait_for(chat.LEAVE_WARNING)
                screen.wait_for("> ")
        assert screen.end() == code


def test_ctrl_c_takes_a_line_back_and_does_not_leave(tmp_path: Path) -> None:
    with pty_terminal.opened(tmp_path, env=OFFLINE) as screen:
        screen.wait_for("> ")
        screen.type("never sent")
        screen.wait_for("sent")
        screen.type(STOP)
        screen.enter("sent instead")
        screen.wait_for("Title: sent instead")
        assert screen.leave() == 0
    assert log(tmp_path)[0] == ("user", "sent instead")


# --- a turn --------------------------------------------------------------------------------------------


def test_ctrl_c_stops_the_turn_and_keeps_what_was_said(tmp_path: Path) -> None:
    with (
        provider_process.playing(
            provider_process.said_and_hung("Once", " upon"), provider_process.said("Well then.")
        ) as played,
        pty_terminal.opened(tmp_path, env=played.env) as screen,
    ):
        screen.enter("tell me")
        screen.wait_for("Once upon")
        screen.type(STOP)
        screen.wait_for("Interrupted. The conversation up to here is saved.")
        screen.enter("go on")
        screen.wait_for("Well then.")
        assert screen.leave() == 0
    roles = [role for role, _ in log(tmp_path)]
    assert roles == ["user", "assistant", "user", "assistant"]
    assert log(tmp_path)[1][1] == "Once upon"


def test_what_is_typed_during_an_answer_waits_for_the_prompt_and_stays_out_of_the_answer(tmp_path: Path) -> None:
    with (
        provider_process.playing(
            provider_process.said_and_hung("Once"), provider_process.said("First."), provider_process.said("Second.")
        ) as played,
        pty_terminal.opened(tmp_path, env=played.env) as screen,
    ):
        screen.enter("tell me")
        screen.wait_for("Once")
        screen.type(f"{STOP}one{ENTER}two{ENTER}")
        screen.wait_for("> one")
        screen.wait_for("First.")
        screen.wait_for("> two")
        screen.wait_for("Second.")
        assert screen.leave() == 0
        assert re.search(r"Once\s+Interrupted", screen.shown)
    assert [words for role, words in log(tmp_path) if role == "user"] == ["tell me", "one", "two"]


def test_after_a_kill_the_conversation_goes_on_where_it_was(tmp_path: Path) -> None:
    with provider_process.playing(
        provider_process.said_and_hung("Once", " upon"), provider_process.said("A new try.")
    ) as played:
        with pty_terminal.opened(tmp_path, env=played.env) as screen:
            screen.enter("tell me")
            screen.wait_for("Once upon")
            screen.process.kill()
            assert screen.end() == -signal.SIGKILL
        with pty_terminal.opened(tmp_path, "-c", env=played.env) as screen:
            screen.wait_for("> tell me")
            screen.enter("still there?")
            screen.wait_for("A new try.")
            assert screen.leave() == 0
    assert log(tmp_path) == [("user", "tell me"), ("user", "still there?"), ("assistant", "A new try.")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "in a turn"])
def test_a_signal_to_leave_closes_cleanly(tmp_path: Path, number: int, busy: bool) -> None:
    with (
        provider_process.playing(provider_process.said_and_hung("Once", " upon")) as played,
        pty_terminal.opened(tmp_path, env=played.env) as screen,
    ):
        if busy:
            screen.enter("tell me")
            screen.wait_for("Once upon")
        else:
            screen.wait_for("> ")
        os.kill(screen.process.pid, number)
        assert screen.process.wait() == 128 + number
        assert screen.echoes()
        assert screen.end() == 128 + number
        assert "Traceback" not in screen.shown
    assert log(tmp_path) == ([("user", "tell me"), ("assistant", "Once upon")] if busy else [])


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (provider_process.refused(401, "Incorrect API key provided"), "key"),
        (provider_process.refused(404, "The model does not exist"), "openai/played"),
    ],
    ids=["bad key", "unknown model"],
)
def test_a_model_that_refuses_is_a_sentence_and_the_chat_goes_on(tmp_path: Path, answer: Any, sentence: str) -> None:
    with (
        provider_process.playing(answer, provider_process.said("Now it works.")) as played,
        pty_terminal.opened(tmp_path, env=played.env) as screen,
    ):
        screen.enter("hi")
        screen.wait_for(sentence)
        screen.enter("again")
        screen.wait_for("Now it works.")
        assert screen.leave() == 0
        assert "Traceback" not in screen.shown


# --- lines ---------------------------------------------------------------------------------------------


def test_a_line_may_go_on_and_what_is_pasted_keeps_its_lines(tmp_path: Path) -> None:
    with pty_terminal.opened(tmp_path, env=OFFLINE) as screen:
        screen.wait_for("> ")
        screen.type(f"one\x1b\rtwo{ENTER}")
        screen.wait_for("Noted")
        screen.wait_for("> ")
        screen.type(f"\x1b[200~three\r\nfour\r\n\x1b[201~{ENTER}")
        screen.wait_for("Noted")
        assert screen.leave() == 0
    assert [words for role, words in log(tmp_path) if role == "user"] == ["one\ntwo", "three\nfour"]


def test_two_slashes_send_a_line_that_begins_with_one(tmp_path: Path) -> None:
    with pty_terminal.opened(tmp_path, env=OFFLINE) as screen:
        screen.enter("/etc is full")
        screen.wait_for("Unknown command: '/etc'.")
        screen.enter("//etc is full")
        screen.wait_for("Noted")
        assert screen.leave() == 0
    assert log(tmp_path)[0] == ("user", "/etc is full")


def test_tab_completes_and_the_arrow_brings_back_what_was_typed(tmp_path: Path) -> None:
    for keys in (f"/stat\t{ENTER}", f"\x1b[A{ENTER}"):
        with pty_terminal.opened(tmp_path, env=OFFLINE) as screen:
            screen.wait_for("> ")
            screen.type(keys)
            screen.wait_for("conversation  begins with your first message")
            assert screen.leave() == 0
    history = tmp_path / "data" / "history"
    assert history.stat().st_mode & 0o777 == 0o600
    assert "+/status\n" in history.read_text()


def test_commands_move_between_conversations(tmp_path: Path) -> None:
    with pty_terminal.opened(tmp_path, env=OFFLINE) as screen:
        screen.enter("first words")
        screen.wait_for("Title: first words")
        screen.enter("/new Second one")
        screen.wait_for("A new conversation")
        screen.enter("second words")
        screen.wait_for("Title: Second one")
        screen.enter("/resume first words")
        screen.wait_for("first words · 2 messages")
        screen.wait_for("> first words")
        screen.enter("third words")
        screen.wait_for("Noted")
        assert screen.leave() == 0
    assert [words for role, words in log(tmp_path) if role == "user"] == ["first words", "third words"]


# --- terminals -----------------------------------------------------------------------------------------

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\r"


def test_nothing_a_model_or_a_title_says_acts_on_the_terminal(tmp_path: Path) -> None:
    with SessionDB(tmp_path / "own.db") as db:
        here = db.create_session(source="test").id
        db.append_message(here, role="user", content=f"asked {EVIL}")
        db.append_message(here, role="assistant", content=f"answered {EVIL}")
    (tmp_path / "evil.txt").write_text(EVIL)
    call = provider_process.called("read_file", '{"path": "evil.txt"}', f"said {EVIL}")
    with (
        provider_process.playing(call, provider_process.said("That", " is", " all.")) as played,
        pty_terminal.opened(tmp_path, "-c", "--db", tmp_path / "own.db", env=played.env) as screen,
    ):
        screen.wait_for("answered")
        screen.enter("hi")
        screen.wait_for("That is all.")
        assert screen.leave() == 0
        assert screen.shown.count("\\x1b]0;owned\\x07") >= 4
        for code in ("\x1b]0;", "\x1b[2J", "\x9b", "\u202e", "\x07"):
            assert code not in screen.raw


@pytest.mark.parametrize(
    ("env", "coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
    ids=["", "NO_COLOR", "dumb"],
)
def test_colour_is_for_terminals_that_want_it(tmp_path: Path, env: dict[str, str], coloured: bool) -> None:
    with pty_terminal.opened(tmp_path, env={**OFFLINE, **env}) as screen:
        screen.enter("/bogus")
        screen.wait_for("Type /help for the list.")
        assert screen.leave() == 0
        assert bool(re.search(r"\x1b\[[0-9;]*3[0-7]m", screen.raw)) == coloured


@pytest.mark.parametrize("columns", [80, 20])
def test_lines_of_ours_fit_the_terminal(tmp_path: Path, columns: int) -> None:
    (tmp_path / "notes.txt").write_text("a note that is longer than a narrow terminal is wide, and more\n")
    call = provider_process.called("read_file", '{"path": "notes.txt"}')
    with (
        provider_process.playing(call, provider_process.said("ok")) as played,
        pty_terminal.opened(tmp_path, columns=columns, env=played.env) as screen,
    ):
        screen.enter("hi")
        screen.wait_for("✓")
        screen.wait_for("ok\n")
        assert screen.leave() == 0
        drawn = [line for line in screen.shown.split("\n") if line[:1] in "HA→✓"]
        assert len(drawn) >= 4
        assert max(map(len, drawn)) <= columns


@pytest.mark.parametrize(
    ("env", "mark"),
    [
        ({"LC_ALL": "C.UTF-8"}, "✓ read_file"),
        ({"LC_ALL": "C"}, "✓ read_file"),
        ({"PYTHONIOENCODING": "ascii"}, "ok: read_file"),
    ],
    ids=["UTF-8", "C", "ascii"],
)
def test_any_locale_will_do(tmp_path: Path, env: dict[str, str], mark: str) -> None:
    (tmp_path / "notes.txt").write_text("a note")
    call = provider_process.called("read_file", '{"path": "notes.txt"}')
    with (
        provider_process.playing(call, provider_process.said("naïve 漢字")) as played,
        pty_terminal.opened(tmp_path, env={**played.env, **env}) as screen,
    ):
        screen.enter("hi")
        screen.wait_for(mark)
        screen.wait_for("na\\xefve \\u6f22\\u5b57" if "PYTHONIOENCODING" in env else "naïve 漢字")
        assert screen.leave() == 0


def test_a_home_that_cannot_be_written_costs_only_the_history(tmp_path: Path) -> None:
    env = {**OFFLINE, "HOLDFAST_HOME": "/proc/none"}
    with pty_terminal.opened(tmp_path, "--db", tmp_path / "own.db", env=env) as screen:
        screen.enter("Keep this note.")
        screen.wait_for("Noted")
        assert screen.leave() == 0
