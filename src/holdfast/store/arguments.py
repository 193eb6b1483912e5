"""What callers give: numbers, text and flags, checked before anything is done with them."""

from __future__ import annotations

from holdfast import errors


def whole(*numbers: object) -> None:
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 2**63:
            raise errors.InvalidArgument("Numbers of messages, epochs and versions are whole, from 0 on.")


def whole_or_none(number: object) -> None:
    if number is not None:
        whole(number)


def text_or_none(*values: object) -> None:
    if not all(value is None or (isinstance(value, str) and value.isprintable()) for value in values):
        raise errors.InvalidArgument("This takes printable text or None.")


def flags(*values: object) -> None:
    if not all(value is None or isinstance(value, bool) for value in values):
        raise errors.InvalidArgument("This takes True, False or None.")
