"""Looking for text or for a regular expression in pieces of text, without ever being held up by either."""

from __future__ import annotations

import os
import select
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from holdfast import errors
from holdfast.tools import worker_thread

_PROGRAM = Path(__file__).with_name("regex_process.py")
# The program ends itself earlier; this is for a machine that is busy beyond measure.
PATIENCE = 15.0
TRIES = 3


class Plain:
    """Text as it is, or whatever its case is."""

    def __init__(self, text: str, any_case: bool) -> None:
        self._text = text.lower() if any_case else text
        self._any_case = any_case
        self._bytes = text.encode("utf-8", "surrogatepass")

    def lines(self, piece: bytes) -> list[int]:
        """The numbers of the lines that hold it, from 0."""
        if not self._any_case:
            # Most pieces do not have it, and need not become text to say so.
            here = self._bytes in piece
            return [number for number, line in enumerate(piece.split(b"\n")) if self._bytes in line] if here else []
        given = piece.decode("utf-8", "replace").lower()
        if self._text not in given:
            return []
        return [number for number, line in enumerate(given.split("\n")) if self._text in line]

    def close(self) -> None:
        """There is nothing to end."""


class Slow(Exception):
    """It took too long for this piece."""


class Hopeless(Exception):
    """It took too long again and again."""


class Expression:
    """A regular expression, in a process of its own that is started anew when it had to be ended."""

    def __init__(self, pattern: str, any_case: bool, stop: worker_thread.Stop) -> None:
        self._given = f"{'i' if any_case else ''}\n{pattern}".encode("utf-8", "replace")
        self._stop = stop
        self._process: subprocess.Popen[bytes] | None = None
        self._slow = 0
        self._start()

    def lines(self, piece: bytes) -> list[int]:
        """The numbers of the lines that fit, from 0. Slow where it took too long, Hopeless where it always does."""
        try:
            if self._process is None:
                self._start()
            answer = self._asked(piece)
        except (OSError, EOFError):
            self.close()
            self._slow += 1
            if self._slow >= TRIES:
                raise Hopeless from None
            raise Slow from None
        return list(struct.unpack(f"<{len(answer) // 4}I", answer))

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                _there(pipe).close()
        process.wait()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
            bufsize=0,
            start_new_session=True,
        )
        try:
            refused = self._asked(self._given)
        except (OSError, EOFError):
            self.close()
            raise errors.ToolFailed("This expression takes too long. Use a simpler one, or plain text.") from None
        if refused:
            self.close()
            told = refused[1:].decode("utf-8", "replace")
            raise errors.ToolFailed(f"That is not a regular expression: {told}.")

    def _asked(self, data: bytes) -> bytes:
        process = self._process
        assert process is not None
        whole = memoryview(struct.pack("<I", len(data)) + data)
        until = time.monotonic() + PATIENCE
        while whole:
            self._wait(_there(process.stdin), until, writing=True)
            whole = whole[_written(_there(process.stdin), whole) :]
        (length,) = struct.unpack("<I", self._read(4, until))
        return self._read(length, until)

    def _read(self, length: int, until: float) -> bytes:
        assert self._process is not None
        pipe, pieces = _there(self._process.stdout), list[bytes]()
        while length:
            self._wait(pipe, until)
            piece = os.read(pipe.fileno(), min(length, 1 << 20))
            if not piece:
                raise EOFError
            pieces.append(piece)
            length -= len(piece)
        return b"".join(pieces)

    def _wait(self, pipe: IO[bytes], until: float, writing: bool = False) -> None:
        poll = select.poll()
        poll.register(pipe, select.POLLOUT if writing else select.POLLIN)
        while not poll.poll(50):
            if self._stop() or time.monotonic() > until:
                raise EOFError


def _there(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def _written(pipe: IO[bytes], data: memoryview) -> int:
    # A pipe that is ready takes this much at once without waiting.
    return os.write(pipe.fileno(), data[: select.PIPE_BUF])
