"""Check the arguments of the store's public methods.

Every check raises InvalidArgument with a sentence that names the parameter: "`limit` must be a whole number from 0 on,
not 'x'." msgspec checks numbers, flags and choices: True is not a number, 1.0 is not a whole number, NaN is in no
range. Text is checked here, because msgspec has no constraint for printable characters.
"""

from __future__ import annotations

import functools
import os
import typing
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from holdfast import errors

MAX_ID = 200
MAX_ROUTE = 500
MAX_PLATFORM = 40
MAX_TEXT = 1_000_000

T = TypeVar("T")


class ArgumentType:
    """An annotated type for msgspec, and its description for error messages.

    The type is wrapped in a struct with one field, because msgspec caches its analysis of structs only.
    """

    def __init__(self, annotated: Any) -> None:
        self.argument: Any = msgspec.defstruct("Argument", [("value", annotated)], array_like=True)
        self.description = _describe(annotated)

    def optional(self) -> ArgumentType:
        return ArgumentType(self.argument.__annotations__["value"] | None)


def _describe(annotated: Any) -> str:
    """Return the description of an annotated type, or the choices of a Literal."""
    for note in getattr(annotated, "__metadata__", ()):
        if isinstance(note, Meta) and note.description:
            return note.description
    if typing.get_origin(annotated) is typing.Literal:
        return f"one of {', '.join(map(repr, typing.get_args(annotated)))}"
    return " or ".join("None" if each is type(None) else _describe(each) for each in typing.get_args(annotated))


@functools.cache
def whole_number(low: int, high: int) -> ArgumentType:
    return ArgumentType(Annotated[int, Meta(ge=low, le=high, description=f"a whole number from {low:,} to {high:,}")])


WholeNumber = ArgumentType(Annotated[int, Meta(ge=0, le=2**63 - 1, description="a whole number from 0 on")])
OptionalNumber = WholeNumber.optional()
Timestamp = ArgumentType(Annotated[float, Meta(ge=0, lt=1e12, description="a time in Unix seconds")])
Duration = ArgumentType(Annotated[float, Meta(ge=0, lt=1e6, description="a number from 0 to 1,000,000")])
OptionalDuration = Duration.optional()
LeaseTtl = ArgumentType(Annotated[float, Meta(gt=0, le=86_400, description="more than 0 and at most 86,400 seconds")])
Flag = ArgumentType(Annotated[bool, Meta(description="True or False")])
OptionalFlag = Flag.optional()


def check(expected: ArgumentType, **values: object) -> None:
    """Raise InvalidArgument unless every value, named like its parameter, has this type."""
    for name, value in values.items():
        convert(expected, value, name)


def convert(expected: ArgumentType, value: object, name: str) -> Any:
    """Return the value as this type; for example an int as a float."""
    try:
        return msgspec.convert((value,), expected.argument).value
    except (msgspec.ValidationError, UnicodeError, OverflowError):
        pass  # Raised outside of the handler, so that the error does not carry the value.
    raise invalid(name, expected.description, value)


def invalid(name: str, expected: str, value: object) -> errors.InvalidArgument:
    return errors.InvalidArgument(f"`{name}` must be {expected}, not {errors.quote(value)}.", parameter=name)


def check_type(expected: type[T], value: object, name: str) -> T:
    if not isinstance(value, expected):
        raise invalid(name, f"a {expected.__name__}", value)
    return value


def check_text(value: object, name: str, max_length: int) -> str:
    """Return printable text. Control characters and unpaired surrogates are not printable."""
    if not isinstance(value, str) or not 0 < len(value) <= max_length or not value.isprintable():
        raise invalid(name, f"printable text of 1 to {max_length:,} characters", value)
    return value


def check_id(value: object, name: str = "session_id") -> str:
    """Return an id that a caller chose. The store never uses it as a path or as SQL."""
    return check_text(value, name, MAX_ID)


def check_optional_id(value: object, name: str = "session_id") -> str | None:
    return None if value is None else check_text(value, name, MAX_ID)


def check_path(value: object, name: str) -> str:
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(path, str) or not path or "\0" in path:
        raise invalid(name, "the path of a file", value)
    return path


def check_route(value: object, name: str = "route") -> str:
    return check_text(value, name, MAX_ROUTE)


def check_platform(value: object, name: str = "platform") -> str:
    return check_text(value, name, MAX_PLATFORM)


def check_content(value: object, name: str, max_length: int, min_length: int = 1) -> str:
    """Return text of any characters; NUL, which PostgreSQL cannot store, is replaced by U+FFFD.

    The error does not quote the text, which may be a message.
    """
    if not isinstance(value, str) or not min_length <= len(value) <= max_length or not is_unicode(value):
        raise errors.InvalidArgument(
            f"`{name}` must be valid Unicode text of {min_length} to {max_length:,} characters.", parameter=name
        )
    return value.replace("\0", "\ufffd")


def is_unicode(text: str) -> bool:
    """Return whether a text has no unpaired surrogates."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def check_owner(value: object, name: str = "owner") -> str:
    """Return the name of an owner; it is empty in a store with a single user."""
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
