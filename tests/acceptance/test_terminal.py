"""The demo in a real terminal."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.acceptance.installation import Installed
from tests.acceptance.tmux import Terminal

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


def test_demo_prints_the_figures_of_both_agents(terminal: Terminal, installed: Installed, tmp_path: Path) -> None:
    terminal.open_shell(installed, tmp_path, 110, 60)
    terminal.tmux("send-keys", "holdfast demo --seed 1; echo left with $?", "Enter")
    screen = terminal.wait_for("left with 0")
    assert any("naive tables" in line and "Holdfast" in line for line in screen.splitlines())
    assert "One head, nothing lost." in screen
    assert "round" not in screen.split("left with")[0].split("seed")[-1]
    assert list(tmp_path.iterdir()) == []


def test_interrupted_demo_gives_the_terminal_back(terminal: Terminal, installed: Installed, tmp_path: Path) -> None:
    terminal.open_shell(installed, tmp_path, 110, 60)
    terminal.tmux("send-keys", "holdfast demo --rounds 100 --processes 4; echo left with $?", "Enter")
    terminal.wait_for("naive: round")
    terminal.tmux("send-keys", "C-c")
    screen = terminal.wait_for("left with 1")
    assert "left with 130" in screen
    assert "Interrupted." in screen
    assert "Traceback" not in screen
    assert list(tmp_path.iterdir()) == []
