"""Titles: readable, comparable, and recognised when they repeat a redacted text."""

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
def test_any_text_is_cleaned_to_its_visible_characters(text: str) -> None:
    kept = cleaned(text)
    if kept is None:
        return
    assert titles.clean(kept) == kept
    assert not {unicodedata.category(character) for character in kept} & {"Cc", "Cf", "Cs", "Co", "Cn"}
    assert (kept.isprintable(), kept.split(" ")) == (True, kept.split())
    assert 1 <= len(kept) <= titles.MAX_TITLE
    assert [one for one in kept if one != " "] == [one for one in text if one.isprintable() and not one.isspace()]


@given(texts | st.text(max_size=200), st.sampled_from(["", " #2", " #17"]))
def test_title_made_of_the_first_words_of_any_text_repeats_it(text: str, number: str) -> None:
    kept = cleaned(agent_titles.title_from_text(text))
    assert kept is None or titles.is_derived_from(kept + number, titles.fold(text))


REPEATED = [
    ("My password is hunter2", "My password is hunter2 for the bank"), ("Bank: HUNTER2", "the password is hunter2"),
    ("The bank #2", "my bank"), ("PIN #4711", "it is 4711"), ("Plan B", "the secret is plan b"), ("B", "b"),
    ("Call Alice", "Alice's number is 555 1234"), ("What is it", "Tell me: *what is it?*"),
    ("snake case", "a snake_case name"), ("zerowidth", "a zero\u200bwidth word"), ("x" * 60, "x" * 90),
    ("to " * 30 + "hu #2", "to " * 30 + "hunter2"), ("密码", "我的密码是"), ("abc密", "abc密x"), ("🚀", "off 🚀 we go"),
]  # fmt: skip
NOT_REPEATED = [
    ("Trip #2", "2 eggs"), ("Trip to the sea", "what to do with the keys"), ("Plan B", "my bank password is hunter2"),
    ("Plan B", "a, b, and then planning"), ("Tea for 2", "2 eggs for tomorrow"), ("What is it", "it is a secret"),
    ("B", "a bank"), ("secretive", "it is a secret"), ("Go", "a mango"), ("hunter", "hunter2"), ("密码", "码头"),
    ("密钥", "我的密码是"), ("🚀", "off we go"), ("Trip", ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("title", "text", "expected"), [*((*each, True) for each in REPEATED), *((*each, False) for each in NOT_REPEATED)]
)
def test_title_repeats_a_text_by_meaningful_words_only(title: str, text: str, expected: bool) -> None:
    assert titles.is_derived_from(title, titles.fold(text)) == expected
