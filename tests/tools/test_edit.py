"""An edit changes the one place that matches, or nothing; the diff shows every change."""

from __future__ import annotations

import time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast import errors
from holdfast.tools.files import diff, edit


def replace(text: str, old: str, new: str, replace_all: bool = False) -> str:
    return edit.apply_edit(text, edit.TextEdit(old_text=old, new_text=new, replace_all=replace_all))


TEXT = st.text(st.sampled_from("ab \n\t'é"), max_size=30)


@given(TEXT, TEXT, TEXT, TEXT)
def test_any_unique_text_is_replaced_and_line_ends_are_kept(before: str, old: str, new: str, after: str) -> None:
    text = before + old + after
    assume(old and old != new and text.find(old, text.find(old) + 1) < 0)
    assert replace(text, old, new) == text.replace(old, new, 1)
    assert replace(text * 2, old, new, replace_all=True) == (text * 2).replace(old, new)
    if "\n" in text:
        assert replace(text.replace("\n", "\r\n"), old, new) == text.replace(old, new, 1).replace("\n", "\r\n")


@given(TEXT, TEXT.filter(bool), TEXT)
def test_any_edit_changes_one_range_of_lines_only(text: str, old: str, new: str) -> None:
    assume(old != new)
    try:
        made = replace(text, old, new)
    except errors.ToolFailed:
        return
    before, after = text.split("\n"), made.split("\n")
    span = old.count("\n") + 1
    assert any(
        after[:start] == before[:start] and after[len(after) - (len(before) - start - span) :] == before[start + span :]
        for start in range(len(before) - span + 1)
    )


CODE = "def f():\n    if x:\n        return 1\n    return 2\n\n\ndef g():\n    return 3\n"


@pytest.mark.parametrize(
    ("text", "old", "new", "made"),
    [
        # Spaces at the ends of lines, on either side.
        ("a = 1  \nb = 2\n", "a = 1\nb = 2", "a = 1\nb = 3", "a = 1\nb = 3\n"),
        # Typographic quotes, dashes and spaces.
        ("say “hello” – now\n", 'say "hello" - now', "say bye", "say bye\n"),
        # Indentation that was left out, or made of other characters.
        (CODE, "if x:\n    return 1", "if y:\n    return 9", CODE.replace("x", "y").replace("1", "9")),
        ("\tif x:\n\t\tok\n", "    if x:\n        ok", "    y:\n        a\n            b", "\ty:\n\t\ta\n\t\t\tb\n"),
        ("  a\n  b\n", "    a\n    b", "    a\n      c\n  d", "  a\n    c\nd\n"),
        # Spaces within a line.
        ("x  =  1\n", "x = 1\n", "x = 2\n", "x = 2\n"),
        # A last line without an end stays without one.
        ("  a\n  b", "a\nb\n", "a\nc\n", "  a\n  c"),
        # Windows ends and indentation at once.
        ("  a\r\n  b\r\nc\r\n", "a\nb", "a\nd", "  a\r\n  d\r\nc\r\n"),
        # A file of both kinds of ends keeps those of all other lines.
        ("one\r\ntwo\r\nthree\nfour\n", "one\ntwo", "1\n2", "1\r\n2\r\nthree\nfour\n"),
    ],
)
def test_unintended_differences_are_ignored(text: str, old: str, new: str, made: str) -> None:
    assert replace(text, old, new) == made


@pytest.mark.parametrize(
    ("text", "old", "reason"),
    [
        ("a\na\n", "a", "2 places, at lines 1, 2"),
        ("  a b\n\ta b\n", "a  b", "2 places"),
        ("x\n", "", "empty"),
        ("x\n", "x", "the same"),
        ("", "x", "not in the file"),
        ("z\n" * 50, "z", "many places"),
    ],
)
def test_ambiguous_or_missing_text_changes_nothing(text: str, old: str, reason: str) -> None:
    with pytest.raises(errors.ToolFailed, match=reason):
        replace(text, old, "x" if old != "x" or "same" in reason else "y")


def test_replace_all_is_exact_except_for_line_ends() -> None:
    assert replace("a\r\nb\r\na\r\nb\r\n", "a\nb", "c\nd", replace_all=True) == "c\r\nd\r\nc\r\nd\r\n"
    with pytest.raises(errors.ToolFailed, match="not in the file"):
        replace("  a  b\n  a  b\n", "a b", "c", replace_all=True)


def test_most_similar_lines_are_shown_with_their_numbers() -> None:
    text = "\n".join(f"line {number}" for number in range(50)) + "\n" + CODE
    with pytest.raises(errors.ToolFailed) as caught:
        replace(text, "    if x:\n        return 5\n", "x")
    assert "52\t    if x:\n53\t        return 1\n" in str(caught.value)
    assert len(str(caught.value)) < 1_000
    with pytest.raises(errors.ToolFailed, match="No line is similar"):
        replace(text, "quetzalcoatl", "x")


@pytest.mark.parametrize(
    ("text", "old"),
    [
        ("a" * 2_000_000, "a" * 500_000 + "b"),
        ("a b\n" * 50_000, "a  b\n" * 20_000 + "c"),
        ("word\n" * 100_000, "word\n\nword"),
    ],
)
def test_missing_text_in_a_large_file_takes_no_quadratic_time(text: str, old: str) -> None:
    before = time.process_time()  # Other work on the machine does not count.
    with pytest.raises(errors.ToolFailed, match="not in the file"):
        replace(text, old, "y")
    assert time.process_time() - before < 5.0


def apply_diff(old: str, difference: str) -> str:
    """Return the new text, made from the old one and the diff."""
    before, made, at = old.split("\n") if old else [], list[str](), 0
    for line in difference.split("\n") if difference else []:
        if line.startswith("@@"):
            start = int(line.split()[1][1:].split(",")[0]) - 1
            made += before[at:start]
            at = start
        elif line.startswith("+"):
            made.append(line[1:])
        else:
            assert before[at] == line[1:]
            at += 1
            made += [line[1:]] if line.startswith(" ") else []
    return "\n".join(made + before[at:])


LINES = st.lists(st.sampled_from("abc"), max_size=30)


@given(LINES, LINES)
def test_diff_of_any_two_texts_makes_one_from_the_other(one: list[str], other: list[str]) -> None:
    old, new = "\n".join(one), "\n".join(other)
    difference, added, removed = diff.unified(old, new)
    assert apply_diff(old, difference) == new
    assert len(one) + added - removed == len(other)
    assert bool(difference) == (old != new)


def test_large_diff_is_bounded_and_hidden_characters_are_escaped() -> None:
    old = "\n".join(["x"] * 3_000 + ["end"])
    for new in (old.replace("end", "END").replace("x", "y", 1), "\n".join(["y", *["x"] * 2_000, "END"])):
        difference, _, _ = diff.unified(old, new)
        assert difference.count("\n") < 20 or "more lines of changes" in difference
    difference, _, _ = diff.unified("a\r\n", "\x1b[2Ka\u202e\u200b\udce9\n" + "x" * 5_000)
    assert "-a\\r" in difference
    assert "+\\x1b[2Ka\\u202e\\u200b\\udce9" in difference
    assert "4,000 more characters" in difference
