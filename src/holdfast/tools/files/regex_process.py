"""A program of its own that looks for a regular expression in text it is given.

An expression can take longer than anyone lives, and nothing in the same process can stop it: it keeps the whole
interpreter waiting. Here it keeps nobody waiting but this process, which the system ends when its time is up, also
when whoever started it is gone.

In: the expression, then text after text. Out: for each, the numbers of the lines that fit. Every message has its
length before it, in 4 bytes. Nothing of Holdfast is imported: it has to start quickly.
"""

import contextlib
import io
import re
import resource
import signal
import struct
import sys

SECONDS = 3.0
MEMORY = 1 << 30


def main() -> None:
    """Answer until nobody asks."""
    _limit()
    asked, answers = open(0, "rb"), open(1, "wb")  # noqa: SIM115 - they are ours until the end
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    flags, _, pattern = _message(asked).decode("utf-8", "replace").partition("\n")
    try:
        search = re.compile(pattern, re.IGNORECASE if flags == "i" else 0).search
    except (re.error, OverflowError, RecursionError) as error:
        _answer(answers, f"!{error}".encode())
        return
    _answer(answers, b"")
    while True:
        signal.setitimer(signal.ITIMER_REAL, 0)
        text = _message(asked).decode("utf-8", "replace")
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        found = [number for number, line in enumerate(text.split("\n")) if search(line.removesuffix("\r"))]
        _answer(answers, struct.pack(f"<{len(found)}I", *found))


def _limit() -> None:
    """What ends this process when it must end; a system that cannot limit its memory does not."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def _message(asked: io.BufferedReader) -> bytes:
    head = asked.read(4)
    if len(head) < 4:
        sys.exit()
    (length,) = struct.unpack("<I", head)
    return asked.read(length)


def _answer(answers: io.BufferedWriter, data: bytes) -> None:
    answers.write(struct.pack("<I", len(data)) + data)
    answers.flush()


if __name__ == "__main__":
    main()
