"""Find the processes that have a SQLite store open, by the descriptors that Linux lists in /proc."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

_PROCESSES = "/proc"
_DELETED = " (deleted)"


class Visitor(NamedTuple):
    """A process that has the database open; `stale` if its file is no longer the one at the path."""

    pid: int
    command: str
    stale: bool


def visitors(path: str) -> list[Visitor] | None:
    """Return the other processes that have this database open, as far as this user may see; None without /proc."""
    if not os.path.isdir(f"{_PROCESSES}/self/fd"):
        return None
    real, me = os.path.realpath(path), str(os.getpid())
    found = []
    for pid in filter(str.isdigit, os.listdir(_PROCESSES)):
        names = set(_open_files(pid)) if pid != me else set()
        if names & {real, real + _DELETED}:
            found.append(Visitor(int(pid), _command(pid), real not in names or not _has_current_file(real, pid)))
    return sorted(found)


def _open_files(pid: str) -> Iterator[str]:
    """Yield the paths of its open files; none for a process that has ended or belongs to another user."""
    folder = f"{_PROCESSES}/{pid}/fd"
    try:
        for descriptor in os.listdir(folder):
            yield os.readlink(f"{folder}/{descriptor}")
    except OSError:
        return


def _has_current_file(real: str, pid: str) -> bool:
    """Return whether the process has the file that is now at the path open, and not a former file of that name."""
    folder = f"{_PROCESSES}/{pid}/fd"
    try:
        now = os.stat(real)
        return any(os.path.samestat(now, os.stat(f"{folder}/{each}")) for each in os.listdir(folder))
    except OSError:
        return True  # the file or the process is gone


def _command(pid: str) -> str:
    try:
        with open(f"{_PROCESSES}/{pid}/cmdline", "rb") as file:
            return file.read(500).replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""
