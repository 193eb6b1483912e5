"""The client of a supervisor: start a command, read its output and its end.

The state is in the folder of the command: any program that finds the folder knows as much as the one that started the
command, and output without end costs no memory.
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

SUPERVISOR = os.path.join(os.path.dirname(os.path.abspath(__file__)), "supervisor.py")
MARK = "HOLDFAST_PROCESS_ID"
"""Environment variable that identifies the processes of a command if its supervisor was killed."""
MAX_COMMAND_BYTES = 100_000
MAX_PROCESSES = 1_000
"""Maximum number of processes of a command."""

# Escape sequences are useless to a model and in a log.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,2000}(?:\x07|\x1b\\)|[@-Z\\^_()#]?)")
_CONTROL = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160)])


class CommandStatus(msgspec.Struct, frozen=True):
    """How a command ended, as its supervisor has recorded it."""

    code: int
    """Exit code; -1 if there is none."""
    signal: int
    why: str
    """Why the supervisor stopped it: asked, orphaned, time, processes; empty if it ended by itself."""
    left: int
    """Number of processes that it left and that were stopped."""
    stuck: int
    """Number of processes that could not be killed."""
    bytes: int
    lost: int
    """Bytes of output that could not be stored."""
    at: float

    @property
    def exit_code(self) -> int | None:
        """The exit code as a shell reports it."""
        if self.signal:
            return 128 + self.signal
        return self.code if self.code >= 0 else None


class OutputRange(msgspec.Struct, frozen=True):
    """A part of the output: its text, its range in bytes, and the total number of bytes."""

    text: str
    begin: int
    end: int
    total: int


def argv(
    mode: str,
    folder: str,
    command: str,
    *,
    size: int,
    seconds: float = float("inf"),
    input: bool = False,
    max_processes: int = MAX_PROCESSES,
) -> list[str]:
    """Build the supervisor's argv. The command is passed as a single argument and never parsed."""
    given = (mode, folder, str(int(input)), str(size), str(seconds), str(max_processes), shell(), command)
    return [sys.executable, "-I", "-S", SUPERVISOR, *given]


def stdio_argv(max_line_bytes: int, command: list[str]) -> list[str]:
    """Build the argv that runs a server on standard streams, for as long as this process lives."""
    return [sys.executable, "-I", "-S", SUPERVISOR, "stdio", str(max_line_bytes), str(os.getpid()), *command]


def shell() -> str:
    """Return the shell that runs command lines."""
    return "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"


def check_command(command: str) -> str:
    """Return the command. Raise ToolFailed if it cannot be run."""
    if os.name != "posix":
        raise errors.ToolFailed("Commands can be run on Linux and macOS only.")
    if not command.strip():
        raise errors.ToolFailed("The command is empty.")
    if "\0" in command or not _is_unicode(command):
        raise errors.ToolFailed("The command has invalid characters.")
    if len(command.encode()) > MAX_COMMAND_BYTES:
        raise errors.ToolFailed(
            f"The command is longer than {MAX_COMMAND_BYTES:,} bytes. Write it to a file and run that."
        )
    return command


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def working_folder(given: str, roots: list[str]) -> str:
    """Return the real path of a working folder, relative to the first root. It must be inside a root."""
    real = os.path.realpath(os.path.join(roots[0], given)) if "\0" not in given and _is_unicode(given) else ""
    if not any(real == root or real.startswith(root.rstrip(os.sep) + os.sep) for root in roots):
        raise errors.ToolFailed(f"{errors.quote(given)} is outside of the workspace ({' and '.join(roots)}).")
    if not os.path.isdir(real):
        raise errors.ToolFailed(f"Folder {errors.quote(given)} does not exist.")
    return real


# --- status --------------------------------------------------------------------------------------------


def status(folder: str) -> CommandStatus | None:
    """Return how the command ended; None if that is not recorded."""
    try:
        with open(os.path.join(folder, "status"), "rb") as file:
            return msgspec.json.decode(file.read(10_000), type=CommandStatus)
    except (OSError, msgspec.DecodeError):
        return None


