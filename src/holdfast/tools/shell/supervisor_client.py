"""A command under a warden, as the program sees it: how it is started, what it wrote, how it ended.

Everything is in the folder of the command, so that any program that finds the folder again knows as much as the one
that started it, and a command that writes without end costs neither of them memory.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import re
import stat
import sys
import time

import msgspec

from holdfast import errors, process_info

WARDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "supervisor.py")
MARK = "HOLDFAST_PROCESS_ID"
"""In the environment of everything a warden looks after: what it leaves when it is killed can be told by it."""
MAX_COMMAND = 100_000
MOST = 1_000
"""A command may have so many processes at once."""

# Escape sequences move the cursor and paint; to a model, and in a log, they are noise.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,2000}(?:\x07|\x1b\\)|[@-Z\\^_()#]?)")
_CONTROL = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160)])


class Status(msgspec.Struct, frozen=True):
    """How a command ended, as its warden wrote it down."""

    code: int
    """Its exit code; -1 when it had none."""
    signal: int
    why: str
    """Why the warden stopped it: asked, orphaned, time, processes; empty when it ended by itself."""
    left: int
    """How many processes it left, which were stopped."""
    stuck: int
    """How many would not die."""
    bytes: int
    lost: int
    """Bytes of output that could not be kept."""
    at: float

    @property
    def exit_code(self) -> int | None:
        """As a shell would say it."""
        if self.signal:
            return 128 + self.signal
        return self.code if self.code >= 0 else None


class Piece(msgspec.Struct, frozen=True):
    """A part of an output: the text, the bytes it stands for, and how many there are in all."""

    text: str
    begin: int
    end: int
    total: int


def line(
    mode: str,
    folder: str,
    command: str,
    *,
    size: int,
    seconds: float = float("inf"),
    input: bool = False,
    most: int = MOST,
) -> list[str]:
    """How the warden of a command is called; the command is one word of it, whatever it says."""
    given = (mode, folder, str(int(input)), str(size), str(seconds), str(most), shell(), command)
    return [sys.executable, "-I", "-S", WARDEN, *given]


def shell() -> str:
    """The program that command lines are for."""
    return "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"


def checked(command: str) -> str:
    """A command a system can be given. ToolFailed says why it cannot."""
    if os.name != "posix":
        raise errors.ToolFailed("Commands can be run on Linux and macOS only.")
    if not command.strip():
        raise errors.ToolFailed("The command is empty.")
    if "\0" in command or not _is_unicode(command):
        raise errors.ToolFailed("The command holds characters that no command can.")
    if len(command.encode()) > MAX_COMMAND:
        raise errors.ToolFailed(f"The command is longer than {MAX_COMMAND:,} bytes. Write it to a file and run that.")
    return command


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def working_folder(given: str, roots: list[str]) -> str:
    """The real path of the folder to work in, from the first root; it has to lie in one of them."""
    real = os.path.realpath(os.path.join(roots[0], given)) if "\0" not in given and _is_unicode(given) else ""
    if not any(real == root or real.startswith(root.rstrip(os.sep) + os.sep) for root in roots):
        raise errors.ToolFailed(f"{errors.shown(given)} is outside of {' and '.join(roots)}.")
    if not os.path.isdir(real):
        raise errors.ToolFailed(f"There is no folder {errors.shown(given)}.")
    return real


# --- what its folder tells -------------------------------------------------------------------------------


def status(folder: str) -> Status | None:
    """How it ended; None while nobody wrote that down."""
    try:
        with open(os.path.join(folder, "status"), "rb") as file:
            return msgspec.json.decode(file.read(10_000), type=Status)
    except (OSError, msgspec.DecodeError):
        return None


def claimed(folder: str) -> bool:
    """Whether a warden ever began there."""
    return os.path.lexists(os.path.join(folder, "control"))


def give_up(folder: str) -> bool:
    """Take the place of a warden that did not come: if it still does, it finds itself too late. False: it came."""
    try:
        os.close(os.open(os.path.join(folder, "control"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return False
    except (FileNotFoundError, NotADirectoryError):
        return True  # Without its folder none can begin.
    return True


def tell(folder: str, what: bytes = b"") -> bool:
    """Say something to the warden, `k` to stop or `e` to end the input; nothing asks whether it is there."""
    try:
        control = os.open(os.path.join(folder, "control"), os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False  # Nobody reads at the other end.
    try:
        return stat.S_ISFIFO(os.fstat(control).st_mode) and (not what or os.write(control, what) > 0)
    except OSError:
        return False
    finally:
        os.close(control)


async def write(folder: str, data: bytes, seconds: float) -> int:
    """Give the command input; how many bytes of it were taken in time. ToolFailed where it takes none."""
    try:
        pipe = os.open(os.path.join(folder, "in"), os.O_WRONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        raise errors.ToolFailed("Its input is not open. Start it with `input` to write to it.") from None
    except OSError:
        raise errors.ToolFailed("It does not read its input any more.") from None
    written, until = 0, time.monotonic() + seconds
    try:
        while written < len(data) and time.monotonic() < until:
            try:
                written += os.write(pipe, data[written : written + 4096])
            except BlockingIOError:
                await asyncio.sleep(0.02)
    except BrokenPipeError:
        pass
    finally:
        os.close(pipe)
    return written


def wake(mark: str) -> None:
    """Let a warden go on that somebody stopped, so that it hears what it is told."""
    process_info.resume_by_env(f"{MARK}={mark}")


def kill_left(mark: str) -> int:
    """Kill what a dead warden left behind: all that was started with its mark. How many there were."""
    return process_info.kill_by_env(f"{MARK}={mark}")


# --- what it wrote ---------------------------------------------------------------------------------------


def read(folder: str, begin: int = 0, length: int = 1_000_000) -> Piece:
    """The output from a byte on, at most so many bytes. What is not kept any more is passed over."""
    for _ in range(10):
        parts = _parts(folder)
        first, total = (parts[0][0], sum(parts[-1])) if parts else (0, 0)
        begin = min(max(begin, first), total)
        data = _bytes(folder, parts, begin, min(begin + length, total))
        if data is not None:
            return _piece(data, begin, total, status(folder) is not None)
    return Piece("", begin, begin, begin)


def tail(folder: str, begin: int = 0, length: int = 1_000_000) -> Piece:
    """The end of the output, not before this byte."""
    parts = _parts(folder)
    return read(folder, max(begin, sum(parts[-1]) - length) if parts else 0, length)


def _piece(data: bytes, begin: int, total: int, ended: bool) -> Piece:
    """A character may be cut at either side: its rest at the front is dropped, its start at the end comes later."""
    cut = next((n for n in range(min(4, len(data))) if data[n] & 0xC0 != 0x80), 0) if begin else 0
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text, end = decoder.decode(data[cut:]), begin + len(data)
    if ended and end == total:
        return Piece(clean(text + decoder.decode(b"", final=True)), begin, end, total)
    return Piece(clean(text), begin, end - len(decoder.getstate()[0]), total)


def _parts(folder: str) -> list[tuple[int, int]]:
    """Where each part that is kept begins, and its size."""
    try:
        found = [entry for entry in os.scandir(folder) if re.fullmatch(r"out\.\d+", entry.name)]
        return sorted((int(entry.name[4:]), entry.stat().st_size) for entry in found)
    except OSError:
        return []


def _bytes(folder: str, parts: list[tuple[int, int]], begin: int, end: int) -> bytes | None:
    """What is between these bytes; None when a part was thrown away meanwhile."""
    found = []
    for start, size in parts:
        if start < end and start + size > begin:
            try:
                with open(os.path.join(folder, f"out.{start}"), "rb") as file:
                    file.seek(max(begin - start, 0))
                    found.append(file.read(end - max(begin, start))[: start + size - max(begin, start)])
            except OSError:
                return None
    return b"".join(found)


def clean(text: str) -> str:
    """Output as a page would show it: no escape sequences, no control characters, lines as last written over."""
    lines = _ESCAPES.sub("", text).replace("\r\n", "\n").split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines).translate(_CONTROL)
