"""What a server was told in confidence, and its words without that. Pure.

Of all that settings put into a server some is secret: what is named so, or looks so. That is struck out of everything
the server says. The rest, a folder or a region, is struck out only where nobody needs it, in errors and logs: results
would make no sense without the folder they are about.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast import redaction
from holdfast.tools.permissions import secret_names

SHORTEST = 8
"""What is shorter stands in every third sentence."""


class Confidence:
    """The values a server was given, each with the name it has in the settings or in the environment."""

    def __init__(self, given: Iterable[tuple[str, str]]) -> None:
        given = tuple(given)
        self._all = _words(value for _, value in given)
        self._secret = _words(value for name, value in given if is_secret(name, value))

    def kept(self, text: str) -> str:
        """Text for the model, for people and for the store: without what is secret."""
        return _without(text, self._secret)

    def untold(self, text: str) -> str:
        """Text for errors and logs: without anything that was put in."""
        return _without(text, self._all)


def is_secret(name: str, value: str) -> bool:
    """Whether a value is secret, by its name or by its looks."""
    said = f"{name}: {value}"
    return secret_names.is_secret_variable(name, value) or redaction.redact(said) != said


def _words(values: Iterable[str]) -> tuple[str, ...]:
    """The values and the words in them, the longest first, so that none is struck out of the middle of another."""
    words = {word for value in values for word in (value, *value.split()) if len(word) >= SHORTEST}
    return tuple(sorted(words, key=lambda word: (-len(word), word)))


def _without(text: str, values: Iterable[str]) -> str:
    for value in values:
        text = text.replace(value, redaction.MARK)
    return text
