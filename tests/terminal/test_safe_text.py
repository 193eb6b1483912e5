"""Text for a terminal: control characters are escaped, and rows fit the width they are given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import safe_text


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("a\x07b\x00c\x7f\x9b", "a\\x07b\\x00c\\x7f\\x9b"),
        ("tab\tand\nline no\u00a0break", "tab and line no break"),
        ("\u202eevil", "\\u202eevil"),
        ("\U0001f469\u200d\U0001f467", "\U0001f469\u200d\U0001f467"),
        ("\udcff", "\\udcff"),
    ],
)
def test_unprintable_characters_are_escaped(given: str, shown: str) -> None:
    assert safe_text.safe(given) == shown


@given(st.text())
def test_any_text_is_printable_when_escaped(given: str) -> None:
    for line in [safe_text.safe(given), *safe_text.safe_lines(given)]:
        assert all(character.isprintable() or character in "\u200c\u200d" for character in line)


@pytest.mark.parametrize(("given", "cells"), [("abc", 3), ("漢字", 4), ("e\u0301", 1), ("\U0001f600", 2), ("", 0)])
def test_width_is_counted_in_cells(given: str, cells: int) -> None:
    assert safe_text.cells(given) == cells


@given(st.text(st.sampled_from("ab 漢字é…-"), max_size=60), st.integers(2, 20))
def test_any_text_fits_clipped_and_wrapped(given: str, room: int) -> None:
    clipped, lines = safe_text.clip(given, room), safe_text.wrap(given, room)
    assert safe_text.wrap(given, None) == [given]
    assert all(safe_text.cells(line) <= room for line in [clipped, *lines])
    assert clipped == given or safe_text.cells(given) > room
    assert "".join(lines).replace(" ", "") == given.replace(" ", "")


WIDE_COLUMN = ["/compact [FOCUS | here N]  Let a summary stand.", "/quit                      Leave."]


@pytest.mark.parametrize(
    ("lines", "room", "rows"),
    [
        (WIDE_COLUMN, 40, ["/compact [FOCUS | here N]  Let a summary", "  stand.", WIDE_COLUMN[1]]),
        (["x" * 25], 10, ["x" * 10, "x" * 10, "x" * 5]),
    ],
)
def test_lines_are_laid_out_in_columns(lines: list[str], room: int, rows: list[str]) -> None:
    assert safe_text.lay_out(lines, room) == rows


LINES = st.lists(st.text(st.sampled_from("ab 漢-1.") | st.characters(categories=("L", "Zs")), max_size=60), max_size=6)


@given(LINES, st.integers(2, 60))
def test_any_layout_fits_and_loses_no_word(lines: list[str], room: int) -> None:
    given = [safe_text.safe(line) for line in lines]
    rows = safe_text.lay_out(given, room)
    assert all(safe_text.cells(row) <= room for row in rows)
    assert "".join("".join(rows).split()) == "".join("".join(given).split())
