"""Assemble a reply from its deltas. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import aclosing
from typing import assert_never

import msgspec

from holdfast import content_parts, types
from holdfast.model import base


class ReplyBuilder:
    """A reply in progress. `reply` can be called at any time."""

    def __init__(self, model: str = "", provider: str = "") -> None:
        self.model = model
        self.finish: base.Finish | None = None
        self.usage = types.Usage()
        self._provider = provider or model.partition("/")[0]
        self._parts: list[content_parts.Part] = []
        self._calls: dict[int, types.ToolCall] = {}
        self._text: list[str] = []
        self._reasoning: list[str] = []

    def add(self, delta: base.Delta) -> None:
        match delta:
            case base.ContentDelta(text):
                self._close_reasoning()
                self._text.append(text)
            case base.ThinkingDelta():
                self._close_text()
                if delta.text:
                    self._reasoning.append(delta.text)
                if delta.signature or delta.hidden:
                    self._close_reasoning(delta.signature, delta.hidden)
            case base.ToolCallDelta():
                self._add_call(delta)
            case base.UsageDelta(usage):
                self.usage = usage
            case base.FinishDelta(reason):
                self.finish = reason
            case base.FallbackDelta(model):
                self.model, self._provider = model, model.partition("/")[0]
            case base.RetryDelta():
                pass
            case _:
                assert_never(delta)

    @property
    def begun(self) -> bool:
        """Whether the reply has any content yet."""
        return bool(self._parts or self._calls or self._text or self._reasoning)

    def reply(self) -> base.Reply:
        """Return the reply so far. Without a FinishDelta it is `cut`, and its tool calls are dropped as incomplete."""
        self._close_reasoning()
        self._close_text()
        calls = tuple(self._calls[index] for index in sorted(self._calls)) if self.finish is not None else ()
        return base.Reply(tuple(self._parts), calls, self.finish or "cut", self.usage, self.model)

    def _add_call(self, delta: base.ToolCallDelta) -> None:
        known = self._calls.get(delta.index, types.ToolCall("", "", ""))
        arguments = known.arguments if isinstance(known.arguments, str) else ""
        self._calls[delta.index] = types.ToolCall(
            delta.id or known.id,
            delta.name or known.name,
            arguments + delta.arguments,
            {**known.extra, **delta.extra} if delta.extra else known.extra,
        )

    def _close_text(self) -> None:
        if self._text:
            self._parts.append(content_parts.Text("".join(self._text)))
            self._text.clear()

    def _close_reasoning(self, signature: str = "", hidden: str = "") -> None:
        if self._reasoning or signature or hidden:
            text = "".join(self._reasoning)
            self._parts.append(content_parts.Reasoning(text, signature, hidden, self._provider))
            self._reasoning.clear()


async def ask(model: base.Model, request: base.Request) -> base.Reply:
    """Return the complete reply of a model to one request."""
    builder = ReplyBuilder(model.name)
    async with aclosing(model.stream(request)) as deltas:
        async for delta in deltas:
            builder.add(delta)
    return builder.reply()


def with_unique_ids(calls: Sequence[types.ToolCall]) -> tuple[types.ToolCall, ...]:
    """Return the calls with unique ids: some servers send none, or the same for all."""
    unique: dict[str, types.ToolCall] = {}
    for call in calls:
        call_id = call.id if call.id and call.id not in unique else f"call_{uuid.uuid4().hex}"
        unique[call_id] = msgspec.structs.replace(call, id=call_id)
    return tuple(unique.values())
