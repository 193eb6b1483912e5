"""Adapters of the APIs of Anthropic and OpenAI, messages as they get them, random contexts, and streamed replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from hypothesis import strategies

from holdfast import content_parts, errors, types
from holdfast.model import base, reply_builder
from holdfast.model.anthropic import adapter as anthropic
from holdfast.model.anthropic import request as anthropic_request
from holdfast.model.openai import adapter as openai
from tests.support.replay_server import Answer, Server, events

TOOL = types.ToolSpec("read_file", "Reads a file.", {"type": "object", "properties": {"path": {"type": "string"}}})


def message(role: types.Role, content: types.Content = "", seq: int = 1, **more: Any) -> types.Message:
    body = msgspec.json.encode({"content": content, **more}).decode()
    return types.Message(seq, f"uid{seq}", "s", role, 1_700_000_000.0 + 60 * seq, body)


def call(id: str, name: str = "read_file", arguments: Any = "{}", **more: Any) -> dict[str, Any]:
    """Return a call as it is stored in a message."""
    return {"id": id, "name": name, "arguments": arguments, **more}


def call_message(*calls: dict[str, Any], content: types.Content = "") -> types.Message:
    return message("assistant", content, tool_calls=list(calls))


def result_message(id: str, content: types.Content) -> types.Message:
    return message("tool", content, tool_call_id=id)


def reasoning(provider: str, **fields: str) -> dict[str, Any]:
    """Return a reasoning part as it is stored in a message."""
    part = content_parts.Reasoning(**{"text": "Hm.", "provider": provider, **fields})
    return msgspec.to_builtins(part)  # type: ignore[no-any-return]


REQUEST = base.Request(messages=[message("user", "hi")])


async def collect(
    model: base.Model, request: base.Request = REQUEST
) -> tuple[base.Reply, list[base.Delta], errors.ModelError | None]:
    """Return the reply of a model, its deltas, and the error it ended with."""
    builder, deltas = reply_builder.ReplyBuilder(model.name), list[base.Delta]()
    try:
        async for delta in model.stream(request):
            deltas.append(delta)
            builder.add(delta)
    except errors.ModelError as error:
        return builder.reply(), deltas, error
    return builder.reply(), deltas, None


def expand(value: Any) -> Any:
    """Return a expand value with all of its lazily checked parts."""
    if isinstance(value, Mapping):
        return {key: expand(part) for key, part in value.items()}
    if isinstance(value, str | bytes | int | float | None):
        return value
    return [expand(part) for part in value]


IMAGE = {"type": "image", "media_type": "image/jpeg", "data": "aGk="}


def anthropic_body(messages: Sequence[types.Message], *, raw: bool = False, extra: Any = None, **more: Any) -> Any:
    """Return the request to Anthropic as the provider decodes it, or with `raw` before it is encoded."""
    request = base.Request(messages=messages, **more)
    body = anthropic_request.build(request, model="claude", max_output=100, extra=extra)
    return body if raw else msgspec.json.decode(msgspec.json.encode(body))


def any_message(provider: str) -> strategies.SearchStrategy[types.Message]:
    """Return a strategy for messages of every role, with valid and odd contents, calls and ids."""
    ids = strategies.sampled_from(["a", "b", "c d", "", "x" * 60])
    texts = strategies.sampled_from(["", " ", "hello", "ü 🌊"])
    part = strategies.sampled_from(
        [
            {"type": "text", "text": "t"},
            {"type": "text", "text": ""},
            {"type": "?"},
            {"type": "image", "blob": "b"},
            IMAGE,
            reasoning(provider, signature="S"),
        ]
    )
    contents = strategies.one_of(texts, strategies.lists(part, max_size=3))
    names, arguments = strategies.sampled_from(["f", "f.g", ""]), strategies.sampled_from(["{}", "{", {}])
    calls = strategies.lists(strategies.builds(call, ids, names, arguments), max_size=3)
    return strategies.one_of(
        strategies.builds(message, strategies.sampled_from(["user", "assistant", "system"]), contents),
        strategies.builds(lambda calls, content: call_message(*calls, content=content), calls, contents),
        strategies.builds(result_message, ids, contents),
    )


KEY = "a-secret-of-mine"


def chunk(finish: str | None = None, /, **delta: Any) -> dict[str, Any]:
    return {"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


@dataclass(frozen=True)
class Api:
    """An adapter, and the events of a stream that says Hello."""

    adapter: type[anthropic.AnthropicModel] | type[openai.OpenAIModel]
    begin: list[Any]
    text: list[Any]
    finish: list[Any]
    end: list[Any]

    @property
    def hello(self) -> list[Any]:
        return [*self.begin, *self.text]

    @property
    def whole(self) -> Answer:
        return Answer([events(*self.hello, *self.finish, *self.end)])

    def create(self, server: Server, path: str = "", **given: Any) -> anthropic.AnthropicModel | openai.OpenAIModel:
        return self.adapter("m", base_url=server.url + path, **{"key": KEY, "window": 1000, **given})


ANTHROPIC = Api(
    anthropic.AnthropicModel,
    [{"type": "message_start", "message": {"id": "msg_1", "usage": {"input_tokens": 5, "output_tokens": 1}}}],
    [{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}}],
    [{"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}}],
    [{"type": "message_stop"}],
)
OPENAI = Api(
    openai.OpenAIModel,
    [],
    [chunk(content="Hello")],
    [chunk("stop")],
    [{"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}, "[DONE]"],
)
