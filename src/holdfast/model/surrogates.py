"""Handle unpaired surrogates in streamed JSON. Pure.

JSON can write an emoji as two \\u escapes, and a server that splits its text between them sends a surrogate pair in two
events. Strict decoders refuse either event. Here both are decoded, the pair is joined, and an unpaired surrogate
becomes U+FFFD.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from typing import Any, Generic, NoReturn, TypeVar

import msgspec

REPLACEMENT = "\ufffd"

_ESCAPED = re.compile(r"\\u[dD][89a-fA-F]")
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_SURROGATE = re.compile("[\ud800-\udfff]")

T = TypeVar("T")
Key = TypeVar("Key", bound=Hashable)


def decode(data: str, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode an event that may contain unpaired surrogates. Raises msgspec.DecodeError."""
    try:
        return decoder.decode(data)
    except msgspec.DecodeError:
        if not _ESCAPED.search(data):
            raise
    try:
        return msgspec.convert(json.loads(data, parse_constant=_refuse_constant), decoder.type)
    except ValueError as error:
        raise msgspec.DecodeError(str(error)) from None


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not valid JSON")


def repair(value: Any) -> Any:
    """Join surrogate pairs in a JSON value, and replace unpaired surrogates."""
    match value:
        case str():
            return _repair_text(value)
        case dict():
            return {repair(key): repair(item) for key, item in value.items()}
        case list():
            return [repair(item) for item in value]
    return value


def _repair_text(text: str) -> str:
    if text.isascii() or not _SURROGATE.search(text):
        return text
    joined = _PAIR.sub(lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), text)
    return _SURROGATE.sub(REPLACEMENT, joined)


class SurrogateJoiner(Generic[Key]):
    """Join texts that arrive in pieces, each under its own key. A high surrogate waits for the next piece."""

    def __init__(self) -> None:
        self._held: dict[Key, str] = {}

    @property
    def waiting(self) -> list[Key]:
        return list(self._held)

    def add(self, key: Key, piece: str) -> str:
        """Add a piece and return the text that is complete."""
        text = self._held.pop(key, "") + piece
        if text and "\ud800" <= text[-1] <= "\udbff":
            self._held[key] = text[-1]
            text = text[:-1]
        return _repair_text(text)

    def rest(self, key: Key) -> str:
        """End a text: a surrogate that still waits is replaced."""
        return REPLACEMENT if self._held.pop(key, "") else ""
