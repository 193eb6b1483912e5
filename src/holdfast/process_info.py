"""Look up processes in /proc: the boot id, start times and environment entries.

Process ids are reused, so a process is identified by its id and its start time.
"""

from __future__ import annotations

import functools
import os
import signal
import time

EXITING, KERNEL_THREAD = 0x4, 0x200000
"""Flags of a process in /proc/PID/stat."""
EXEC_SECONDS = 1.0
"""Seconds to wait until a process has replaced its program."""


@functools.cache
def boot_id() -> str:
    """Return the id of this boot of the machine; empty if it is unknown."""
    return read_text("/proc/sys/kernel/random/boot_id")


def machine_id() -> str:
    """Return the id of this installation of the system; empty if it is unknown."""
    return read_text("/etc/machine-id") or read_text("/var/lib/dbus/machine-id")


def start_ticks(pid: int) -> str:
    """Return the start time of a process in ticks since boot; empty if it has ended or is a zombie."""
    fields = _stat_fields(pid)
    return fields[19] if len(fields) > 19 and fields[0] not in "ZX" else ""


def exists(pid: int) -> bool:
    """Return whether a process with this id exists; True if that is unknown."""
    if os.name != "posix":
        return True  # On Windows, signal 0 is Ctrl-C.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def find_by_env(mark: str) -> list[int]:
    """Return the processes that started with this environment entry, NAME=VALUE; none without /proc."""
    numbers = os.listdir("/proc") if os.path.isdir("/proc/self") else []
    return [int(name) for name in numbers if name.isdigit() and has_env(int(name), mark)]


def kill_by_env(mark: str, patience: float = 5.0) -> int:
    """Kill the processes with this environment entry, also new ones, and wait for their end; returns their number.

    The entry must be unique, so that no other process has it.
    """
    found: set[tuple[int, str]] = set()
    until = time.monotonic() + patience
    while (pids := find_by_env(mark)) and time.monotonic() < until:
        found |= {(pid, start_ticks(pid)) for pid in pids}
        for pid in pids:
            _signal(pid, mark, signal.SIGKILL)
        time.sleep(0.005)
    return len({each for each in found if each[1]})


def resume_by_env(mark: str) -> None:
    """Resume stopped processes with this environment entry."""
    for pid in find_by_env(mark):
        _signal(pid, mark, signal.SIGCONT)


def _signal(pid: int, mark: str, number: signal.Signals) -> None:
    try:
        # With a descriptor, the id cannot be reused between the check and the signal.
        held = os.pidfd_open(pid)
    except (OSError, AttributeError):
        return
    try:
        if has_env(pid, mark):
            signal.pidfd_send_signal(held, number)
    except OSError:
        pass
    finally:
        os.close(held)


def has_env(pid: int, mark: str) -> bool:
    """Return whether a process has an environment entry."""
    until = time.monotonic() + EXEC_SECONDS
    while True:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                environment = file.read()
        except OSError:
            return False
        if environment or not may_be_in_exec(pid) or time.monotonic() > until:
            return mark.encode() in environment.split(b"\0")
        time.sleep(0.001)


def may_be_in_exec(pid: int) -> bool:
    """Return whether a process without environment may be replacing its program, which empties it for a moment."""
    fields = _stat_fields(pid)
    if len(fields) < 49 or fields[0] in "ZX" or int(fields[6]) & (EXITING | KERNEL_THREAD):
        return False
    begin, end = fields[47:49]
    return begin != end or end == "0"


def _stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; empty if the process does not exist."""
    # The name of the program, before the state, may contain spaces and parentheses.
    return read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()


def read_text(path: str) -> str:
    """Return the content of a small system file; empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
