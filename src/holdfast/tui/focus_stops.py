"""What can be opened, walked from one to the next. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from holdfast.tui import entries, entry_rows


class Stop(NamedTuple):
    """Something that opens, and the row where it begins."""

    row: int
    key: entries.Key


def of(drawn: Iterable[tuple[int, Sequence[entry_rows.Row]]]) -> list[Stop]:
    """The stops of rows, each piece given with the row it begins at, from top to bottom."""
    found, before = list[Stop](), None
    for top, rows in drawn:
        for number, row in enumerate(rows):
            if row.key is not None and row.key != before:
                found.append(Stop(top + number, row.key))
            before = row.key
    return found


def following(stops: Sequence[Stop], chosen: entries.Key | None, screen: range, step: int) -> Stop | None:
    """The next one, or the one before: from the one that is chosen, or else from what is on the screen."""
    keys = [each.key for each in stops]
    if chosen in keys:
        place = keys.index(chosen) + step
    elif step < 0:
        place = max((n for n, each in enumerate(stops) if each.row < screen.stop), default=-1)
    else:
        place = next((n for n, each in enumerate(stops) if each.row >= screen.start), len(stops))
    return stops[place] if 0 <= place < len(stops) else None
