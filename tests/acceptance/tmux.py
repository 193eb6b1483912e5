"""A real terminal: a separate tmux server with one window."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from tests.acceptance.installation import PATIENCE, Installed


class Terminal:
    """One window. `kill-server` ends it."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    def tmux(self, *command: str | Path, env: dict[str, str] | None = None) -> str:
        done = subprocess.run(
            ["tmux", "-u", "-f", "/dev/null", "-S", self._socket, *map(str, command)],
            env=env,
            capture_output=True,
            encoding="utf-8",
            check=True,
        )
        return done.stdout

    def open_shell(self, installed: Installed, home: Path, columns: int = 80, rows: int = 24, **env: str) -> None:
        """Start a shell with the installed program in a window of this size."""
        given = installed.environment(home, TERM="screen", PS1="$ ", SHELL="/bin/sh", **env)
        self.tmux("new-session", "-d", "-x", str(columns), "-y", str(rows), "-c", home, "sh", env=given)
        self.wait_for(last="$")

    def type(self, line: str, *keys: str) -> None:
        self.tmux("send-keys", "-l", line)
        self.tmux("send-keys", *(keys or ("Enter",)))

    def kill_program(self) -> None:
        """Kill the program in the foreground, restore the terminal's settings and clear the scrollback."""
        shell = self.tmux("display-message", "-p", "#{pane_pid}").strip()
        foreground = subprocess.check_output(["ps", "-o", "tpgid=", "-p", shell])
        os.killpg(int(foreground), signal.SIGKILL)
        self.type("stty sane; clear; echo restored", "C-j")
        self.wait_for("restored", last="$")
        self.tmux("clear-history")

    def scrollback(self) -> str:
        return self.tmux("capture-pane", "-p", "-S", "-")

    def wait_for(self, *texts: str, last: str = "") -> str:
        """Wait until the screen shows these texts and ends with this line, status line excluded; return it."""
        deadline = time.monotonic() + PATIENCE
        while True:
            screen = self.tmux("capture-pane", "-p").rstrip()
            lines = screen.splitlines()
            ends = not last or lines[-1:] == [last] or (last == ">" and lines[-2:-1] == [last])
            if ends and all(text in screen for text in texts):
                return screen
            assert time.monotonic() < deadline, screen
            time.sleep(0.05)
