"""Checks of arguments: the accepted values, and the sentence that names the parameter."""

from __future__ import annotations

import pytest

from holdfast import errors
from holdfast.store import validation


@pytest.mark.parametrize("value", [True, -1, 2**63, 10**400, 1.0, "1", None, "\ud800", "secret " * 1000])
def test_whole_number_is_checked(value: object) -> None:
    validation.check(validation.WholeNumber, limit=2**63 - 1)
    with pytest.raises(errors.InvalidArgument) as caught:
        validation.check(validation.WholeNumber, limit=value)
    assert caught.value.parameter == "limit"
    assert str(caught.value).startswith("`limit` must be a whole number from 0 on, not ")
    assert len(str(caught.value)) < 150
    assert caught.value.__context__ is None, "a traceback does not show the value"
