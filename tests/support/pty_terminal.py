"""A pseudo-terminal with the program on it."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support import cli_process
from tests.support.screen import Screen


class Terminal:
    """A pseudo-terminal and the process on it."""

    def __init__(self, ours: int, process: subprocess.Popen[bytes], columns: int, rows: int) -> None:
        self._ours = ours
        self._screen, self._decoder = Screen(columns, rows), codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""
        self._shown = b""
        self._before = ""  # the text up to the end of the last match
        self.process = process

    @property
    def raw(self) -> str:
        """All output, with control codes."""
        return self._shown.decode("utf-8", "replace")

    @property
    def shown(self) -> str:
        """The screen, and the rows that were scrolled away above it."""
        return self._screen.shown

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def wait_for(self, text: str) -> None:
        """Read until this is shown, after the text that was waited for before."""
        self._wait(lambda: self.shown.find(text, self._seen) >= 0, text)
        self._before = self.shown[: min(self.shown.find(text, self._seen) + len(text), len(self._settled))]

    @property
    def _seen(self) -> int:
        """The length of the text that was waited for, without the part that has been erased since."""
        return len(os.path.commonprefix([self._before, self.shown]))  # noqa: RUF071 - texts, not paths

    def enter(self, line: str) -> None:
        """Type a line at the idle prompt, and wait until it was accepted."""
        self._wait_for_prompt()
        self.type(f"{line}\r")
        taken = f"> {line[1:] if line.startswith('//') else line}"[: self._screen.size.columns - 1]
        self._wait(lambda: taken in self._screen.above[self._seen :], taken)

    def leave(self) -> int:
        """Press Ctrl-D at the idle prompt, and return the exit code."""
        self._wait_for_prompt()
        self.type("\x04")
        return self.end()

    @property
    def _settled(self) -> str:
        """The rows above the prompt and the running tools, which will not be overwritten."""
        lines = self._screen.above.split("\n")
        while lines and (not lines[-1] or lines[-1].startswith(("→ ", "-> "))):
            lines.pop()
        return "\n".join(lines)

    def _wait_for_prompt(self) -> None:
        def there() -> bool:
            here = self.shown[len(self._screen.above) :].strip("\n")
            return here.startswith("> ") and "answering" not in here

        self._wait(there, "> ")

    def _wait(self, happened: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + cli_process.PATIENCE
        while not happened():
            assert time.monotonic() < deadline, f"{what!r} is not in {self.shown[self._seen :]!r}"
            if not self._read():
                assert happened() or what.startswith("> "), f"it ended without {what!r}: {self.shown[self._seen :]!r}"
                return

    def end(self) -> int:
        """Read to the end, and return the exit code."""
        deadline = time.monotonic() + cli_process.PATIENCE
        while self._read():
            assert time.monotonic() < deadline, f"it did not end: {self.shown[self._seen :]!r}"
        return self.process.wait()

    def echoes(self) -> bool:
        """Return whether the terminal is in the mode of a shell: it echoes, and edits lines."""
        flags = termios.tcgetattr(self._ours)[3]
        return bool(flags & termios.ECHO and flags & termios.ICANON)

    def _read(self) -> bool:
        select.select([self._ours], [], [], 1.0)
        if not select.select([self._ours], [], [], 0)[0]:
            return True
        try:
            part = os.read(self._ours, 65536)
        except OSError:  # Linux reports EIO when the last process has closed a terminal.
            return False
        self._shown += part
        self._pending += self._decoder.decode(part)
        # A control code may be split.
        whole = re.sub(r"\x1b(\[[\d;?]*)?$", "", self._pending)
        self._pending = self._pending[len(whole) :]
        self._screen.write(whole)
        return bool(part)


@contextmanager
def open_terminal(
    home: Path, *arguments: str | Path, columns: int = 80, rows: int = 24, env: Mapping[str, str] | None = None
) -> Iterator[Terminal]:
    """Start the program on a new terminal, and kill it afterwards if it still runs."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs, "encoding": None}
    process = cli_process.start(home, *arguments, env={"TERM": "xterm", **(env or {})}, **streams)
    # This end stays open, so that the state of the terminal can be read after the program has ended.
    terminal = Terminal(ours, process, columns, rows)
    os.close(theirs)
    try:
        yield terminal
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def run(home: Path, *arguments: str | Path, columns: int, env: Mapping[str, str] | None = None) -> cli_process.Run:
    """Run the program on a terminal to its end; `out` is all it printed."""
    with open_terminal(home, *arguments, columns=columns, env=env) as terminal:
        return cli_process.Run(terminal.end(), terminal.raw.replace("\r\n", "\n"), "")
