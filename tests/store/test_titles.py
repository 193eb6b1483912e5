"""Titles: for any text, what is kept can be read, compared and typed again."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import errors
from holdfast.agent import titles as agent_titles
from holdfast.store import titles


def cleaned(text: str) -> str | None:
    try:
        return titles.clean(text)
    except errors.InvalidArgument:
        return None


# Many of the characters that titles must not have, among those they may.
texts = st.text(st.characters() | st.sampled_from("ab \t\n\0\u200b\u200d\u202e\u2028\xa0\u3000\ud800\ue000\U000e0001"))


@given(texts)
def test_for_any_text_cleaning_again_changes_nothing(text: str) -> None:
    kept = cleaned(text)
    assert kept is None or titles.clean(kept) == kept


@given(texts)
def test_for_any_text_nothing_unseen_is_kept(text: str) -> None:
    kept = cleaned(text) or "x"
    assert kept.isprintable()
    assert not {unicodedata.category(character) for character in kept} & {"Cc", "Cf", "Cs", "Co", "Cn"}
    assert (kept, kept.split(" ")) == (kept.strip(), kept.split())
    assert 1 <= len(kept) <= titles.MAX_TITLE


@given(texts)
def test_for_any_text_what_can_be_seen_is_kept_in_its_order(text: str) -> None:
    seen = [one for one in text if one.isprintable() and not one.isspace()]
    kept = cleaned(text)
    assert kept is None or [one for one in kept if one != " "] == seen


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("plan", "plan"),
        ("  my\t\n plan  ", "my plan"),
        ("my\u2003plan", "my plan"),
        ("a\0b", "ab"),
        ("zero\u200bwidth", "zerowidth"),
        ("\u202egnp.exe", "gnp.exe"),
        ("\ufefftitle", "title"),
        ("x" * 100, "x" * 100),
        (" " * 9000 + "x", "x"),
    ],
)
def test_title_is_kept_as_people_see_it(text: str, kept: str) -> None:
    assert titles.clean(text) == kept


@pytest.mark.parametrize("text", ["", " \t\n", "\u200b\u200b", "\0", "\ud800", "x" * 101, "x" * 10_001, " " * 10_001])
def test_title_nobody_could_read_is_refused(text: str) -> None:
    with pytest.raises(errors.InvalidArgument):
        titles.clean(text)


# --- titles made from a text -----------------------------------------------------------------------------------


@given(texts | st.text(max_size=200), st.sampled_from(["", " #2", " #17"]))
def test_for_any_text_a_title_made_of_its_first_words_repeats_it(text: str, number: str) -> None:
    kept = cleaned(agent_titles.title_from_text(text))
    assert kept is None or titles.is_derived_from(kept + number, titles.fold(text))


@pytest.mark.parametrize(
    ("title", "text", "expected"),
    [
        ("My password is hunter2", "My password is hunter2 for the bank", True),
        ("Bank: HUNTER2", "the password is hunter2", True),
        ("The bank #2", "my bank", True),
        ("Trip #2", "2 eggs", False),
        ("PIN #4711", "it is 4711", True),
        ("Trip to the sea", "what to do with the keys", False),
        ("Plan B", "my bank password is hunter2", False),
        ("Plan B", "a, b, and then planning", False),
        ("Plan B", "the secret is plan b", True),
        ("Call Alice", "Alice's number is 555 1234", True),
        ("Tea for 2", "2 eggs for tomorrow", False),
        ("What is it", "it is a secret", False),
        ("What is it", "Tell me: *what is it?*", True),
        ("B", "b", True),
        ("B", "a bank", False),
        ("secretive", "it is a secret", False),
        ("Go", "a mango", False),
        ("snake case", "a snake_case name", True),
        ("zerowidth", "a zero\u200bwidth word", True),
        ("x" * 60, "x" * 90, True),
        ("to " * 30 + "hu #2", "to " * 30 + "hunter2", True),
        ("hunter", "hunter2", False),
        ("\u5bc6\u7801", "\u6211\u7684\u5bc6\u7801\u662f", True),
        ("\u5bc6\u7801", "\u7801\u5934", False),
        ("abc\u5bc6", "abc\u5bc6x", True),
        ("\u5bc6\u94a5", "\u6211\u7684\u5bc6\u7801\u662f", False),
        ("\U0001f680", "off \U0001f680 we go", True),
        ("\U0001f680", "off we go", False),
        ("Trip", "", False),
    ],
)
def test_title_repeats_a_text_by_meaningful_words_only(title: str, text: str, expected: bool) -> None:
    assert titles.is_derived_from(title, titles.fold(text)) == expected
