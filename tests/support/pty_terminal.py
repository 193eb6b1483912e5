"""A terminal with the program in it: what is typed goes in, and what it shows is read as it comes."""

from __future__ import annotations

import codecs
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support import cli_process, cli_zygote
from tests.support.screen import Screen


def idle(here: str) -> bool:
    """Whether the line under the prompt tells of no turn."""
    return "answering" not in here


class Terminal:
    """A pseudo-terminal and the process on it."""

    def __init__(self, ours: int, process: Running, columns: int, rows: int) -> None:
        self._ours = ours
        self._screen, self._decoder = Screen(columns, rows), codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""
        self._shown = b""
        self._seen = 0
        self.process = process

    @property
    def raw(self) -> str:
        """All it was sent, codes and all."""
        return self._shown.decode("utf-8", "replace")

    @property
    def shown(self) -> str:
        """What a person sees, and what was scrolled away above it."""
        return self._screen.shown

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def wait_for(self, text: str) -> None:
        """Read until this is shown, after whatever was waited for before."""
        self._wait(lambda: self.shown.find(text, self._seen) >= 0, text)
        self._seen = min(self.shown.find(text, self._seen) + len(text), len(self._settled))

    def enter(self, line: str) -> None:
        """Type a line, once nothing goes on; it has been taken when this returns."""
        self._wait_for_prompt()
        self.type(f"{line}\r")
        taken = f"> {line[1:] if line.startswith('//') else line}"[: self._screen.size.columns - 1]
        self._wait(lambda: taken in self._screen.above[self._seen :], taken)

    def leave(self) -> int:
        """Ctrl-D, once nothing goes on; the exit code."""
        self._wait_for_prompt()
        self.type("\x04")
        return self.end()

    @property
    def _settled(self) -> str:
        """What stands above the prompt and the tools that run: what comes next takes their place."""
        lines = self._screen.above.split("\n")
        while lines and (not lines[-1] or lines[-1].startswith(("→ ", "-> "))):
            lines.pop()
        return "\n".join(lines)

    def _wait_for_prompt(self) -> None:
        def there() -> bool:
            here = self.shown[len(self._screen.above) :].strip("\n")
            return here.startswith("> ") and idle(here)

        self._wait(there, "> ")

    def _wait(self, happened: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + cli_process.PATIENCE
        while not happened():
            assert time.monotonic() < deadline, f"{what!r} is not in {self.shown[self._seen :]!r}"
            if not self._read():
                assert happened() or what.startswith("> "), f"it ended without {what!r}: {self.shown[self._seen :]!r}"
                return

    def end(self) -> int:
        """Read to the end; the exit code."""
        deadline = time.monotonic() + cli_process.PATIENCE
        while self._read():
            assert time.monotonic() < deadline, f"it did not end: {self.shown[self._seen :]!r}"
        return self.process.wait()

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
        self._pending += self._decoder.decode(part)
        # A code may come in two pieces.
        whole = re.sub(r"\x1b(\[[\d;?]*)?$", "", self._pending)
        self._pending = self._pending[len(whole) :]
        self._screen.write(whole)
        return bool(part)


Running = cli_zygote.Sitting | subprocess.Popen[bytes]


def _begun(home: Path, arguments: list[str], theirs: int, env: Mapping[str, str]) -> Running:
    if not cli_zygote.needs_python(env):
        return cli_zygote.sitting_room().sit(home, *arguments, terminal=os.ttyname(theirs), env=env)
    return subprocess.Popen(
        [*cli_process.PROGRAM, *arguments],
        env=cli_process.environment(home, env),
        cwd=home,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )


@contextmanager
def opened(
    home: Path, *arguments: str | Path, columns: int = 80, rows: int = 24, env: Mapping[str, str] | None = None
) -> Iterator[Terminal]:
    """The program on a terminal of its own; whatever happens, it is gone afterwards."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = _begun(home, [*map(str, arguments)], theirs, {"TERM": "xterm", **(env or {})})
    # One end stays open here, so that the state of the terminal can be looked at when the program has left.
    terminal = Terminal(ours, process, columns, rows)
    os.close(theirs)
    try:
        yield terminal
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()
        os.close(ours)
