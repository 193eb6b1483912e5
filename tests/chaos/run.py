"""What every part of a long fault run is given, and how it tells that something is wrong."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.faults import kill_points, zygote
from tests.support import postgres


class Run(NamedTuple):
    """What a part has at hand; it yields a line of progress, or of what is wrong, and stops in time."""

    zygote: zygote.Zygote
    folder: Path
    chance: random.Random
    rounds: int
    processes: int
    kills: int
    until: float

    @contextlib.contextmanager
    def new_store(self, dialect: str) -> Iterator[str]:
        """The address of an empty store, which is removed afterwards."""
        if dialect == "postgres":
            address = postgres.fresh()
            yield address
            postgres.give_back(address)
            return
        path = self.folder / "store.db"
        yield str(path)
        kill_points.remove(path)

    def goes_on(self) -> bool:
        return time.monotonic() < self.until


class Wrong(str):
    """A line that tells of something wrong."""

    __slots__ = ()
