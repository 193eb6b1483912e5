"""Text is safe to show and takes the room it says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import safe_text


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("a\x07b\x00c\x7f\x9b", "a\\x07b\\x00c\\x7f\\x9b"),
        ("tab\tand\nline", "tab and line"),
        ("no\u00a0break", "no break"),
        ("\u202eevil", "\\u202eevil"),
        ("\U0001f469\u200d\U0001f467", "\U0001f469\u200d\U0001f467"),
        ("漢字", "漢字"),
        ("\udcff", "\\udcff"),
    ],
)
def test_unprintable_characters_are_spelled_out(given: str, shown: str) -> None:
    assert safe_text.safe(given) == shown


@given(st.text())
def test_no_text_reaches_the_terminal_with_control_characters(given: str) -> None:
    for line in [safe_text.safe(given), *safe_text.safe_lines(given)]:
        assert all(character.isprintable() or character in "\u200c\u200d" for character in line)


@pytest.mark.parametrize(("given", "cells"), [("abc", 3), ("漢字", 4), ("e\u0301", 1), ("\U0001f600", 2), ("", 0)])
def test_width_is_counted_in_cells(given: str, cells: int) -> None:
    assert safe_text.cells(given) == cells


@given(st.text(st.sampled_from("ab 漢字é…-"), max_size=40), st.integers(1, 20))
def test_clipped_text_fits(given: str, room: int) -> None:
    clipped = safe_text.clip(given, room)
    assert safe_text.cells(clipped) <= room
    assert clipped == given or safe_text.cells(given) > room


@given(st.text(st.sampled_from("ab 漢字é"), max_size=60), st.integers(2, 20))
def test_wrapped_lines_fit_and_say_the_same(given: str, room: int) -> None:
    lines = safe_text.wrap(given, room)
    assert all(safe_text.cells(line) <= room for line in lines)
    assert "".join(lines).replace(" ", "") == given.replace(" ", "")


def test_without_a_width_nothing_is_wrapped() -> None:
    assert safe_text.wrap("word " * 1000, None) == ["word " * 1000]


@pytest.mark.parametrize(("at", "shown"), [(1e18, "@1000000000000000000"), (float("inf"), "@inf")])
def test_times_no_calendar_knows_are_shown_as_numbers(at: float, shown: str) -> None:
    assert safe_text.date(at) == shown


@pytest.mark.parametrize(("number", "shown"), [(0, "0 B"), (999, "999 B"), (32_768, "32.8 kB"), (2_500_000, "2.5 MB")])
def test_sizes_are_in_the_largest_unit(number: int, shown: str) -> None:
    assert safe_text.size(number) == shown
