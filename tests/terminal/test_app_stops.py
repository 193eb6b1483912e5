"""What can be opened is walked in its order, from what is chosen or from what is seen."""

from __future__ import annotations

import pytest
from rich.text import Text

from holdfast.tui import entries, entry_rows, transcript_pages

ROWS = [entry_rows.Row(Text(), key) for key in [None, (1, 0), (1, 0), None, (2, 0), (3, 0)]]
FOUND = transcript_pages.find_stops([(10, ROWS), (16, ROWS[3:])])


def test_each_thing_is_one_stop_at_its_first_row() -> None:
    assert FOUND == [(11, (1, 0)), (14, (2, 0)), (15, (3, 0)), (17, (2, 0)), (18, (3, 0))]


@pytest.mark.parametrize(
    ("chosen", "screen", "step", "row"),
    [
        (None, range(12, 16), -1, 15),
        (None, range(12, 16), 1, 14),
        (None, range(11), -1, None),
        (None, range(19, 30), 1, None),
        ((1, 0), range(12, 16), 1, 14),
        ((2, 0), range(30), -1, 11),
        ((1, 0), range(30), -1, None),
        ((9, 9), range(12, 16), 1, 14),
    ],
)
def test_the_next_one_is_found(chosen: entries.Key | None, screen: range, step: int, row: int | None) -> None:
    found = transcript_pages.next_stop(FOUND, chosen, screen, step)
    assert (found.row if found else None) == row
