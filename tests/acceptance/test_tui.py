"""The installed full screen in a real terminal, without a key."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

import pytest

from holdfast.tui import approval_panel
from tests.acceptance.installation import Installed, quietly
from tests.acceptance.tmux import Terminal
from tests.support import provider_process

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")

CLICK = "\x1b[<0;{x};{y}M\x1b[<0;{x};{y}m"


def test_missing_extra_names_the_install_command(installed: Installed, tmp_path: Path) -> None:
    # Other tests put the part into the same environment: to this process it is not there.
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['textual'] = None\n")
    done = installed.run(tmp_path, "holdfast", "tui", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith("holdfast: The full screen is not installed. Run: ")
    assert re.search(r"/bin/python\S* -m pip install '?\S+\.whl\[tui\]'?\n$", done.stderr), done.stderr


@pytest.fixture(scope="session")
def whole(installed: Installed) -> Installed:
    """Return the same environment with the extra installed."""
    pip = ("-m", "pip", "-q", "--disable-pip-version-check")
    quietly(installed.bin / "python", *pip, "install", f"{installed.wheel}[tui]")
    return installed


def clicked(terminal: Terminal, words: str) -> None:
    """Click on these words."""
    lines = terminal.wait_for(words).splitlines()
    y = next(n for n, line in enumerate(lines, 1) if words in line)
    terminal.tmux("send-keys", "-l", CLICK.format(x=lines[y - 1].index(words) + 1, y=y))


def test_conversation_is_left_and_continued(terminal: Terminal, whole: Installed, tmp_path: Path) -> None:
    terminal.open_shell(whole, tmp_path, 90, 30, HOLDFAST_MODEL="offline", HOLDFAST_LOG=str(tmp_path / "log"))
    terminal.type("holdfast tui; echo left with $?")
    terminal.wait_for("A new conversation", "Message.", "0% of")
    terminal.type("My train leaves at 9:40.")
    terminal.wait_for("Noted as message", "Title: My train leaves at 9:40", "2 messages")
    terminal.tmux("resize-window", "-x", "60", "-y", "20")
    terminal.wait_for("Noted as message", "╰" + "─" * 56 + "╯")
    terminal.tmux("send-keys", "C-q")
    screen = terminal.wait_for("left with 0", last="$")
    assert "Traceback" not in screen
    assert "Noted" not in screen  # The terminal is as it was.
    assert (tmp_path / "log").read_bytes() == b""
    terminal.type("clear; holdfast tui -c --light")
    terminal.wait_for("▌ My train leaves at 9:40.")
    terminal.type("When does my train leave?")
    terminal.wait_for("leaves at 9:40.”", "4 messages")
    terminal.type("/quit")
    terminal.wait_for(last="$")
    assert "\x1b[?1049" not in terminal.tmux("capture-pane", "-p", "-e")
    terminal.type("clear; holdfast doctor; echo left with $?")
    terminal.wait_for("left with 0")
    terminal.type("clear; TERM=dumb holdfast tui; echo left with $?")
    terminal.wait_for("holdfast tui: The full screen does not work on a dumb", "left with 2")


def test_keys_and_mouse_answer_questions_and_unfold_results(
    terminal: Terminal, whole: Installed, tmp_path: Path
) -> None:
    calls = provider_process.tool_call("shell", '{"command": "echo something > made.txt"}')
    with provider_process.serve(calls, provider_process.reply("It is *done*.")) as played:
        terminal.open_shell(whole, tmp_path, 100, 30, **played.env)
        terminal.type("clear; holdfast tui")
        terminal.wait_for("A new conversation")
        terminal.type("do it")
        terminal.wait_for("y once")
        time.sleep(approval_panel.GRACE_SECONDS)  # A click as it appears would be no answer.
        clicked(terminal, "y once")
        terminal.wait_for("It is done.")
        assert (tmp_path / "made.txt").read_text() == "something\n"
        clicked(terminal, "▸ ✓ shell")
        terminal.wait_for("▾ ✓ shell", "│")
        terminal.tmux("send-keys", "C-p")
        terminal.wait_for("List the commands, or explain one.")
        terminal.type("usage")
        terminal.wait_for("→ /usage")
        terminal.tmux("send-keys", "C-o")
        terminal.wait_for("Enter: open, Esc: cancel", "● 1–4  head")


def test_ctrl_z_suspends_and_fg_restores_the_screen(terminal: Terminal, whole: Installed, tmp_path: Path) -> None:
    terminal.open_shell(whole, tmp_path, 90, 30, HOLDFAST_MODEL="offline")
    # A program between the shell and the screen, as a launcher is: it has to stop as well.
    terminal.type("set -m; clear; sh -c 'holdfast tui; echo left with $?, $(stty -a | grep -ow icanon)'")
    terminal.wait_for("A new conversation")
    terminal.type("My train leaves at 9:40.")
    terminal.wait_for("Noted as message", "2 messages")
    terminal.type("half a line", "C-z")
    screen = terminal.wait_for("Stopped", last="$")
    assert "Noted" not in screen  # The terminal is the shell's again.
    terminal.type("stty -a | grep -o ' icanon'; echo plain")
    terminal.wait_for(" icanon", "plain", last="$")
    terminal.tmux("resize-window", "-x", "70", "-y", "24")
    terminal.type("fg")
    terminal.wait_for("Noted as message", "half a line", "╰" + "─" * 66 + "╯")
    terminal.type(" and the rest")
    terminal.wait_for("▌ half a line and the rest", "4 messages")
    terminal.tmux("send-keys", "C-q")
    # As the screen left it: a shell sets it right before it asks for more.
    assert "Traceback" not in terminal.wait_for("left with 0, icanon", last="$")


@pytest.mark.parametrize(("asked", "code"), [("TERM", 143), ("HUP", 129), ("INT", 130)])
def test_signals_restore_terminal(terminal: Terminal, whole: Installed, tmp_path: Path, asked: str, code: int) -> None:
    hung = provider_process.hanging_reply("Once upon a time")
    with provider_process.serve(hung) as played:
        terminal.open_shell(whole, tmp_path, **played.env)
        terminal.type("clear; sh -c 'echo $$ > pid; exec holdfast tui'; echo left with $?")
        terminal.wait_for("A new conversation")
        terminal.type("tell me")
        terminal.wait_for("Once upon a time", "answering")
        quietly("kill", f"-{asked}", (tmp_path / "pid").read_text().strip())
        screen = terminal.wait_for(f"left with {code}", last="$")
        assert "Traceback" not in screen
        assert terminal.tmux("display-message", "-p", "#{alternate_on}#{mouse_any_flag}#{cursor_flag}").strip() == "001"
        terminal.type("clear; holdfast sessions show last; echo left with $?")
        terminal.wait_for("Once upon a time", "left with 0")
