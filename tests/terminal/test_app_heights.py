"""Pages of a long list: a row is found where it is, whatever was measured so far."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.tui import transcript_pages

Measured = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 40)), max_size=20)


def rows_of(found: transcript_pages.PageHeights) -> list[int]:
    ends = [found.top(page) for page in range(1, found.pages)] + [found.total]
    return [end - found.top(page) for page, end in enumerate(ends)]


@given(Measured, st.integers(1, 30))
def test_for_any_measures_every_row_is_found_in_its_page(measured: list[tuple[int, int]], guess: int) -> None:
    found = transcript_pages.PageHeights(12, guess)
    for page, rows in measured:
        found.measure(page, rows)
    every = [(page, row) for page, rows in enumerate(rows_of(found)) for row in range(rows)]
    assert [found.locate(row) for row in range(found.total)] == every
    assert dict(measured).items() <= dict(enumerate(rows_of(found))).items()


@given(Measured, st.integers(1, 30))
def test_for_any_measures_what_is_below_moves_by_what_is_told(measured: list[tuple[int, int]], guess: int) -> None:
    found = transcript_pages.PageHeights(13, guess)
    for page, rows in measured:
        before = found.top(page + 1)
        moved = found.measure(page, rows)
        assert found.top(page + 1) == before + moved


def test_the_first_page_that_is_measured_tells_how_tall_the_others_may_be() -> None:
    found = transcript_pages.PageHeights(100, 10)
    found.measure(99, 35)
    assert found.total == 3500
    found.measure(98, 5)
    assert found.total == 3470


def test_pages_come_and_go_and_those_that_stay_keep_their_heights() -> None:
    found = transcript_pages.PageHeights(2, 10)
    found.measure(0, 7)
    found.resize(4)
    assert rows_of(found) == [7, 7, 7, 7]
    found.measure(1, 3)
    found.resize(0)
    assert rows_of(found) == [7]


def test_what_lies_outside_belongs_to_the_first_and_the_last_page() -> None:
    found = transcript_pages.PageHeights(3, 5)
    assert found.locate(-4) == (0, 0)
    assert found.locate(15) == (2, 5)
    assert list(found.between(-3, 99)) == [0, 1, 2]


def test_when_the_width_changes_measures_are_guesses_of_the_same_size() -> None:
    found = transcript_pages.PageHeights(10, 5)
    found.measure(0, 20)
    found.measure(1, 40)
    found.forget()
    assert rows_of(found) == [30] * 10
