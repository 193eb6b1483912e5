"""Runs the real program, in a process of its own, as a user would: in a pipe, in a terminal, interrupted."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

PROGRAM = [sys.executable, "-m", "holdfast"]
PATIENCE = 120


class Run(NamedTuple):
    """One run of the program."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)

    @property
    def sentence(self) -> str:
        """What a failed run says: one line on standard error, no data, no traceback."""
        assert self.out == ""
        assert "Traceback" not in self.err
        assert self.err.count("\n") == 1, self.err
        return self.err.rstrip("\n")


def environment(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Nothing of whoever runs the tests: a home of its own, a fixed time zone, warnings as errors."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ}
    fixed = {
        "HOME": str(home),
        "TMPDIR": str(home),
        "TZ": "UTC",
        "PYTHONIOENCODING": "utf-8",
        "PYTHONWARNINGS": "error",
    }
    return {**kept, **fixed, "HOLDFAST_HOME": str(home / "data"), **(extra or {})}


def start(home: Path, *arguments: str) -> subprocess.Popen[str]:
    """The program in a process group of its own, for those who will not let it finish."""
    return subprocess.Popen(
        [*PROGRAM, *arguments],
        cwd=home,
        env=environment(home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
    )


needs_proc = pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="this system has no /proc")


def racers(process: subprocess.Popen[str]) -> list[int]:
    """The processes that race for a running demo."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def run(home: Path, *arguments: str | Path, env: Mapping[str, str] | None = None) -> Run:
    done = subprocess.run(
        [*PROGRAM, *map(str, arguments)],
        env=environment(home, env),
        cwd=home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE,
        check=False,
    )
    return Run(done.returncode, done.stdout, done.stderr)


def run_in_terminal(home: Path, *arguments: str | Path, columns: int, env: Mapping[str, str] | None = None) -> Run:
    """The same with standard output and error on a terminal of this width; `out` is all it showed."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    process = subprocess.Popen(
        [*PROGRAM, *map(str, arguments)],
        env=environment(home, {"TERM": "xterm", **(env or {})}),
        cwd=home,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    # Linux says EIO, not end of file, when the last process has let go of a terminal.
    with contextlib.suppress(OSError):
        while part := os.read(ours, 65536):
            shown += part
    os.close(ours)
    return Run(process.wait(PATIENCE), shown.decode().replace("\r\n", "\n"), "")