def is_claimed(folder: str) -> bool:
    """Return whether a supervisor has started in this folder."""
    return os.path.lexists(os.path.join(folder, "control"))


def prevent_start(folder: str) -> bool:
    """Prevent a process from starting in this folder, which need not exist. Return False if it has started."""
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        os.close(os.open(os.path.join(folder, "control"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return not os.path.isdir(folder)
    except NotADirectoryError:
        pass  # The record is damaged, and no process can start there.
    return True


def send(folder: str, request: bytes = b"") -> bool:
    """Send a request to the supervisor: `k` stops the command, `e` closes its input, nothing checks that it runs."""
    try:
        control = os.open(os.path.join(folder, "control"), os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False  # The pipe has no reader.
    try:
        return stat.S_ISFIFO(os.fstat(control).st_mode) and (not request or os.write(control, request) > 0)
    except OSError:
        return False
    finally:
        os.close(control)


async def write(folder: str, data: bytes, seconds: float) -> int:
    """Write to the command's input and return the number of bytes written in time. Raise ToolFailed if it is closed."""
    try:
        pipe = os.open(os.path.join(folder, "in"), os.O_WRONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        raise errors.ToolFailed("The input of the process is closed. Start it with `input` to write to it.") from None
    except OSError:
        raise errors.ToolFailed("The process does not read its input any more.") from None
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
    """Continue a supervisor that its command has stopped."""
    process_info.resume_by_env(f"{MARK}={mark}")


def kill_leftovers(mark: str) -> int:
    """Kill all processes that a dead supervisor has left, and return their number."""
    return process_info.kill_by_env(f"{MARK}={mark}")


# --- output ---------------------------------------------------------------------------------------------


def read(folder: str, begin: int = 0, length: int = 1_000_000) -> OutputRange:
    """Return output from a byte on, at most `length` bytes. Dropped output is skipped."""
    for _ in range(10):
        parts = _parts(folder)
        first, total = (parts[0][0], sum(parts[-1])) if parts else (0, 0)
        begin = min(max(begin, first), total)
        data = _bytes(folder, parts, begin, min(begin + length, total))
        if data is not None:
            return _piece(data, begin, total, status(folder) is not None)
    return OutputRange("", begin, begin, begin)


def tail(folder: str, begin: int = 0, length: int = 1_000_000) -> OutputRange:
    """Return the end of the output, not before this byte."""
    parts = _parts(folder)
    return read(folder, max(begin, sum(parts[-1]) - length) if parts else 0, length)


def _piece(data: bytes, begin: int, total: int, ended: bool) -> OutputRange:
    """Decode output: half a character at the start is dropped, half a character at the end is left for later."""
    cut = next((n for n in range(min(4, len(data))) if data[n] & 0xC0 != 0x80), 0) if begin else 0
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text, end = decoder.decode(data[cut:]), begin + len(data)
    if ended and end == total:
        return OutputRange(clean(text + decoder.decode(b"", final=True)), begin, end, total)
    return OutputRange(clean(text), begin, end - len(decoder.getstate()[0]), total)


def _parts(folder: str) -> list[tuple[int, int]]:
    """Return the offset and the size of each stored part."""
    try:
        found = [entry for entry in os.scandir(folder) if re.fullmatch(r"out\.\d+", entry.name)]
        return sorted((int(entry.name[4:]), entry.stat().st_size) for entry in found)
    except OSError:
        return []


def _bytes(folder: str, parts: list[tuple[int, int]], begin: int, end: int) -> bytes | None:
    """Return a range of bytes; None if a part was deleted meanwhile."""
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
    """Return output without escape sequences and control characters, with overwritten lines as last written."""
    lines = _ESCAPES.sub("", text).replace("\r\n", "\n").split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines).translate(_CONTROL)
