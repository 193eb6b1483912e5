"""Who has the files of a store open just now. Linux tells, of processes this user may look at."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

_PROCESSES = "/proc"
_GONE = " (deleted)"


class Visitor(NamedTuple):
    """A process, and whether what it has open is the file that is at the path now or one that was there before."""

    pid: int
    command: str
    stale: bool


def visitors(path: str) -> list[Visitor] | None:
    """Other processes that have the database at this path open; None where the system does not tell."""
    if not os.path.isdir(f"{_PROCESSES}/self/fd"):
        return None
    real, me = os.path.realpath(path), str(os.getpid())
    found = []
    for pid in filter(str.isdigit, os.listdir(_PROCESSES)):
        names = set(_open_files(pid)) if pid != me else set()
        if names & {real, real + _GONE}:
            found.append(Visitor(int(pid), _command(pid), real not in names or not _same(real, pid)))
    return sorted(found)


def _open_files(pid: str) -> Iterator[str]:
    """What its descriptors lead to; nothing of a process that is gone, or another user's."""
    folder = f"{_PROCESSES}/{pid}/fd"
    try:
        for descriptor in os.listdir(folder):
            yield os.readlink(f"{folder}/{descriptor}")
    except OSError:
        return


def _same(real: str, pid: str) -> bool:
    """Whether a descriptor leads to the very file that is there now: a name may have been given anew."""
    folder = f"{_PROCESSES}/{pid}/fd"
    try:
        now = os.stat(real)
        return any(os.path.samestat(now, os.stat(f"{folder}/{each}")) for each in os.listdir(folder))
    except OSError:
        return True  # one of them has gone meanwhile


def _command(pid: str) -> str:
    try:
        with open(f"{_PROCESSES}/{pid}/cmdline", "rb") as file:
            return file.read(500).replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""
