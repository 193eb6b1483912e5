"""What a model is to the rest: a request goes in, deltas come out until it has finished.

Adapters translate between these values and one wire format each; nobody else knows any wire format.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Literal, Protocol

import msgspec

from holdfast import content_parts, types

Finish = Literal["stop", "calls", "length", "refused", "cut"]
"""Why a reply ended: all said, tools to be called, no room left, the provider would not, the stream broke off."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a model. Messages are those of a context: every call has its result next to it."""

    messages: Sequence[types.Message]
    system: str = ""
    tools: Sequence[types.ToolSpec] = ()
    max_output: int | None = None
    temperature: float | None = None


class LongContext(msgspec.Struct, frozen=True):
    """How many times as much a request costs whose input has more than `above` tokens."""

    above: int
    input: float
    output: float


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """US dollars for a million tokens. What the cache gives or takes counts as input, unless it has a price."""

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None
    long: LongContext | None = None

    def of(self, usage: types.Usage) -> float:
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        plain = usage.input - usage.cache_read - usage.cache_write
        sent = plain * self.input + usage.cache_read * read + usage.cache_write * write
        said = usage.output * self.output
        if self.long is not None and usage.input > self.long.above:
            sent, said = sent * self.long.input, said * self.long.output
        return (sent + said) / 1_000_000


class Said(msgspec.Struct, frozen=True):
    """A piece of the reply's text."""

    text: str


class Thought(msgspec.Struct, frozen=True):
    """A piece of reasoning; a signature or hidden reasoning comes whole, and ends the piece it belongs to."""

    text: str = ""
    signature: str = ""
    hidden: str = ""


class Called(msgspec.Struct, frozen=True):
    """A piece of the call at this place among the reply's calls; id and name come once, arguments in pieces.

    `extra` is what the provider sent besides and wants back, under the provider's name.
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""
    extra: dict[str, Any] = {}


class Counted(msgspec.Struct, frozen=True):
    """What the call has used so far; the last one counts."""

    usage: types.Usage


class Finished(msgspec.Struct, frozen=True):
    """The reply is complete. Nothing comes after it."""

    reason: Finish


class Waiting(msgspec.Struct, frozen=True):
    """Nothing was said yet, and the same call is made again in so many seconds."""

    seconds: float
    attempt: int
    why: str
    """One sentence or more; empty where it is what was said before."""


class Switched(msgspec.Struct, frozen=True):
    """Another model answers from here on, as the one before could not."""

    model: str
    why: str


Delta = Said | Thought | Called | Counted | Finished | Waiting | Switched


class Reply(msgspec.Struct, frozen=True):
    """What a model answered, gathered from its deltas."""

    parts: tuple[content_parts.Part, ...] = ()
    calls: tuple[types.ToolCall, ...] = ()
    finish: Finish = "stop"
    usage: types.Usage = types.Usage()
    model: str = ""

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, content_parts.Text))


class Model(Protocol):
    """A model that can be asked. One object serves any number of calls at once.

    `stream` raises errors.ModelError and nothing else. It raises ContextOverflow when the request is too
    large for it, whichever way its provider says so; ModelCut when the stream broke off after something was
    said. Closing the iterator, or cancelling the task that reads it, ends the call at the provider.
    """

    @property
    def name(self) -> str:
        """What people call it: provider/model."""

    @property
    def window(self) -> int:
        """How many tokens a request and its reply may have together."""

    def stream(self, request: Request) -> AsyncGenerator[Delta, None]: ...

    async def close(self) -> None: ...
