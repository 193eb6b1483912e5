"""Answers of commands: nothing is wider than the terminal, nothing is lost, and columns stay columns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import safe_text

HELP = ["/new [TITLE]  Begin a new conversation.", "/quit         Leave. The conversation stays."]


@pytest.mark.parametrize(
    ("lines", "room", "rows"),
    [
        (HELP, 60, HELP),
        (
            HELP,
            36,
            [
                "/new [TITLE]  Begin a new",
                "              conversation.",
                "/quit         Leave. The",
                "              conversation stays.",
            ],
        ),
        (
            ["/compact [FOCUS | here N]  Let a summary stand.", "/quit                      Leave."],
            40,
            ["/compact [FOCUS | here N]  Let a summary", "  stand.", "/quit                      Leave."],
        ),
        (["a sentence that goes on"], 12, ["a sentence", "that goes on"]),
        (["12  a note that goes on"], 14, ["12  a note", "    that goes", "    on"]),
        (["- one two three"], 10, ["- one two", "  three"]),
        (["x" * 25], 10, ["x" * 10, "x" * 10, "x" * 5]),
        (["", "a b c", ""], 3, ["", "a b", "c", ""]),
        ([], 10, []),
    ],
)
def test_answers_look_like_this(lines: list[str], room: int, rows: list[str]) -> None:
    assert safe_text.lay_out(lines, room) == rows


LINES = st.lists(st.text(st.sampled_from("ab 漢-1.") | st.characters(categories=("L", "Zs")), max_size=60), max_size=6)


@given(LINES, st.integers(2, 60))
def test_nothing_is_wider_than_the_room_and_no_word_is_lost(lines: list[str], room: int) -> None:
    given = [safe_text.safe(line) for line in lines]
    rows = safe_text.lay_out(given, room)
    assert all(safe_text.cells(row) <= room for row in rows)
    assert "".join("".join(rows).split()) == "".join("".join(given).split())
