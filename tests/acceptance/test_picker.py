"""`holdfast --resume` in a real terminal, wide and narrow."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from holdfast import SessionDB
from tests.acceptance.installation import Installed
from tests.acceptance.tmux import Terminal

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    now = [1_780_000_000.0]
    with SessionDB(tmp_path / "data" / "holdfast.db", clock=lambda: now[0]) as db:
        for number in range(1, 31):
            now[0] += 3600
            db.create_session(f"talk_{number:02}", source="test", title=f"Trip {number} \u6f22\u5b57")
            words = f"Island {number} has {'a lighthouse' if number == 4 else 'no harbour'}. \x1b]0;owned\x07\x1b[2J"
            db.append_message(f"talk_{number:02}", role="user", content=words)
    return tmp_path


@pytest.mark.parametrize(("columns", "rows"), [(100, 30), (40, 12)])
def test_picker_lists_moves_and_filters(
    terminal: Terminal, installed: Installed, home: Path, columns: int, rows: int
) -> None:
    env = installed.environment(
        home, TERM="screen", PS1="$ ", SHELL="/bin/sh", HOLDFAST_HOME=str(home / "data"), HOLDFAST_MODEL="offline"
    )
    terminal.tmux("new-session", "-d", "-x", str(columns), "-y", str(rows), "-c", home, "sh", env=env)
    terminal.tmux("send-keys", "-l", "clear; echo before; holdfast -r; echo left with $?")
    terminal.tmux("send-keys", "Enter")
    lines = terminal.wait_for("Which conversation?", "1 of 30").splitlines()
    assert lines[0] == "before"
    assert lines[2].startswith("> Trip 30 \u6f22\u5b57")
    assert all(len(line) < columns for line in lines)
    assert len(lines) == min(15, rows - 3) + 3
    terminal.tmux("send-keys", "Down", "PageDown", "Up")
    terminal.wait_for(f"{1 + min(15, rows - 3)} of 30")
    terminal.tmux("resize-window", "-x", str(columns + 7), "-y", str(rows))
    terminal.tmux("send-keys", "-l", "lighthouse")
    terminal.wait_for("? lighthouse", "> Trip 4 ")
    terminal.tmux("send-keys", "Escape")
    lines = terminal.wait_for("left with 130").splitlines()
    assert lines[-4:-1] == ["before", "Interrupted.", "left with 130"]
    terminal.tmux("send-keys", "-l", "clear; holdfast -r")
    terminal.tmux("send-keys", "Enter")
    terminal.wait_for("1 of 30")
    terminal.tmux("send-keys", "-l", "talk_07")
    terminal.wait_for("> Trip 7 ", "1 of ")
    terminal.tmux("send-keys", "Enter")
    terminal.wait_for("Trip 7 \u6f22\u5b57 \u00b7 1 message", "Island 7")
