"""Entries as rows: none is wider than the screen or acts on it, and long ones are folded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import safe_text
from holdfast.terminal import event_text
from holdfast.tui import entries, entry_rows

WORDS = st.text(st.characters(codec="utf-8"), max_size=200)
KINDS = st.sampled_from(["user", "reply", "reasoning", "tool", "program", "notice", "answer", "summary", "queued"])


def draw(entry: entries.Entry, width: int = 60, opened: bool = False, **given: event_text.Marks) -> list[str]:
    form = entry_rows.RowFormat(width, **given)
    return [row.text.plain.rstrip() for row in entry_rows.draw_entry(entry, form, opened)]


@given(WORDS, WORDS, KINDS, st.integers(20, 120), st.booleans())
def test_any_row_fits_and_is_printable(words: str, name: str, kind: entries.Kind, width: int, opened: bool) -> None:
    for row in draw(entries.Entry((1, 0), kind, words, name, ok=True), width, opened):
        assert safe_text.cells(row) <= width
        assert row == safe_text.safe(row)


def test_tool_is_one_row_that_opens() -> None:
    entry = entries.Entry((1, 2), "tool", "first\nsecond", 'look {"at": 1}', True)
    assert draw(entry) == ['   ▸ ✓ look {"at": 1}  first']
    rows = ['   ▾ ✓ look {"at": 1}', '     │ {"at": 1}', "     │ first", "     │ second"]
    assert draw(entry, opened=True) == rows
    assert draw(entry, marks=event_text.PLAIN) == ['   > ok: look {"at": 1}  first']


@pytest.mark.parametrize("kind", ["user", "reply", "tool", "reasoning"])
@pytest.mark.parametrize("words", ["x" * 300_000, "some words\n" * 30_000], ids=["one line", "many lines"])
def test_huge_entry_is_cut(kind: entries.Kind, words: str) -> None:
    entry = entries.Entry((1, 0), kind, words)
    folded, opened = draw(entry), draw(entry, opened=True)
    assert len(folded) <= entry_rows.FOLDED_ROWS + 3
    if kind in entry_rows.MAX_UNFOLDED_ROWS:
        assert f"all {len(words):,} characters" in folded[-2]
    assert entry_rows.FOLDED_ROWS < len(opened) <= entry_rows.MAX_ROWS + 5
    assert any("prints all.)" in row for row in opened)


def test_markdown_is_drawn_up_to_a_limit_and_wide_code_continues_in_the_next_row() -> None:
    long = draw(entries.Entry((1, 0), "reply", "**bold** word\n\n" * 2_000), opened=True)
    assert (long[1].strip(), long[-5].strip()) == ("bold word", "**bold** word")
    rows = draw(entries.Entry((1, 0), "reply", f"**bold**\n\n```\n{'x' * 70}\n```"), width=46)
    assert "   bold" in rows
    assert "".join(row.strip() for row in rows if "x" in row and "bold" not in row) == "x" * 70
