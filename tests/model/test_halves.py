"""Halves of characters: however a text was cut, it comes out whole, and never with half a character in it."""

from __future__ import annotations

import itertools
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model import surrogates

# Text as UTF-16 has it: every character beyond the first 65,536 is two.
UNITS = st.lists(st.sampled_from(["a", "\u00e9", "\ud83d", "\ude00", "\ud83c", "\udf89"]), max_size=12)


def joined(pieces: list[str]) -> str:
    joining = surrogates.SurrogateJoiner[str]()
    return "".join([*(joining.add("one", piece) for piece in pieces), joining.rest("one")])


@given(UNITS, st.sets(st.integers(0, 12)))
def test_for_any_text_it_does_not_matter_where_it_was_cut(units: list[str], cuts: set[int]) -> None:
    places = [0, *sorted(cuts), len(units)]
    pieces = ["".join(units[a:b]) for a, b in itertools.pairwise(places)]
    assert joined(pieces) == surrogates.repair("".join(units))


@given(st.text())
def test_for_any_text_its_halves_make_it_whole_again(text: str) -> None:
    raw = text.encode("utf-16-le")
    units = [raw[at : at + 2].decode("utf-16-le", "surrogatepass") for at in range(0, len(raw), 2)]
    assert joined(units) == surrogates.repair("".join(units)) == text


@given(UNITS)
def test_for_any_text_what_is_mended_can_be_written(units: list[str]) -> None:
    value = {"".join(units): ["".join(units), 1, None]}
    assert json.loads(msgspec.json.encode(surrogates.repair(value))) == surrogates.repair(value)


def test_texts_of_different_keys_do_not_meet() -> None:
    joining = surrogates.SurrogateJoiner[str]()
    assert [joining.add("one", "\ud83d"), joining.add("two", "\ude00"), joining.add("one", "\ude00")] == [
        "",
        "\ufffd",
        "\U0001f600",
    ]
    assert joining.waiting == []


@pytest.mark.parametrize("data", ["{", r'"\ud83d', r'["\ud83d", NaN]', r'{"x": "\ud83d"}'])
def test_what_is_wrong_besides_is_refused(data: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        surrogates.decode(data, msgspec.json.Decoder(list[str]))
