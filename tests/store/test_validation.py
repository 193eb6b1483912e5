"""Checks of arguments: the accepted values, and the sentence that names the parameter."""

from __future__ import annotations

import math
from typing import Any

import pytest

from holdfast import errors, types
from holdfast.store import validation


@pytest.mark.parametrize("value", [True, -1, 2**63, 10**400, 1.0, "1", None, "\ud800"])
def test_whole_number_is_checked(value: object) -> None:
    validation.check(validation.WholeNumber, limit=2**63 - 1)
    with pytest.raises(errors.InvalidArgument) as caught:
        validation.check(validation.WholeNumber, limit=value)
    assert caught.value.parameter == "limit"
    assert str(caught.value).startswith("`limit` must be a whole number from 0 on, not ")


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (validation.OptionalNumber, "x", "`name` must be a whole number from 0 on or None, not 'x'."),
        (validation.OptionalFlag, 1, "`name` must be True or False or None, not 1."),
        (validation.ArgumentType(types.Purpose), "play", "`name` must be one of 'compact', 'turn', not 'play'."),
        (validation.whole_number(1, 1000), 0, "`name` must be a whole number from 1 to 1,000, not 0."),
    ],
)
def test_message_names_parameter_range_and_value(kind: Any, value: object, message: str) -> None:
    with pytest.raises(errors.InvalidArgument) as caught:
        validation.check(kind, name=value)
    assert str(caught.value) == message


@pytest.mark.parametrize("value", ["", "x" * 201, "a\nb", "\ud800", 5, None])
def test_id_is_printable_text(value: object) -> None:
    assert validation.check_id("🚀 a") == "🚀 a"
    with pytest.raises(errors.InvalidArgument, match="`uid` must be printable text of 1 to 200 characters"):
        validation.check_id(value, "uid")


def test_error_does_not_carry_a_long_value() -> None:
    with pytest.raises(errors.InvalidArgument) as caught:
        validation.check(validation.WholeNumber, limit="secret " * 1000)
    assert len(str(caught.value)) < 150
    assert caught.value.__context__ is None


def test_time_is_returned_as_float() -> None:
    assert repr(validation.check_time(5)) == "5.0"
    with pytest.raises(errors.InvalidArgument):
        validation.check_time(math.nan)
