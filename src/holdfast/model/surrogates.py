"""Characters that come in two halves. Pure.

JSON may spell an emoji as two escapes, and a server that cuts its text by the escape sends them in two events.
Either event alone is no valid text: strict readers refuse it. Here it is read all the same, the halves are put
together again, and one that stays alone becomes the mark for a character that cannot be read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable
from typing import Any, Generic, NoReturn, TypeVar

import msgspec

LOST = "\ufffd"

_ESCAPED = re.compile(r"\\u[dD][89a-fA-F]")
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_HALF = re.compile("[\ud800-\udfff]")

T = TypeVar("T")
Key = TypeVar("Key", bound=Hashable)


def decoded(data: str, decode: Callable[[str], T], kind: type[T]) -> T:
    """An event of a stream, which may have halves of characters in it. Raises msgspec.DecodeError."""
    try:
        return decode(data)
    except msgspec.DecodeError:
        if not _ESCAPED.search(data):
            raise
    try:
        return msgspec.convert(json.loads(data, parse_constant=_refused), kind)
    except ValueError as error:
        raise msgspec.DecodeError(str(error)) from None


def _refused(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def mended(value: Any) -> Any:
    """A value of JSON without halves: two that stand together are one character, a lone one is lost."""
    match value:
        case str():
            return _text(value)
        case dict():
            return {mended(key): mended(item) for key, item in value.items()}
        case list():
            return [mended(item) for item in value]
    return value


def _text(text: str) -> str:
    if text.isascii() or not _HALF.search(text):
        return text
    return _HALF.sub(LOST, _PAIR.sub(lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), text))


class Joining(Generic[Key]):
    """Texts that come in pieces, each under a key of its own: a first half waits for the piece with the second."""

    def __init__(self) -> None:
        self._held: dict[Key, str] = {}

    @property
    def waiting(self) -> list[Key]:
        return list(self._held)

    def add(self, key: Key, piece: str) -> str:
        """What there is to tell after this piece; it may be nothing yet."""
        text = self._held.pop(key, "") + piece
        if text and "\ud800" <= text[-1] <= "\udbff":
            self._held[key] = text[-1]
            text = text[:-1]
        return _text(text)

    def rest(self, key: Key) -> str:
        """The text has ended: what still waits, waited in vain."""
        return LOST if self._held.pop(key, "") else ""
