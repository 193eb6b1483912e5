"""The common part of the stream parsers: events of one stream in, deltas out. Pure."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast import errors, types
from holdfast.model import base, provider_errors, surrogates

T = TypeVar("T")


class StreamParser(abc.ABC):
    """Turns the events of one stream into deltas. Raises errors.ModelError only.

    `names` maps the names sent to the provider to the names of the tools; errors never quote `secrets`.
    """

    def __init__(
        self,
        advice: provider_errors.Advice,
        *,
        names: Mapping[str, str] | None = None,
        price: base.Price | None = None,
        secrets: Sequence[str] = (),
    ) -> None:
        self.done = False
        """Whether no further event is expected."""
        self._advice = advice
        self._names = names or {}
        self._price = price
        self._secrets = secrets
        self._finish: str | None = None
        self._has_begun = False
        # The keys are the kind of text and the index of its block or call.
        self._texts = surrogates.SurrogateJoiner[tuple[str, int]]()

    @property
    def complete(self) -> bool:
        """Whether the server has sent the reason why the reply ended."""
        return self._finish is not None

    @abc.abstractmethod
    def feed(self, name: str, data: str) -> list[base.Delta]:
        """Return the deltas of an event."""

    @abc.abstractmethod
    def end(self) -> list[base.Delta]:
        """Return the last deltas after the end of the stream. Raises ModelCut if the reply is incomplete."""

    def _decode(self, data: str, decoder: msgspec.json.Decoder[T]) -> T:
        try:
            return surrogates.decode(data, decoder)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise self._malformed("sent an event that cannot be decoded") from None

    def _tool_name(self, sent: str | None) -> str:
        name: str = surrogates.repair(sent or "")
        return self._names.get(name, name)

    def _add_cost(self, usage: types.Usage) -> types.Usage:
        return msgspec.structs.replace(usage, cost=self._price.of(usage)) if self._price else usage

    def _error(self, data: str) -> errors.ModelError:
        return provider_errors.from_event(data, self._advice, has_begun=self._has_begun, secrets=self._secrets)

    def _malformed(self, what: str) -> errors.ModelError:
        """Return the error for a stream that does not follow the API."""
        kind = errors.ModelCut if self._has_begun else errors.ModelServerError
        return kind(f"{self._advice.model} {what}.", model=self._advice.model)


def get_dict(given: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the object at a key; empty if there is none."""
    found = given.get(key)
    return found if isinstance(found, dict) else {}


def get_count(given: Mapping[str, Any], key: str) -> int:
    """Return the positive number at a key, else 0."""
    found = given.get(key)
    return int(found) if isinstance(found, int | float) and found > 0 else 0
