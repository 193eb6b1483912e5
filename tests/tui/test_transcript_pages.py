"""Pages of a long transcript: their heights, the cache, anchors, and stops for the keyboard."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from holdfast import types
from holdfast.tui import entries, entry_rows, transcript_pages


def heights(found: transcript_pages.PageHeights) -> list[int]:
    ends = [found.top(page) for page in range(1, found.pages)] + [found.total]
    return [end - found.top(page) for page, end in enumerate(ends)]


@given(st.lists(st.tuples(st.integers(0, 10), st.integers(0, 40)), max_size=20), st.integers(1, 30))
def test_any_row_is_found_and_a_measured_page_moves_later_rows(measured: list[tuple[int, int]], guess: int) -> None:
    found = transcript_pages.PageHeights(12, guess)
    for page, rows in measured:
        before = found.top(page + 1)
        moved = found.measure(page, rows)
        assert found.top(page + 1) == before + moved
    every = [(page, row) for page, rows in enumerate(heights(found)) for row in range(rows)]
    assert [found.locate(row) for row in range(found.total)] == every
    assert dict(measured).items() <= dict(enumerate(heights(found))).items()


def test_measured_heights_estimate_other_pages_and_survive_a_change_of_their_number() -> None:
    found = transcript_pages.PageHeights(100, 10)
    found.measure(99, 35)
    assert found.total == 3500
    found.measure(98, 5)
    assert found.total == 3470
    found = transcript_pages.PageHeights(2, 10)
    found.measure(0, 7)
    found.resize(4)
    assert heights(found) == [7, 7, 7, 7]
    assert [found.locate(-4), found.locate(28), [*found.between(-3, 99)]] == [(0, 0), (3, 7), [0, 1, 2, 3]]
    found.measure(1, 3)
    found.forget()  # The width has changed.
    assert heights(found) == [5, 5, 5, 5]
    found.resize(0)
    assert heights(found) == [5]


def page(size: int) -> transcript_pages.Page:
    return transcript_pages.Page([types.Message(1, "u", "s", "user", 0.0, "x" * size)], [])


def test_cache_evicts_the_least_recently_seen_pages_but_no_visible_one() -> None:
    held = transcript_pages.PageCache()
    for number in range(transcript_pages.MAX_PAGES + 2):
        held[number] = page(1)
    held.evict(range(1))
    assert [number in held for number in range(4)] == [True, False, False, True]
    assert len(held) == transcript_pages.MAX_PAGES
    large = transcript_pages.PageCache()
    for number in range(6):
        large[number] = page(transcript_pages.MAX_CHARACTERS // 2)
    large.evict(range(3, 6))
    assert list(large) == [3, 4, 5]
    large.evict(range(5, 6))
    assert list(large) == [4, 5]


@pytest.mark.parametrize(
    ("anchor", "near", "expected"),
    [(["b", "", "same"], 3, 1), (["same", ""], 4, 5), (["same", ""], 3, 3), (["nowhere"], 4, 4)],
)
def test_anchor_is_the_nearest_of_equal_rows(anchor: list[str], near: int, expected: int) -> None:
    rows = ["a", "b", "", "same", "", "same", "", "z"]
    assert transcript_pages.find_anchor(anchor, near, lambda row: rows[row] if row < len(rows) else "") == expected


ROWS = [entry_rows.Row(Text(), key) for key in [None, (1, 0), (1, 0), None, (2, 0), (3, 0)]]
STOPS = transcript_pages.find_stops([(10, ROWS), (16, ROWS[3:])])


@pytest.mark.parametrize(
    ("chosen", "screen", "step", "row"),
    [
        (None, range(12, 16), -1, 15),
        (None, range(19, 30), 1, None),
        ((1, 0), range(12, 16), 1, 14),
        ((2, 0), range(30), -1, 11),
        ((1, 0), range(30), -1, None),
        ((9, 9), range(12, 16), 1, 14),
    ],
)
def test_next_stop_follows_the_chosen_entry(
    chosen: entries.Key | None, screen: range, step: int, row: int | None
) -> None:
    assert STOPS == [(11, (1, 0)), (14, (2, 0)), (15, (3, 0)), (17, (2, 0)), (18, (3, 0))]
    found = transcript_pages.next_stop(STOPS, chosen, screen, step)
    assert (found.row if found else None) == row
