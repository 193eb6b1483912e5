"""The `Model` protocol: a request goes in, a stream of deltas comes out.

Adapters translate between these values and the API of a provider; no other code knows an API.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Any, Literal, Protocol

import msgspec

from holdfast import content_parts, types

Finish = Literal["stop", "calls", "length", "refused", "cut"]
"""Why a reply ended: complete, tools to call, output limit, refused by the provider, connection lost."""

Dollars = Annotated[float, msgspec.Meta(ge=0, lt=1e6)]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request to a model. In `messages`, the result of a tool call follows the call. Names of tools are unique."""

    messages: Sequence[types.Message]
    system: str = ""
    tools: Sequence[types.ToolSpec] = ()
    max_output: int | None = None
    temperature: float | None = None


class LongContext(msgspec.Struct, frozen=True):
    """The factors by which prices rise for requests with more than `above` input tokens."""

    above: int
    input: float
    output: float


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A price in US dollars per million tokens. Cached tokens cost as much as input unless they have a price."""

    input: Dollars
    output: Dollars
    cache_read: Dollars | None = None
    cache_write: Dollars | None = None
    long: LongContext | None = None

    def of(self, usage: types.Usage) -> float:
        """Return the cost of a request in US dollars."""
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        uncached = usage.input - usage.cache_read - usage.cache_write
        input_cost = uncached * self.input + usage.cache_read * read + usage.cache_write * write
        output_cost = usage.output * self.output
        if self.long is not None and usage.input > self.long.above:
            input_cost, output_cost = input_cost * self.long.input, output_cost * self.long.output
        return (input_cost + output_cost) / 1_000_000


class ContentDelta(msgspec.Struct, frozen=True):
    """A piece of the reply's text."""

    text: str


class ThinkingDelta(msgspec.Struct, frozen=True):
    """A piece of reasoning. A signature or encrypted reasoning is never split, and ends its block."""

    text: str = ""
    signature: str = ""
    hidden: str = ""


class ToolCallDelta(msgspec.Struct, frozen=True):
    """A piece of the tool call at `index`. Id and name come once, arguments in pieces.

    `extra` holds, under the provider's name, further fields of the call that the provider expects back.
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""
    extra: dict[str, Any] = {}


class UsageDelta(msgspec.Struct, frozen=True):
    """The total usage of the request so far."""

    usage: types.Usage


class FinishDelta(msgspec.Struct, frozen=True):
    """The end of a complete reply. No delta follows."""

    reason: Finish


class RetryDelta(msgspec.Struct, frozen=True):
    """The request failed before the reply began, and is sent again after `seconds`."""

    seconds: float
    attempt: int
    why: str
    """The reason; empty if it is the same as before."""


class FallbackDelta(msgspec.Struct, frozen=True):
    """The model failed before the reply began, and another model is asked."""

    model: str
    why: str


Delta = ContentDelta | ThinkingDelta | ToolCallDelta | UsageDelta | FinishDelta | RetryDelta | FallbackDelta


class Reply(msgspec.Struct, frozen=True):
    """A reply, assembled from its deltas."""

    parts: tuple[content_parts.Part, ...] = ()
    calls: tuple[types.ToolCall, ...] = ()
    finish: Finish = "stop"
    usage: types.Usage = types.Usage()
    model: str = ""

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, content_parts.Text))


class Model(Protocol):
    """A language model. One object serves any number of concurrent requests.

    `stream` raises errors.ModelError and nothing else: ContextOverflow if the request is too large, ModelCut if the
    connection was lost after the first delta. Closing the iterator, or cancelling the task that reads it, cancels the
    request at the provider.
    """

    @property
    def name(self) -> str:
        """The display name: provider/model."""

    @property
    def window(self) -> int:
        """The context window in tokens: the maximum of a request and its reply together."""

    def stream(self, request: Request) -> AsyncGenerator[Delta, None]: ...

    async def close(self) -> None: ...
