"""The installed chat in a real terminal, without a key."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.installation import Installed
from tests.acceptance.tmux import Terminal
from tests.support import provider_process

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


@pytest.mark.parametrize(("columns", "rows"), [(120, 30), (80, 24), (40, 12)])
def test_typing_during_an_answer_leaves_both_intact(
    terminal: Terminal, installed: Installed, tmp_path: Path, columns: int, rows: int
) -> None:
    hung = provider_process.hanging_reply("Once upon a time", " there was **one")
    with provider_process.serve(hung, provider_process.reply("The end.")) as played:
        terminal.open_shell(installed, tmp_path, columns, rows, **played.env)
        terminal.type("clear; holdfast")
        terminal.wait_for("A new conversation", last=">")
        terminal.type("tell me")
        terminal.wait_for("there was **one")
        terminal.tmux("send-keys", "-l", "not to be sent")
        terminal.wait_for("Once upon a time there was **one\n\n> not to be sent")
        terminal.tmux("send-keys", "C-c")
        terminal.wait_for(last=">")
        terminal.type("go on")
        terminal.wait_for("Queued: go on", "1 queued")
        terminal.tmux("send-keys", "C-c")
        screen = terminal.wait_for("> go on\nThe end.", last=">")
        assert "Once upon a time there was **one\nInterrupted." in screen
        assert "not to be sent" not in screen
        terminal.tmux("send-keys", "C-d")
        terminal.wait_for(last="$")


def test_resize_during_an_answer_leaves_no_remains(terminal: Terminal, installed: Installed, tmp_path: Path) -> None:
    words = "one two three four five six seven eight nine ten 漢字 \U0001f389 eleven twelve thirteen fourteen fifteen"
    with provider_process.serve(provider_process.hanging_reply(f"Begun.\n\n{words}")) as played:
        terminal.open_shell(installed, tmp_path, 80, 24, **played.env)
        terminal.type("clear; holdfast")
        terminal.wait_for("A new conversation", last=">")
        terminal.type("tell me")
        terminal.wait_for("fifteen")
        for columns in (40, 120, 30, 80):
            terminal.tmux("send-keys", "-l", "x")
            terminal.tmux("resize-window", "-x", str(columns), "-y", "24")
            screen = terminal.wait_for("fifteen", "> x")
            assert "".join(screen.split()).count("onetwothree") == 1, screen
        terminal.tmux("send-keys", "C-c")
        terminal.wait_for(last=">")
        terminal.tmux("send-keys", "C-c")
        screen = terminal.wait_for("Interrupted.", last=">")
        assert "".join(screen.split()).count("onetwothree") == 1, screen
        assert screen.count("Begun.") == 1


def test_command_menu_restores_the_screen(terminal: Terminal, installed: Installed, tmp_path: Path) -> None:
    terminal.open_shell(installed, tmp_path, HOLDFAST_MODEL="offline")
    terminal.type("clear; holdfast")
    terminal.wait_for("A new conversation", last=">")
    terminal.tmux("send-keys", "-l", "/st")
    terminal.wait_for("/status", "/stop", "Stop the running turn")
    terminal.tmux("send-keys", "-l", "atus")
    terminal.tmux("send-keys", "Enter")
    screen = terminal.wait_for("conversation  begins with your first message", last=">")
    assert "Stop the running turn" not in screen
    terminal.tmux("send-keys", "C-c")
    terminal.wait_for("Press Ctrl-C again to exit", last=">")
    terminal.tmux("send-keys", "C-c")
    terminal.wait_for(last="$")
    terminal.type("echo left with $?")
    terminal.wait_for("left with 0")


def test_make_run_opens_the_chat() -> None:
    root = Path(__file__).parent.parent.parent
    command = ["make", "--no-print-directory", "--dry-run", "run"]
    shown = subprocess.run(command, cwd=root, capture_output=True, encoding="utf-8", check=True)
    # In a terminal `make run` starts the chat; otherwise it shows the tour.
    assert "if [ -t 0 ] && [ -t 1 ]; then .venv/bin/holdfast; else" in shown.stdout
