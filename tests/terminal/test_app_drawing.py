"""Entries as rows: none wider than the screen, nothing that acts on a terminal, what is long folded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import safe_text
from holdfast.terminal import event_text
from holdfast.tui import entries, entry_rows, live_turn

WORDS = st.text(st.characters(codec="utf-8"), max_size=200)
KINDS = st.sampled_from(["user", "reply", "reasoning", "tool", "program", "notice", "answer", "summary", "queued"])


def plain(
    entry: entries.Entry, width: int = 60, opened: bool = False, marks: event_text.Marks | None = None
) -> list[str]:
    pen = entry_rows.RowFormat(width, marks=marks or event_text.Marks())
    return [row.text.plain.rstrip() for row in entry_rows.draw_entry(entry, pen, opened)]


@given(WORDS, WORDS, KINDS, st.integers(20, 120), st.booleans())
def test_for_any_words_no_row_is_wider_than_the_screen_or_acts_on_it(
    words: str, name: str, kind: entries.Kind, width: int, opened: bool
) -> None:
    for row in plain(entries.Entry((1, 0), kind, words, name, ok=True), width, opened):
        assert safe_text.cells(row) <= width
        assert row == safe_text.safe(row)


def test_a_tool_is_a_row_that_opens_to_all_of_it() -> None:
    entry = entries.Entry((1, 2), "tool", "first\nsecond", 'look {"at": 1}', True)
    assert plain(entry) == ['   ▸ ✓ look {"at": 1}  first']
    assert plain(entry, opened=True) == [
        '   ▾ ✓ look {"at": 1}',
        '     │ {"at": 1}',
        "     │ first",
        "     │ second",
    ]
    assert plain(entry, marks=event_text.PLAIN) == ['   > ok: look {"at": 1}  first']


@pytest.mark.parametrize("kind", ["user", "reply"])
def test_what_is_long_is_folded_until_it_is_opened(kind: entries.Kind) -> None:
    entry = entries.Entry((1, 0), kind, "\n\n".join(f"line {n}" for n in range(300)))
    folded, opened = plain(entry), plain(entry, opened=True)
    assert len(folded) < 2 * entry_rows.FOLDED_ROWS
    assert any("more rows" in row for row in folded)
    assert any("line 299" in row for row in opened)


def test_an_answer_of_some_screens_stays_as_it_was_read() -> None:
    words = "\n\n".join(f"line {n}" for n in range(100))
    assert any("line 99" in row for row in plain(entries.Entry((1, 0), "reply", words)))
    assert not any("line 99" in row for row in plain(entries.Entry((1, 0), "user", words)))


@pytest.mark.parametrize("kind", ["user", "reply", "tool", "reasoning"])
@pytest.mark.parametrize("words", ["x" * 3_000_000, "some words\n" * 300_000], ids=["one line", "many"])
def test_what_is_huge_is_looked_at_only_as_far_as_it_can_be_shown(kind: entries.Kind, words: str) -> None:
    entry = entries.Entry((1, 0), kind, words)
    folded, opened = plain(entry), plain(entry, opened=True)
    assert len(folded) <= entry_rows.FOLDED_ROWS + 3
    if kind in entry_rows.MAX_UNFOLDED_ROWS:
        assert f"all {len(words):,} characters" in folded[-2]
    assert entry_rows.FOLDED_ROWS < len(opened) <= entry_rows.MAX_ROWS + 5
    assert any("prints all.)" in row for row in opened)


def test_only_the_first_part_of_a_very_long_answer_is_styled() -> None:
    entry = entries.Entry((1, 0), "reply", "**bold** word\n\n" * 2_000)
    rows = plain(entry, opened=True)
    assert rows[1].strip() == "bold word"
    assert rows[-5].strip() == "**bold** word"


def test_nothing_is_longer_than_what_can_be_drawn() -> None:
    entry = entries.Entry((1, 0), "answer", "x\n" * (entry_rows.MAX_ROWS + 10))
    assert len(plain(entry)) <= entry_rows.MAX_ROWS + 2


def test_markdown_is_drawn_and_code_wider_than_the_screen_goes_on_in_the_next_row() -> None:
    rows = plain(entries.Entry((1, 0), "reply", f"**bold**\n\n```\n{'x' * 70}\n```"), width=46)
    assert "   bold" in rows
    assert "".join(row.strip() for row in rows if "x" in row and "bold" not in row) == "x" * 70


@given(st.lists(WORDS, max_size=8), st.integers(20, 100))
def test_for_any_pieces_a_reply_that_streams_ends_as_it_is_drawn_from_the_log(pieces: list[str], width: int) -> None:
    pen, whole = entry_rows.RowFormat(width), "".join(pieces)
    flow = live_turn.StreamedReply((1, 1), "m")
    for piece in pieces:
        flow.add(piece)
        flow.rows(pen)
    flow.add("\n\nend\n\n")
    streamed = [row.text.plain.rstrip() for row in flow.rows(pen)]
    again = live_turn.StreamedReply((1, 1), "m")
    again.add(f"{whole}\n\nend\n\n")
    assert streamed == [row.text.plain.rstrip() for row in again.rows(pen)]
