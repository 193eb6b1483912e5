"""Both provider adapters against a third-party mock provider: requests, streams and failures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from holdfast import errors, types
from holdfast.model import base, reply_builder, retry
from holdfast.model.anthropic import adapter as anthropic_adapter
from holdfast.model.openai import adapter as openai_adapter
from tests.acceptance import aimock

TOOLS = [types.ToolSpec("read_file", "Reads a file.", {"type": "object", "properties": {"path": {"type": "string"}}})]
LONG = "This is a long answer, and the connection will not live to see the end of it."
PIECE = 6
HALF = '{"path": "a'

FIXTURES: list[dict[str, Any]] = [
    {"match": {"userMessage": "both files", "hasToolResult": True}, "response": {"content": "I have read both."}},
    {
        "match": {"userMessage": "both files"},
        "response": {
            "content": "I look at both. 你好",
            "toolCalls": [
                {"id": "call_a", "name": "read_file", "arguments": {"path": "ä.txt"}},
                {"id": "call_b", "name": "read_file", "arguments": {"path": "b.txt"}},
            ],
        },
        "chunkSize": PIECE,
    },
    {"match": {"userMessage": "half a call", "hasToolResult": True}, "response": {"content": "I see."}},
    {
        "match": {"userMessage": "half a call"},
        "response": {"toolCalls": [{"id": "call_c", "name": "read_file", "arguments": HALF}]},
    },
    {
        "match": {"userMessage": "too often", "sequenceIndex": 0},
        "response": {"error": {"message": "Slow down", "type": "rate_limit_error"}, "status": 429, "retryAfter": 7},
    },
    {"match": {"userMessage": "too often"}, "response": {"content": "Now I can."}},
    {
        "match": {"userMessage": "come back tomorrow"},
        "response": {"error": {"message": "Slow down", "type": "rate_limit_error"}, "status": 429, "retryAfter": 86400},
    },
    {"match": {"userMessage": "nonsense"}, "response": {"content": "-"}, "chaos": {"malformedRate": 1}},
    {"match": {"userMessage": "hang up"}, "response": {"content": "-"}, "chaos": {"disconnectRate": 1}},
    {
        # It waits between the pieces, so that those before the cut have left when it comes.
        "match": {"userMessage": "go on and on"},
        "response": {"content": LONG},
        "chunkSize": PIECE,
        "latency": 20,
        "truncateAfterChunks": 6,
    },
    {
        "match": {"userMessage": "much too long", "model": "claude"},
        "response": {
            "error": {"message": "prompt is too long: 215000 tokens > 200000 maximum", "type": "invalid_request_error"},
            "status": 400,
        },
    },
    {
        "match": {"userMessage": "much too long"},
        "response": {
            "error": {
                "message": "This model's maximum context length is 128000 tokens.",
                "type": "invalid_request_error",
                "code": "context_length_exceeded",
            },
            "status": 400,
        },
    },
    {"match": {"userMessage": "think"}, "response": {"content": "Four.", "reasoning": "Two and two."}},
]


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[aimock.Provider]:
    with aimock.running(FIXTURES, tmp_path_factory.mktemp("aimock")) as one:
        yield one


@pytest.fixture(params=["anthropic", "openai"])
def api(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Talk:
    """A conversation through one adapter, with its own name in the journal."""

    def __init__(self, provider: aimock.Provider, api: str, said: str, key: str = aimock.KEY) -> None:
        self._provider = provider
        self._test = f"{api}-{said.replace(' ', '-')}"
        self._url = provider.url
        self._api = api
        self._key = key
        self.messages = [message("user", content=said)]
        self.deltas: list[base.Delta] = []
        self.waited: list[float] = []

    @property
    def journal(self) -> list[dict[str, Any]]:
        return self._provider.journal(self._test)

    def ask(self) -> base.Reply:
        """Request one reply, with retries, and append it to the conversation."""
        got = reply_builder.ReplyBuilder(self._api)

        async def run() -> None:
            model = retry.RetryingModel(self._model(), sleep=self._wait)
            try:
                async for delta in model.stream(base.Request(messages=self.messages, system="Be kind.", tools=TOOLS)):
                    self.deltas.append(delta)
                    got.add(delta)
            finally:
                self.reply = got.reply()
                await model.close()

        asyncio.run(run())
        calls = [msgspec.to_builtins(call) for call in self.reply.calls]
        self.messages.append(message("assistant", content=self.reply.text, tool_calls=calls))
        return self.reply

    def answer(self, call: types.ToolCall, text: str) -> None:
        self.messages.append(message("tool", content=text, tool_call_id=call.id))

    def _model(self) -> base.Model:
        headers = {"x-test-id": self._test}
        if self._api == "anthropic":
            return anthropic_adapter.AnthropicModel(
                "claude", base_url=self._url, key=self._key, window=1000, headers=headers
            )
        return openai_adapter.OpenAIModel(
            "gpt", base_url=f"{self._url}/v1", key=self._key, window=1000, headers=headers
        )

    async def _wait(self, seconds: float) -> None:
        self.waited.append(seconds)


def message(role: types.Role, **body: Any) -> types.Message:
    return types.Message(1, "uid", "session", role, 0.0, msgspec.json.encode(body).decode())


def text_of(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def test_parallel_calls_are_streamed_and_their_results_sent(provider: aimock.Provider, api: str) -> None:
    talk = Talk(provider, api, "both files")
    reply = talk.ask()
    assert (reply.text, reply.finish) == ("I look at both. 你好", "calls")
    assert [(call.id, call.name) for call in reply.calls] == [("call_a", "read_file"), ("call_b", "read_file")]
    assert [json.loads(str(call.arguments)) for call in reply.calls] == [{"path": "ä.txt"}, {"path": "b.txt"}]
    assert sum(isinstance(delta, base.ToolCallDelta) and bool(delta.arguments) for delta in talk.deltas) >= 4
    assert sum(isinstance(delta, base.ContentDelta) for delta in talk.deltas) >= 3

    talk.answer(reply.calls[1], "B!")
    talk.answer(reply.calls[0], "A!")
    assert (talk.ask().text, talk.reply.finish) == ("I have read both.", "stop")
    first, second = [entry["body"] for entry in talk.journal]
    assert [tool["function"]["name"] for tool in first["tools"]] == ["read_file"]
    results = {one["tool_call_id"]: text_of(one["content"]) for one in second["messages"] if one["role"] == "tool"}
    assert results == {"call_a": "A!", "call_b": "B!"}
    asked = next(one for one in second["messages"] if one["role"] == "assistant")
    assert [json.loads(call["function"]["arguments"])["path"] for call in asked["tool_calls"]] == ["ä.txt", "b.txt"]
    assert [text_of(one["content"]) for one in second["messages"] if one["role"] == "system"] == ["Be kind."]


def test_rate_limit_is_retried_after_the_given_delay(provider: aimock.Provider, api: str) -> None:
    talk = Talk(provider, api, "too often")
    assert talk.ask().text == "Now I can."
    assert talk.waited == [7.0]
    assert [(delta.seconds, delta.attempt) for delta in talk.deltas if isinstance(delta, base.RetryDelta)] == [(7.0, 1)]
    assert [entry["response"]["status"] for entry in talk.journal] == [429, 200]


def test_rate_limit_with_a_long_delay_is_reported_at_once(provider: aimock.Provider, api: str) -> None:
    talk = Talk(provider, api, "come back tomorrow")
    with pytest.raises(errors.ModelBusy) as raised:
        talk.ask()
    assert (raised.value.retry_after, raised.value.status) == (86400, 429)
    assert (talk.waited, len(talk.journal)) == ([], 1)


@pytest.mark.parametrize(
    ("said", "expected"), [("nonsense", errors.ModelServerError), ("hang up", errors.ModelUnreachable)]
)
def test_malformed_and_missing_responses_are_retried_then_reported(
    provider: aimock.Provider, api: str, said: str, expected: type[errors.ModelError]
) -> None:
    talk = Talk(provider, api, said)
    with pytest.raises(errors.ModelError) as raised:
        talk.ask()
    assert type(raised.value) is expected
    assert len(talk.journal) == len(talk.waited) + 1 == retry.Backoff().attempts


def test_malformed_call_arguments_are_kept_unchanged(provider: aimock.Provider) -> None:
    # Its other API would mend them before it sends them.
    (call,) = Talk(provider, "openai", "half a call").ask().calls
    assert (call.id, call.name, call.arguments) == ("call_c", "read_file", HALF)


def test_malformed_call_arguments_do_not_break_the_next_request(provider: aimock.Provider, api: str) -> None:
    talk = Talk(provider, api, "half a call")
    call = types.ToolCall("call_c", "read_file", HALF)
    talk.messages.append(message("assistant", tool_calls=[msgspec.to_builtins(call)]))
    talk.answer(call, "These arguments are not valid JSON.")
    assert talk.ask().text == "I see."
    asked = next(one for one in talk.journal[-1]["body"]["messages"] if one["role"] == "assistant")
    given = json.loads(asked["tool_calls"][0]["function"]["arguments"])
    assert isinstance(given, dict)
    assert HALF in given.values()


def test_cut_stream_keeps_the_partial_answer_and_is_not_retried(provider: aimock.Provider, api: str) -> None:
    talk = Talk(provider, api, "go on and on")
    with pytest.raises(errors.ModelCut):
        talk.ask()
    assert talk.reply.finish == "cut"
    assert len(talk.reply.text) >= PIECE
    assert LONG.startswith(talk.reply.text)
    assert talk.reply.text != LONG
    (entry,) = talk.journal
    assert entry["response"]["interrupted"]
    assert talk.waited == []


def test_context_overflow_is_recognised(provider: aimock.Provider, api: str) -> None:
    talk = Talk(provider, api, "much too long")
    with pytest.raises(errors.ContextOverflow) as raised:
        talk.ask()
    assert raised.value.status == 400
    assert (talk.waited, len(talk.journal)) == ([], 1)


def test_reasoning_is_separate_from_the_answer(provider: aimock.Provider, api: str) -> None:
    talk = Talk(provider, api, "think")
    assert talk.ask().text == "Four."
    assert "".join(delta.text for delta in talk.deltas if isinstance(delta, base.ThinkingDelta)) == "Two and two."


def test_wrong_key_is_refused_and_not_shown(provider: aimock.Provider, api: str) -> None:
    talk = Talk(provider, api, "both files", key="another-key-of-mine")
    with pytest.raises(errors.KeyRefused) as raised:
        talk.ask()
    assert raised.value.status == 401
    assert "another-key-of-mine" not in str(raised.value)
    assert talk.waited == []


def test_request_streams_from_the_path_of_its_api(provider: aimock.Provider, api: str) -> None:
    talk = Talk(provider, api, "think")
    talk.ask()
    entry = talk.journal[-1]
    assert entry["path"] == {"anthropic": "/v1/messages", "openai": "/v1/chat/completions"}[api]
    assert entry["body"]["stream"] is True
