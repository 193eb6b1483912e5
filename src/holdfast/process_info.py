"""Look up processes in /proc: the boot id, start times, environment entries and process trees.

Process ids are reused, so a process is identified by its id and its start time.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import time

_MAX_ROUNDS = 100


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


def kill_tree(pid: int) -> None:
    """Kill a child of this process that was not waited for yet, and all its descendants.

    All are stopped first, parents before children, so that none starts or resumes another one meanwhile.
    """
    stopped: dict[int, None] = {}
    for _ in range(_MAX_ROUNDS):
        fresh = [each for each in process_tree(pid) if each not in stopped]
        for each in fresh:
            _send(each, signal.SIGSTOP)
        stopped.update(dict.fromkeys(fresh))
        if not fresh:
            break
    for each in reversed(stopped):
        _send(each, signal.SIGKILL)


def process_tree(pid: int) -> list[int]:
    """Return a process and its descendants, parents first; without /proc, the process only."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        fields = read_text(f"/proc/{name}/stat").rpartition(")")[2].split() if name.isdigit() else []
        if fields:
            children.setdefault(int(fields[1]), []).append(int(name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)


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
