"""Surrogates: text that was cut anywhere is joined again, and never has an unpaired surrogate."""

from __future__ import annotations

import itertools
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model import surrogates

# Text in UTF-16 code units: every character beyond the first 65,536 is two.
UNITS = st.lists(st.sampled_from(["a", "\u00e9", "\ud83d", "\ude00", "\ud83c", "\udf89"]), max_size=12)


@given(UNITS, st.sets(st.integers(0, 12)))
def test_text_cut_anywhere_is_joined_again(units: list[str], cuts: set[int]) -> None:
    places = [0, *sorted(cuts), len(units)]
    joiner = surrogates.SurrogateJoiner[str]()
    pieces = [joiner.add("one", "".join(units[a:b])) for a, b in itertools.pairwise(places)]
    repaired = surrogates.repair("".join(units))
    assert "".join([*pieces, joiner.rest("one")]) == repaired
    assert repaired == "".join(units).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


@given(UNITS)
def test_repaired_value_can_be_encoded(units: list[str]) -> None:
    value = {"".join(units): ["".join(units), 1, None]}
    assert json.loads(msgspec.json.encode(surrogates.repair(value))) == surrogates.repair(value)


@pytest.mark.parametrize("data", ["{", r'"\ud83d', r'["\ud83d", NaN]', r'{"x": "\ud83d"}'])
def test_other_defects_are_refused(data: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        surrogates.decode(data, msgspec.json.Decoder(list[str]))
