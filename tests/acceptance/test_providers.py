"""Both provider adapters against npm's @copilotkit/aimock, a third-party mock provider that journals its requests."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import httpx2
import msgspec
import pytest

from holdfast import errors, types
from holdfast.model import base, retry
from holdfast.model.anthropic import adapter as anthropic_adapter
from holdfast.model.openai import adapter as openai_adapter
from tests.acceptance import npm
from tests.acceptance.installation import PATIENCE
from tests.support import polling, provider_calls

LONG = "This is a long answer, and the connection is cut before the end of it."
RATE_LIMIT = {"error": {"message": "Slow down", "type": "rate_limit_error"}, "status": 429, "retryAfter": 7}
CLAUDE_OVERFLOW = {"message": "prompt is too long: 215000 tokens > 200000 maximum", "type": "invalid_request_error"}
GPT_OVERFLOW = {"message": "Too long.", "type": "invalid_request_error", "code": "context_length_exceeded"}
PATHS = ("ä.txt", "b.txt")
CALLS = [{"id": f"call_{n}", "name": "read_file", "arguments": {"path": path}} for n, path in enumerate(PATHS)]
FIXTURES: list[dict[str, Any]] = [
    {"match": {"userMessage": "both files", "hasToolResult": True}, "response": {"content": "I have read both."}},
    {"match": {"userMessage": "both files"}, "response": {"content": "I look at both. 你好", "toolCalls": CALLS}},
    {"match": {"userMessage": "too often", "sequenceIndex": 0}, "response": RATE_LIMIT},
    {"match": {"userMessage": "too often"}, "response": {"content": "Now I can."}},
    # The latency lets the chunks before the cut leave the server.
    {"match": {"userMessage": "go on and on"}, "response": {"content": LONG}, "latency": 20, "truncateAfterChunks": 6},
    {"match": {"userMessage": "too long", "model": "claude"}, "response": {"error": CLAUDE_OVERFLOW, "status": 400}},
    {"match": {"userMessage": "too long", "model": "gpt"}, "response": {"error": GPT_OVERFLOW, "status": 400}},
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run the mock provider; yield its URL."""
    node, package = npm.installed("@copilotkit/aimock", "1.43.0")
    folder = tmp_path_factory.mktemp("aimock")
    fixtures, log = folder / "fixtures.json", folder / "aimock.log"
    fixtures.write_text(json.dumps({"fixtures": FIXTURES}))
    command = [*node.node, str(package / "dist" / "cli.js"), "--port=0", "--chunk-size=6", f"--fixtures={fixtures}"]
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            polling.until(lambda: "listening on " in log.read_text() or process.poll() is not None, seconds=PATIENCE)
            assert process.poll() is None, log.read_text()
            yield log.read_text().partition("listening on ")[2].split()[0]
        finally:
            process.kill()


class Provider(NamedTuple):
    """An adapter with retries, the delays it asked for, and the journal of its requests."""

    model: base.Model
    delays: list[float]
    journal_url: str

    async def ask(self, *messages: types.Message) -> tuple[base.Reply, list[base.Delta], errors.ModelError | None]:
        """Return the reply to these messages, its deltas and its error."""
        request = base.Request(messages=messages, system="Be kind.", tools=[provider_calls.TOOL])
        return await provider_calls.collect(self.model, request)

    def journal(self) -> list[dict[str, Any]]:
        """Return the requests so far, in OpenAI's format for both APIs, with their responses."""
        return list(httpx2.get(self.journal_url, timeout=PATIENCE).raise_for_status().json())


@pytest.fixture(params=["anthropic", "openai"])
async def provider(server: str, request: pytest.FixtureRequest) -> AsyncIterator[Provider]:
    test, delays = request.node.name, list[float]()
    options: dict[str, Any] = {"key": "key", "window": 1000, "headers": {"x-test-id": test}}

    async def sleep(seconds: float) -> None:
        delays.append(seconds)

    model: base.Model = anthropic_adapter.AnthropicModel("claude", base_url=server, **options)
    if request.param == "openai":
        model = openai_adapter.OpenAIModel("gpt", base_url=f"{server}/v1", **options)
    model = retry.RetryingModel(model, sleep=sleep)
    yield Provider(model, delays, f"{server}/__aimock/journal?testId={test}")
    await model.close()


async def test_parallel_calls_are_streamed_and_their_results_sent(provider: Provider) -> None:
    question = provider_calls.message("user", "both files")
    reply, deltas, error = await provider.ask(question)
    assert (reply.text, reply.finish, error) == ("I look at both. 你好", "calls", None)
    calls = [{**msgspec.to_builtins(call), "arguments": json.loads(str(call.arguments))} for call in reply.calls]
    assert [{key: call[key] for key in CALLS[0]} for call in calls] == CALLS
    assert sum(isinstance(delta, base.ToolCallDelta) and bool(delta.arguments) for delta in deltas) >= 4
    assert sum(isinstance(delta, base.ContentDelta) for delta in deltas) >= 3

    results = [provider_calls.result_message("call_1", "B!"), provider_calls.result_message("call_0", "A!")]
    request = provider_calls.call_message(*map(msgspec.to_builtins, reply.calls), content=reply.text)
    reply, _, error = await provider.ask(question, request, *results)
    assert (reply.text, reply.finish, error) == ("I have read both.", "stop", None)
    first, second = [entry["body"] for entry in provider.journal()]
    assert [tool["function"]["name"] for tool in first["tools"]] == ["read_file"]
    sent = {each["tool_call_id"]: str(each["content"]) for each in second["messages"] if each["role"] == "tool"}
    assert ("A!" in sent["call_0"], "B!" in sent["call_1"], len(sent)) == (True, True, 2)
    assert "Be kind." in str([each["content"] for each in second["messages"] if each["role"] == "system"])
    (asked,) = [each["tool_calls"] for each in second["messages"] if each["role"] == "assistant"]
    assert [json.loads(call["function"]["arguments"]) for call in asked] == [call["arguments"] for call in CALLS]


async def test_rate_limit_is_retried_after_the_given_delay(provider: Provider) -> None:
    reply, _, error = await provider.ask(provider_calls.message("user", "too often"))
    assert (reply.text, error, provider.delays) == ("Now I can.", None, [7.0])
    assert [entry["response"]["status"] for entry in provider.journal()] == [429, 200]


async def test_context_overflow_is_recognised_and_not_retried(provider: Provider) -> None:
    _, _, error = await provider.ask(provider_calls.message("user", "too long"))
    assert isinstance(error, errors.ContextOverflow)
    assert (error.status, len(provider.journal())) == (400, 1)


async def test_cut_stream_keeps_the_partial_answer_and_is_not_retried(provider: Provider) -> None:
    reply, _, error = await provider.ask(provider_calls.message("user", "go on and on"))
    assert (type(error), reply.finish) == (errors.ModelCut, "cut")
    assert LONG.startswith(reply.text)
    assert 6 <= len(reply.text) < len(LONG)
    assert [entry["response"]["interrupted"] for entry in provider.journal()] == [True]
