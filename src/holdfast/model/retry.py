"""What stands between a call and its answer: asking again, and asking another model.

Only while nothing was said: once a reply has begun, its reader has seen it, and a second one would be a
second reply. How long a provider asks to wait is honoured up to a limit; beyond it, the call fails and says so.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing

import msgspec

from holdfast import errors
from holdfast.model import base


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often and how patiently to ask again."""

    attempts: int = 4
    """Calls in all, the first included."""
    first: float = 0.5
    """Seconds before the second; each further wait is twice as long, give or take a fifth."""
    longest: float = 20.0
    """The longest wait of our own choosing."""
    patience: float = 60.0
    """The longest wait a provider may ask for."""


class Retrying:
    """A model that retries a request whose error is `retryable`: busy, server error, unreachable, malformed reply."""

    def __init__(
        self,
        model: base.Model,
        policy: Policy | None = None,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.inner = model
        self.policy = policy or Policy()
        self._sleep = sleep
        self._chance = chance

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def window(self) -> int:
        return self.inner.window

    async def close(self) -> None:
        await self.inner.close()

    async def stream(self, request: base.Request) -> AsyncGenerator[base.Delta, None]:
        attempt, told = 0, ""
        while True:
            attempt += 1
            said = False
            try:
                async with aclosing(self.inner.stream(request)) as deltas:
                    async for delta in deltas:
                        said = True
                        yield delta
                return
            except errors.ModelError as error:
                wait = self._wait(error, attempt)
                if said or wait is None:
                    raise
                why = str(error)
                yield base.Waiting(wait, attempt, "" if why == told else why)
                told = why
            await self._sleep(wait)

    def _wait(self, error: errors.ModelError, attempt: int) -> float | None:
        """How long to wait before asking again; None: not at all."""
        if not error.retryable or attempt >= self.policy.attempts:
            return None
        if error.retry_after is not None:
            return error.retry_after if error.retry_after <= self.policy.patience else None
        own: float = min(self.policy.longest, self.policy.first * 2 ** (attempt - 1))
        return own * (0.8 + 0.4 * self._chance())


class Chain:
    """Models in order of preference: where one cannot answer, the next is asked.

    A context too large is not passed on: the conversation is what has to change.
    """

    def __init__(self, models: Sequence[base.Model]) -> None:
        if not models:
            raise errors.ModelError("A chain needs at least one model.")
        self.models = tuple(models)

    @property
    def name(self) -> str:
        return self.models[0].name

    @property
    def window(self) -> int:
        """The smallest: whatever fits there fits them all."""
        return min(model.window for model in self.models)

    async def close(self) -> None:
        for model in self.models:
            await model.close()

    async def stream(self, request: base.Request) -> AsyncGenerator[base.Delta, None]:
        for model, after in zip(self.models, (*self.models[1:], None), strict=True):
            said = False
            try:
                async with aclosing(model.stream(request)) as deltas:
                    async for delta in deltas:
                        said = said or not isinstance(delta, base.Waiting)
                        yield delta
                return
            except errors.ModelError as error:
                if said or after is None or not error.elsewhere:
                    raise
                yield base.Switched(after.name, str(error))
