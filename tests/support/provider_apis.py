"""Adapters of the APIs of Anthropic and OpenAI, and the events of a stream that says Hello."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.model.anthropic import adapter as anthropic
from holdfast.model.openai import adapter as openai
from tests.support.replay_server import Answer, Server, events

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
