"""Look up processes in /proc: the boot id, start times and environment entries.

Process ids are reused, so a process is identified by its id and its start time.
"""

from __future__ import annotations

import functools
import os
import signal
import time


@functools.cache
def boot_id() -> str:
    """Return the id of this boot of the machine; empty if it is unknown."""
    return read_text("/proc/sys/kernel/random/boot_id")


def machine_id() -> str:
    """Return the id of this installation of the system; empty if it is unknown."""
    return read_text("/etc/machine-id") or read_text("/var/lib/dbus/machine-id")


def start_ticks(pid: int) -> str:
    """Return the start time of a process in ticks since boot; empty if it has ended or is a zombie."""
    # Field 2, the name of the program, may contain spaces and parentheses, so fields are counted after it.
    fields = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
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
    return [int(name) for name in numbers if name.isdigit() and _has(int(name), mark)]


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
        if _has(pid, mark):
            signal.pidfd_send_signal(held, number)
    except OSError:
        pass
    finally:
        os.close(held)


def _has(pid: int, mark: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark.encode() in file.read().split(b"\0")
    except OSError:
        return False


def read_text(path: str) -> str:
    """Return the content of a small system file; empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
