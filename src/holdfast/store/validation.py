"""Check the arguments of the store's public methods.

Every check raises InvalidArgument with a sentence that names the parameter: "`limit` must be a whole number from 0 on,
not 'x'." msgspec compares numbers, flags and choices with an annotated type: True is not a number, 1.0 is not a whole
number, NaN is in no range. Text is compared here, because msgspec has no constraint for printable characters.
"""

from __future__ import annotations

import functools
import typing
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from holdfast import errors

MAX_ID = 200
MAX_ROUTE = 500

WholeNumber = Annotated[int, Meta(ge=0, le=2**63 - 1, description="a whole number from 0 on")]
OptionalNumber = WholeNumber | None
Timestamp = Annotated[float, Meta(ge=0, lt=1e12, description="a time in Unix seconds")]
Duration = Annotated[float, Meta(ge=0, lt=1e6, description="a number from 0 to 1,000,000")]
OptionalDuration = Duration | None
LeaseTtl = Annotated[float, Meta(gt=0, le=86_400, description="more than 0 and at most 86,400 seconds")]
Flag = Annotated[bool, Meta(description="True or False")]
OptionalFlag = Flag | None

T = TypeVar("T")


@functools.cache
def whole_number(low: int, high: int) -> Any:
    """Return the type of a whole number in this range."""
    return Annotated[int, Meta(ge=low, le=high, description=f"a whole number from {low:,} to {high:,}")]


def check(kind: Any, **values: object) -> None:
    """Raise InvalidArgument unless every value, named like its parameter, is of this annotated type."""
    for name, value in values.items():
        convert(kind, value, name)


def convert(kind: Any, value: object, name: str) -> Any:
    """Return the value as this annotated type: a whole number, for example, as the float that is asked for."""
    try:
        return msgspec.convert((value,), _arguments_of(kind)).value
    except (msgspec.ValidationError, UnicodeError, OverflowError):
        pass  # Raised outside of the handler, so that the error does not carry the value.
    raise invalid(name, describe(kind), value)


@functools.cache
def _arguments_of(kind: Any) -> Any:
    # msgspec caches what it knows about a struct, but analyses any other type at each call.
    return msgspec.defstruct("Arguments", [("value", kind)], array_like=True)


def describe(kind: Any) -> str:
    """Return the words for an annotated type: its description, or the choices of a Literal."""
    for note in getattr(kind, "__metadata__", ()):
        if isinstance(note, Meta) and note.description:
            return note.description
    if typing.get_origin(kind) is typing.Literal:
        return f"one of {', '.join(map(repr, typing.get_args(kind)))}"
    return " or ".join("None" if each is type(None) else describe(each) for each in typing.get_args(kind))


def invalid(name: str, expected: str, value: object) -> errors.InvalidArgument:
    return errors.InvalidArgument(f"`{name}` must be {expected}, not {errors.shown(value)}.", parameter=name)


def check_type(kind: type[T], value: object, name: str) -> T:
    if not isinstance(value, kind):
        raise invalid(name, f"a {kind.__name__}", value)
    return value


def check_text(value: object, name: str, max_length: int) -> str:
    """Return printable text. Control characters and unpaired surrogates are not printable."""
    if not isinstance(value, str) or not 0 < len(value) <= max_length or not value.isprintable():
        raise invalid(name, f"printable text of 1 to {max_length:,} characters", value)
    return value


def check_id(value: object, name: str = "session_id") -> str:
    """Return an id of a caller. It is data, never a path or SQL."""
    return check_text(value, name, MAX_ID)


def check_optional_id(value: object, name: str = "session_id") -> str | None:
    return None if value is None else check_text(value, name, MAX_ID)


def check_route(value: object, name: str = "route") -> str:
    return check_text(value, name, MAX_ROUTE)


def check_owner(value: object, name: str = "owner") -> str:
    """Return the name of an owner; the empty one is that of a store with a single user."""
    return "" if value == "" else check_text(value, name, MAX_ID)


def check_filters(**values: object) -> None:
    """Check text that is only compared with stored text."""
    for name, value in values.items():
        if value is not None and not (isinstance(value, str) and value.isprintable()):
            raise invalid(name, "printable text or None", value)


def check_time(value: object, name: str = "at") -> float:
    # Every append passes here, with a float nearly always.
    if type(value) is float and 0 <= value < 1e12:
        return value
    return float(convert(Timestamp, value, name))
