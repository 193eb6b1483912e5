"""What every part of a long fault run is given, and how it tells that something is wrong."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import NamedTuple

from tests.faults import zygote


class Run(NamedTuple):
    """What a part has at hand; it yields a line of progress, or of what is wrong, and stops in time."""

    zygote: zygote.Zygote
    folder: Path
    chance: random.Random
    rounds: int
    processes: int
    kills: int
    until: float

    def goes_on(self) -> bool:
        return time.monotonic() < self.until


class Wrong(str):
    """A line that tells of something wrong."""

    __slots__ = ()
