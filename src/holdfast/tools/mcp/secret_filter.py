"""Removes the secrets that a server was given from the text that it sends.

A configured value is a secret by its name or its form, and is removed from everything that the server sends. Other
values, such as a folder or a region, are removed only from errors and logs: results need them.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast import redaction
from holdfast.tools.permissions import secret_names

SHORTEST = 8
"""Shorter values occur in ordinary text."""


class SecretFilter:
    """Holds the values that a server was given, with their names."""

    def __init__(self, given: Iterable[tuple[str, str]]) -> None:
        given = tuple(given)
        self._all = _words(value for _, value in given)
        self._secret = _words(value for name, value in given if is_secret(name, value))

    def redact(self, text: str) -> str:
        """Remove secrets, for the model, for people and for the store."""
        return _without(text, self._secret)

    def redact_all(self, text: str) -> str:
        """Remove all configured values, for errors and logs."""
        return _without(text, self._all)


def is_secret(name: str, value: str) -> bool:
    """Return whether a value is a secret, by its name or its form."""
    said = f"{name}: {value}"
    return secret_names.is_secret_variable(name, value) or redaction.redact(said) != said


def _words(values: Iterable[str]) -> tuple[str, ...]:
    """Return the values and the words in them, the longest first."""
    words = {word for value in values for word in (value, *value.split()) if len(word) >= SHORTEST}
    return tuple(sorted(words, key=lambda word: (-len(word), word)))


def _without(text: str, values: Iterable[str]) -> str:
    for value in values:
        text = text.replace(value, redaction.MARK)
    return text
