"""A model that returns given replies, for tests of agents."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

import msgspec

from holdfast import content_parts, errors, types
from holdfast.model import base

Line = str | base.Reply | BaseException | Sequence[base.Delta | BaseException]
"""A reply: its text, a Reply, an error to raise, or its deltas, of which one may be an error to raise."""


class ScriptedModel:
    """Answers each request with the next line of a script, and raises RequestRefused after its end.

    A line may also be a function that takes the request and returns a line. `requests` records the requests.
    """

    def __init__(
        self,
        script: Iterable[Line | Callable[[base.Request], Line]] = (),
        *,
        name: str = "scripted/model",
        window: int = 200_000,
    ) -> None:
        self.requests: list[base.Request] = []
        self.closed = False
        self._script = iter(script)
        self._name = name
        self._window = window

    @property
    def name(self) -> str:
        return self._name

    @property
    def window(self) -> int:
        return self._window

    async def close(self) -> None:
        self.closed = True

    async def stream(self, request: base.Request) -> AsyncGenerator[base.Delta, None]:
        self.requests.append(request)
        try:
            line = next(self._script)
        except StopIteration:
            raise errors.RequestRefused(
                f"The script has no reply to call {len(self.requests)}.", model=self._name
            ) from None
        for delta in _deltas(line(request) if callable(line) else line):
            if isinstance(delta, BaseException):
                raise delta
            yield delta


def _deltas(line: Line) -> Sequence[base.Delta | BaseException]:
    if isinstance(line, str):
        line = base.Reply((content_parts.Text(line),), usage=types.Usage(input=1, output=1))
    if isinstance(line, BaseException):
        return [line]
    return _split_reply(line) if isinstance(line, base.Reply) else line


def _split_reply(reply: base.Reply) -> list[base.Delta]:
    deltas: list[base.Delta] = []
    for part in reply.parts:
        if isinstance(part, content_parts.Text):
            deltas.append(base.ContentDelta(part.text))
        elif isinstance(part, content_parts.Reasoning):
            deltas.append(base.ThinkingDelta(part.text, part.signature, part.hidden))
    for index, call in enumerate(reply.calls):
        arguments = call.arguments
        if not isinstance(arguments, str):
            arguments = msgspec.json.encode(arguments).decode()
        deltas.append(base.ToolCallDelta(index, call.id, call.name, arguments))
    finish: base.Finish = "calls" if reply.calls and reply.finish == "stop" else reply.finish
    return [*deltas, base.UsageDelta(reply.usage), base.FinishDelta(finish)]
