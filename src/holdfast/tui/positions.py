"""Where what was read is, after what is around it has changed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

TELLING = 6
"""So many rows tell a place from others."""
REACH = 400


def nearest(shown: Sequence[str], top: int, row: Callable[[int], str]) -> int:
    """The row these rows begin at now, as close as can be to where they began; there, where they are gone."""
    wanted = shown[:TELLING]
    for step in range(REACH):
        for place in (top + step, top - step):
            if place >= 0 and all(row(place + number) == line for number, line in enumerate(wanted)):
                return place
    return top
