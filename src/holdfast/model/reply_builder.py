"""Deltas in, a reply out. Pure: the same deltas always gather to the same reply."""

from __future__ import annotations

from contextlib import aclosing
from typing import assert_never

from holdfast import content_parts, types
from holdfast.model import base


class Gathering:
    """A reply that is being said. At any moment `reply` is what was said so far."""

    def __init__(self, model: str = "", provider: str = "") -> None:
        self.model = model
        self.finish: base.Finish | None = None
        self.usage = types.Usage()
        self._provider = provider or model.partition("/")[0]
        self._parts: list[content_parts.Part] = []
        self._calls: dict[int, types.ToolCall] = {}
        self._said: list[str] = []
        self._thought: list[str] = []

    def add(self, delta: base.Delta) -> None:
        match delta:
            case base.Said(text):
                self._close_thought()
                self._said.append(text)
            case base.Thought():
                self._close_said()
                self._think(delta)
            case base.Called():
                self._call(delta)
            case base.Counted(usage):
                self.usage = usage
            case base.Finished(reason):
                self.finish = reason
            case base.Switched(model):
                self.model, self._provider = model, model.partition("/")[0]
            case base.Waiting():
                pass
            case _:
                assert_never(delta)

    @property
    def begun(self) -> bool:
        """Whether anything was said yet."""
        return bool(self._parts or self._calls or self._said or self._thought)

    def reply(self) -> base.Reply:
        """What was said so far; without a Finished, it was cut, and half a call is no call."""
        self._close_thought()
        self._close_said()
        calls = tuple(self._calls[index] for index in sorted(self._calls))
        whole = self.finish is not None
        return base.Reply(tuple(self._parts), calls if whole else (), self.finish or "cut", self.usage, self.model)

    def _think(self, delta: base.Thought) -> None:
        if delta.text:
            self._thought.append(delta.text)
        if delta.signature or delta.hidden:
            self._close_thought(delta.signature, delta.hidden)

    def _call(self, delta: base.Called) -> None:
        known = self._calls.get(delta.index, types.ToolCall("", "", ""))
        arguments = known.arguments if isinstance(known.arguments, str) else ""
        self._calls[delta.index] = types.ToolCall(
            delta.id or known.id,
            delta.name or known.name,
            arguments + delta.arguments,
            {**known.extra, **delta.extra} if delta.extra else known.extra,
        )

    def _close_said(self) -> None:
        if self._said:
            self._parts.append(content_parts.Text("".join(self._said)))
            self._said.clear()

    def _close_thought(self, signature: str = "", hidden: str = "") -> None:
        if self._thought or signature or hidden:
            thought = content_parts.Reasoning("".join(self._thought), signature, hidden, self._provider)
            self._parts.append(thought)
            self._thought.clear()


async def ask(model: base.Model, request: base.Request) -> base.Reply:
    """Return the whole reply of a model to one request."""
    said = Gathering(model.name)
    async with aclosing(model.stream(request)) as deltas:
        async for delta in deltas:
            said.add(delta)
    return said.reply()
