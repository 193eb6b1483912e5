"""Retry a failed request, and fall back to another model.

Both happen only before the first delta of a reply: a caller that has seen part of a reply must not get a second one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing

import msgspec

from holdfast import errors
from holdfast.model import base


class Backoff(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often a request is sent, and how long to wait in between. Times are in seconds."""

    attempts: int = 4
    """The number of requests, the first included."""
    first_delay: float = 0.5
    """The delay before the first retry. It doubles with each retry, with a jitter of ±20 %."""
    max_delay: float = 20.0
    """The longest delay, unless the provider asks for a longer one."""
    max_retry_after: float = 60.0
    """The longest delay that a provider may ask for; the request fails if it asks for more."""

    def next_delay(self, error: errors.ModelError, attempt: int, random_number: float) -> float | None:
        """Return the delay before the request is sent again; None if it must not be."""
        if not error.retryable or attempt >= self.attempts:
            return None
        if error.retry_after is not None:
            return error.retry_after if error.retry_after <= self.max_retry_after else None
        delay: float = min(self.max_delay, self.first_delay * 2 ** (attempt - 1))
        return delay * (0.8 + 0.4 * random_number)


class RetryingModel:
    """A model that sends a request again after an error that is `retryable`."""

    def __init__(
        self,
        model: base.Model,
        backoff: Backoff | None = None,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        random_number: Callable[[], float] = random.random,
    ) -> None:
        self.inner = model
        self.backoff = backoff or Backoff()
        self._sleep = sleep
        self._random_number = random_number

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def window(self) -> int:
        return self.inner.window

    async def close(self) -> None:
        await self.inner.close()

    async def stream(self, request: base.Request) -> AsyncGenerator[base.Delta, None]:
        attempt, reported = 0, ""
        while True:
            attempt += 1
            has_begun = False
            try:
                async with aclosing(self.inner.stream(request)) as deltas:
                    async for delta in deltas:
                        has_begun = True
                        yield delta
                return
            except errors.ModelError as error:
                delay = self.backoff.next_delay(error, attempt, self._random_number())
                if has_begun or delay is None:
                    raise
                reason = str(error)
                yield base.Waiting(delay, attempt, "" if reason == reported else reason)
                reported = reason
            await self._sleep(delay)


class FallbackModel:
    """Models in order of preference: if one fails before it has said anything, the next one is asked.

    A context overflow is not passed on, because the conversation has to be compacted.
    """

    def __init__(self, models: Sequence[base.Model]) -> None:
        if not models:
            raise errors.InvalidArgument("`models` must not be empty.", parameter="models")
        self.models = tuple(models)

    @property
    def name(self) -> str:
        return self.models[0].name

    @property
    def window(self) -> int:
        """The smallest window, so that a request fits every model."""
        return min(model.window for model in self.models)

    async def close(self) -> None:
        for model in self.models:
            await model.close()

    async def stream(self, request: base.Request) -> AsyncGenerator[base.Delta, None]:
        for model, fallback in zip(self.models, (*self.models[1:], None), strict=True):
            has_begun = False
            try:
                async with aclosing(model.stream(request)) as deltas:
                    async for delta in deltas:
                        has_begun = has_begun or not isinstance(delta, base.Waiting)
                        yield delta
                return
            except errors.ModelError as error:
                if has_begun or fallback is None or not error.elsewhere:
                    raise
                yield base.Switched(fallback.name, str(error))
