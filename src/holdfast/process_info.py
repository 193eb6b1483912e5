"""What this machine says about processes: which boot this is, when one began, which carry a mark.

Whoever wants to know whether a process of another life of the program still runs asks here. A number alone names
no process: numbers are given again, so the moment it began is part of its name.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import time

_ROUNDS = 100


@functools.cache
def boot_id() -> str:
    """Which start of the machine this is; empty where that cannot be told."""
    return read_text("/proc/sys/kernel/random/boot_id")


def machine_id() -> str:
    """Which installation of a system this is; empty where that cannot be told."""
    return read_text("/etc/machine-id") or read_text("/var/lib/dbus/machine-id")


def start_ticks(pid: int) -> str:
    """When the process began, in ticks since boot; empty when it is gone or only waits to be buried."""
    # The name of a program, field 2, may hold spaces and brackets: count from behind it.
    fields = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 and fields[0] not in "ZX" else ""


def exists(pid: int) -> bool:
    """Whether there is a process of this number; True where that cannot be asked."""
    if os.name != "posix":
        return True  # There signal 0 is no question but Ctrl-C.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def find_by_env(mark: str) -> list[int]:
    """The processes that have this entry, NAME=VALUE, in the environment they began with; none without /proc."""
    numbers = os.listdir("/proc") if os.path.isdir("/proc/self") else []
    return [int(name) for name in numbers if name.isdigit() and _has(int(name), mark)]


def kill_by_env(mark: str, patience: float = 5.0) -> int:
    """Kill them, and those they make meanwhile, and wait for their end; how many there were.

    Only for marks that nobody else can have.
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
    """Let those go on that somebody stopped."""
    for pid in find_by_env(mark):
        _signal(pid, mark, signal.SIGCONT)


def kill_tree(pid: int) -> None:
    """Kill a child of this process that was not waited for yet, and everything below it.

    All are stopped first, parents before their children, so that none makes another or wakes one meanwhile.
    """
    stopped: dict[int, None] = {}
    for _ in range(_ROUNDS):
        fresh = [each for each in process_tree(pid) if each not in stopped]
        for each in fresh:
            _send(each, signal.SIGSTOP)
        stopped.update(dict.fromkeys(fresh))
        if not fresh:
            break
    for each in reversed(stopped):
        _send(each, signal.SIGKILL)


def process_tree(pid: int) -> list[int]:
    """A process and all that descend from it, parents first; without /proc itself only."""
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
        # Held by a descriptor the process cannot become another one between the look and the signal.
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
    """A small file of the system; empty when it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
