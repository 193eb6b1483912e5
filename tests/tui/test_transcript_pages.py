"""Pages of a long transcript: their heights and the cache."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast import types
from holdfast.tui import transcript_pages


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
