"""The chat on a terminal: streaming, Ctrl-C, signals, commands and encodings."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from holdfast import SessionDB
from tests.support import pty_terminal
from tests.support.cli_process import OFFLINE, Configure, Holdfast, read_log
from tests.support.provider_process import hanging_reply, reply, serve, tool_call
from tests.support.pty_terminal import open_terminal

ENTER = "\r"


def test_conversation_continues_in_the_next_chat(tmp_path: Path) -> None:
    with open_terminal(tmp_path, env=OFFLINE) as screen:
        screen.wait_for("A new conversation")
        screen.enter("My train leaves at 9:40.")
        screen.wait_for("Title: My train leaves at 9:40")
        screen.enter("/quit")
        assert screen.end() == 0
    with open_terminal(tmp_path, "--continue", env=OFFLINE) as screen:
        screen.wait_for("My train leaves at 9:40 · 2 messages")
        screen.wait_for("> My train leaves at 9:40.")
        screen.enter("When does my train leave?")
        screen.wait_for("“My train leaves at 9:40.”")
        assert screen.leave() == 0


@pytest.mark.parametrize(("number", "busy"), [(signal.SIGTERM, False), (signal.SIGTERM, True), (signal.SIGHUP, True)])
def test_signal_closes_the_chat_and_keeps_the_text(tmp_path: Path, number: int, busy: bool) -> None:
    with serve(hanging_reply("Once", " upon")) as provider, open_terminal(tmp_path, env=provider.env) as screen:
        if busy:
            screen.enter("tell me")
        screen.wait_for("Once upon" if busy else "> ")
        os.kill(screen.process.pid, number)
        assert screen.process.wait() == 128 + number
        assert screen.echoes()
        assert screen.end() == 128 + number
        assert "Traceback" not in screen.shown
    assert read_log(tmp_path) == ([("user", "tell me"), ("assistant", "Once upon")] if busy else [])


def test_pasted_lines_are_one_message(tmp_path: Path) -> None:
    with open_terminal(tmp_path, env=OFFLINE) as screen:
        screen.wait_for("> ")
        screen.type(f"one\x1b\rtwo{ENTER}")
        screen.wait_for("Noted")
        screen.wait_for("> ")
        screen.type(f"\x1b[200~three\r\nfour\r\n\x1b[201~{ENTER}")
        screen.wait_for("Noted")
        assert screen.leave() == 0
    assert [text for role, text in read_log(tmp_path) if role == "user"] == ["one\ntwo", "three\nfour"]


def test_tab_completes_the_arrow_recalls_a_line_and_commands_store_nothing(tmp_path: Path) -> None:
    for keys in (f"/stat\t{ENTER}", f"\x1b[A{ENTER}"):
        with open_terminal(tmp_path, env=OFFLINE) as screen:
            screen.wait_for("> ")
            screen.type(keys)
            screen.wait_for("conversation  begins with your first message")
            assert screen.leave() == 0
    history = tmp_path / "data" / "history"
    assert history.stat().st_mode & 0o777 == 0o600
    assert "+/status\n" in history.read_text()
    assert read_log(tmp_path) == []


def test_mcp_servers_offer_tools_and_prompts(tmp_path: Path, configure: Configure, mcp_settings: str) -> None:
    configure(mcp_settings)
    with serve(reply("Hello.")) as provider, open_terminal(tmp_path, columns=200, env=provider.env) as screen:
        known = False
        while not known:  # A turn waits a few seconds for servers that start.
            screen.enter("hi")
            screen.wait_for("Hello.")
            bad, good = "The MCP server bad is not available" in screen.raw, b"good__t9" in provider.asked[-1].body
            known = bad and good
        screen.enter("/good:greet who=Ann")
        screen.wait_for("Greet Ann kindly.")
        screen.wait_for("Hello.")
        assert screen.leave() == 0
    assert b"Greet Ann kindly." in provider.asked[-1].body


EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\r"


def test_control_sequences_never_reach_the_terminal(tmp_path: Path) -> None:
    with SessionDB(tmp_path / "own.db") as db:
        here = db.create_session(source="test").id
        db.append_message(here, role="user", content=f"asked {EVIL}")
        db.append_message(here, role="assistant", content=f"answered {EVIL}")
    (tmp_path / "evil.txt").write_text(EVIL)
    call = tool_call("read_file", '{"path": "evil.txt"}', f"said {EVIL}")
    with (
        serve(call, reply("That", " is", " all.")) as provider,
        open_terminal(tmp_path, "-c", "--db", tmp_path / "own.db", env=provider.env) as screen,
    ):
        screen.wait_for("answered")
        screen.enter("hi")
        screen.wait_for("That is all.")
        assert screen.leave() == 0
        assert screen.shown.count("\\x1b]0;owned\\x07") >= 4
        for code in ("\x1b]0;", "\x1b[2J", "\x9b", "\u202e", "\x07"):
            assert code not in screen.raw


def first_screen(home: Path, env: dict[str, str]) -> str:
    with pty_terminal.open_terminal(home, columns=250, env=env) as screen:
        screen.wait_for("created with your first message")
        assert screen.leave() == 0
        return " ".join(screen.shown.split())


def test_chat_without_a_key_is_offline_and_names_the_settings_once(tmp_path: Path, configure: Configure) -> None:
    shown = first_screen(tmp_path, {})
    assert "holdfast/offline" in shown
    assert "this is the built-in offline model" in shown
    assert "There are no settings yet in ~/data/config.toml: run" in shown
    again = first_screen(tmp_path, {})
    assert "this is the built-in offline model" in again
    assert "holdfast config edit" not in again
    configure("model = 'offline'")
    assert "There are no settings yet" not in first_screen(tmp_path, {"OPENAI_API_KEY": "key"})


@pytest.mark.parametrize("variable", ["ANTHROPIC_API_KEY", "OPENROUTER_API_KEY"])
def test_chat_names_the_model_of_a_key_and_never_the_key(tmp_path: Path, variable: str) -> None:
    shown = first_screen(tmp_path, {variable: "key-of-mine"})
    assert f"Using {variable.partition('_')[0].lower()}/" in shown
    assert f"because {variable} is set." in shown
    assert "key-of-mine" not in shown
    assert "because" not in first_screen(tmp_path, {variable: "key-of-mine"})


def test_list_shows_the_state_and_tools_of_servers(holdfast: Holdfast, configure: Configure, mcp_settings: str) -> None:
    none = holdfast("mcp", "list")
    assert (none.code, none.out) == (0, "")
    assert "[mcpServers.NAME]" in none.err
    configure(mcp_settings)
    done = holdfast("mcp", "list")
    assert done.code == 0
    good, bad = done.out.splitlines()
    assert good.split() == ["good", "ready", "10", "tools"]
    assert bad.split()[:4] == ["bad", "down", "0", "tools"]
    assert "there is no program '/no/such/program'" in bad
    good, bad = holdfast("mcp", "list", "--json").data["servers"]
    assert (good["state"], good["tools"][0], good["prompts"]) == ("ready", "good__t0", ["greet", "plain words"])
    assert (bad["state"], bad["tools"]) == ("down", [])
