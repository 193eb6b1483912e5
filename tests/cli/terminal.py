"""A terminal with the program in it: what is typed goes in, and what it shows is read as it comes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.cli import program

# The line under the prompt, drawn before the cursor goes back up to where people type.
STATUS = re.compile(r"\r\r\n[^\n]*?\x1b\[A(?:\x1b\[\d*[CD])?")
EMPTY = re.compile(r"(>\x1b\[0m)\r\r\n[^\n]*?\x1b\[A\x1b\[2C")
CODES = re.compile(r"\x1b\[[0-9;?>]*[a-zA-Z]|\x1b[=>78]|\x1b\][^\x07]*\x07")


class Terminal:
    """A pseudo-terminal and the process on it."""

    def __init__(self, ours: int, process: subprocess.Popen[bytes]) -> None:
        self._ours = ours
        self._shown = b""
        self._seen = 0
        self.process = process

    @property
    def raw(self) -> str:
        """All it was sent, codes and all."""
        return self._shown.decode("utf-8", "replace")

    @property
    def shown(self) -> str:
        """All it was sent, without the codes and the status. The space behind the prompt is drawn by moving over it."""
        drawn = STATUS.sub("", EMPTY.sub(r"\1 ", self.raw.replace(">\x08\x1b[2C", "> ")))
        return CODES.sub("", drawn).replace("\r", "")

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def wait_for(self, text: str) -> None:
        """Read until this is shown, after whatever was waited for before."""
        deadline = time.monotonic() + program.PATIENCE
        while (place := self.shown.find(text, self._seen)) < 0:
            assert time.monotonic() < deadline, f"{text!r} is not in {self.shown[self._seen :]!r}"
            assert self._read(), f"it ended without {text!r}: {self.shown[self._seen :]!r}"
        self._seen = place + len(text)

    def enter(self, line: str) -> None:
        """Type a line, once there is a prompt to type it at."""
        self.wait_for("> ")
        self.type(f"{line}\r")

    def leave(self) -> int:
        """Ctrl-D at the next prompt; the exit code."""
        self.wait_for("> ")
        self.type("\x04")
        return self.end()

    def end(self) -> int:
        """Read to the end; the exit code."""
        deadline = time.monotonic() + program.PATIENCE
        while self._read():
            assert time.monotonic() < deadline, f"it did not end: {self.shown[self._seen :]!r}"
        return self.process.wait(program.PATIENCE)

    def echoes(self) -> bool:
        """Whether the terminal is as shells want it: it echoes, and edits lines."""
        flags = termios.tcgetattr(self._ours)[3]
        return bool(flags & termios.ECHO and flags & termios.ICANON)

    def _read(self) -> bool:
        select.select([self._ours], [], [], 1.0)
        if not select.select([self._ours], [], [], 0)[0]:
            return True
        try:
            part = os.read(self._ours, 65536)
        except OSError:  # Linux says EIO, not end of file, when the last process has let go of a terminal.
            return False
        self._shown += part
        return bool(part)


@contextmanager
def opened(
    home: Path, *arguments: str | Path, columns: int = 80, rows: int = 24, env: Mapping[str, str] | None = None
) -> Iterator[Terminal]:
    """The program on a terminal of its own; whatever happens, it is gone afterwards."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen(
        [*program.PROGRAM, *map(str, arguments)],
        env=program.environment(home, {"TERM": "xterm", **(env or {})}),
        cwd=home,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    # One end stays open here, so that the state of the terminal can be looked at when the program has left.
    terminal = Terminal(ours, process)
    os.close(theirs)
    try:
        yield terminal
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait(program.PATIENCE)
        os.close(ours)
