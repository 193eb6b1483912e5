"""A model behind Anthropic's API: the call as a server sees it, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from holdfast import errors, types
from holdfast.model import base, reply_builder, retry
from holdfast.model.anthropic import adapter
from tests.support import replay_server

KEY = "a-secret-of-mine"
ASK = base.Request(messages=[types.Message(1, "u", "s", "user", 0.0, '{"content":"hi"}')])

BEGUN = {"type": "message_start", "message": {"id": "msg_1", "usage": {"input_tokens": 5, "output_tokens": 1}}}
HELLO = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}}
ENDED = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}}
STOP = {"type": "message_stop"}
WHOLE = replay_server.Answer([replay_server.events(BEGUN, HELLO, ENDED, STOP)])


async def heard(model: base.Model, request: base.Request = ASK) -> tuple[base.Reply, errors.ModelError | None]:
    got = reply_builder.ReplyBuilder(model.name)
    failed = None
    try:
        async for delta in model.stream(request):
            got.add(delta)
    except errors.ModelError as error:
        failed = error
    return got.reply(), failed


def asked(
    *answers: replay_server.Answer, path: str = "", **more: Any
) -> tuple[base.Reply, errors.ModelError | None, Sequence[replay_server.Asked]]:
    async def run() -> tuple[base.Reply, errors.ModelError | None, Sequence[replay_server.Asked]]:
        async with replay_server.Server(*answers) as one:
            model = adapter.AnthropicModel("claude", base_url=one.url + path, window=1000, **{"key": KEY, **more})
            reply, error = await heard(
                retry.RetryingModel(model, sleep=asyncio.sleep, backoff=retry.Backoff(first_delay=0))
            )
            await model.close()
            return reply, error, one.asked

    return asyncio.run(run())


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/"])
def test_the_call_goes_to_the_messages_of_the_base_url(path: str) -> None:
    reply, error, (request,) = asked(WHOLE, path=path)
    assert (reply.text, error) == ("Hello", None)
    assert (request.method, request.path) == ("POST", "/v1/messages")


def test_the_key_is_sent_where_there_is_one_and_headers_can_be_added() -> None:
    _, _, (request,) = asked(WHOLE, headers={"x-team": "blue"})
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.headers["x-api-key"] == KEY
    assert request.headers["x-team"] == "blue"
    _, _, (request,) = asked(WHOLE, key=None)
    assert not {"x-api-key", "authorization"} & set(request.headers)


def test_name_window_and_settings_are_those_it_was_given() -> None:
    model = adapter.AnthropicModel("claude", window=7, key=KEY)
    assert (model.name, model.window) == ("anthropic/claude", 7)
    assert adapter.AnthropicModel("claude", window=7, name="work/claude").name == "work/claude"
    _, _, (request,) = asked(WHOLE, max_output=33, extra={"service_tier": "auto"})
    assert (request.json["max_tokens"], request.json["service_tier"], request.json["model"]) == (33, "auto", "claude")


def test_the_reply_has_its_usage_and_what_it_cost() -> None:
    reply, _, _ = asked(WHOLE, price=base.Price(input=2, output=10))
    assert reply.usage == types.Usage(5, 2, cost=(5 * 2 + 2 * 10) / 1_000_000)


def test_a_cut_stream_keeps_its_text_and_is_not_asked_for_again() -> None:
    reply, error, requests = asked(replay_server.Answer([replay_server.events(BEGUN, HELLO)], cut=True), WHOLE)
    assert (reply.text, reply.finish, type(error)) == ("Hello", "cut", errors.ModelCut)
    assert len(requests) == 1


def test_a_stream_cut_before_anything_was_said_is_asked_for_again() -> None:
    for broken in (
        replay_server.Answer([replay_server.events(BEGUN)], cut=True),
        replay_server.Answer([replay_server.events(BEGUN)]),
    ):
        reply, error, requests = asked(broken, WHOLE)
        assert (reply.text, error, len(requests)) == ("Hello", None, 2)


def test_overload_told_in_the_stream_is_asked_again() -> None:
    overload = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    reply, error, requests = asked(replay_server.Answer([replay_server.events(BEGUN, overload)]), WHOLE)
    assert (reply.text, error, len(requests)) == ("Hello", None, 2)


@pytest.mark.parametrize("cut", [True, False])
def test_a_reply_that_said_why_it_ended_is_complete(cut: bool) -> None:
    reply, error, _ = asked(replay_server.Answer([replay_server.events(BEGUN, HELLO, ENDED)], cut=cut))
    assert (reply.text, reply.finish, error) == ("Hello", "stop", None)


def test_nothing_is_waited_for_after_the_last_event() -> None:
    reply, error, _ = asked(replay_server.Answer([replay_server.events(BEGUN, HELLO, ENDED, STOP)], hang=True))
    assert (reply.text, reply.finish, error) == ("Hello", "stop", None)


class Counted(replay_server.Server):
    """A server that knows how many connections were made."""

    connections = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        await super()._serve(reader, writer)


def test_one_connection_serves_one_call_after_another() -> None:
    async def run() -> int:
        async with Counted(WHOLE) as one:
            model = adapter.AnthropicModel("claude", base_url=one.url, window=1000, key=KEY)
            for _ in range(5):
                assert (await heard(model))[0].text == "Hello"
            await model.close()
            return one.connections

    assert asyncio.run(run()) == 1


async def test_closing_the_stream_ends_the_call_at_the_provider() -> None:
    async with replay_server.Server(replay_server.Answer([replay_server.events(BEGUN, HELLO)], hang=True)) as one:
        model = adapter.AnthropicModel("claude", base_url=one.url, window=1000, key=KEY)
        async with aclosing(model.stream(ASK)) as deltas:
            async for delta in deltas:
                if isinstance(delta, base.ContentDelta):
                    break
        await asyncio.wait_for(one.left.wait(), 60)
        await model.close()


@pytest.mark.parametrize(
    ("status", "kind", "words", "expected"),
    [
        (400, "invalid_request_error", "prompt is too long: 9 tokens > 8 maximum", errors.ContextOverflow),
        (413, "request_too_large", "Request exceeds the maximum size", errors.ContextOverflow),
        (400, "invalid_request_error", "messages: at least one message is required", errors.RequestRefused),
        (400, "invalid_request_error", "Your credit balance is too low", errors.RequestRefused),
        (401, "authentication_error", "invalid x-api-key", errors.KeyRefused),
        (403, "permission_error", "not allowed", errors.KeyRefused),
        (404, "not_found_error", "model: claude", errors.RequestRefused),
        (429, "rate_limit_error", "This request would exceed your limit of input tokens per minute", errors.ModelBusy),
        (500, "api_error", "Internal server error", errors.ModelServerError),
        (529, "overloaded_error", "Overloaded", errors.ModelBusy),
    ],
)
def test_each_refusal_has_its_type_and_shows_no_key(
    status: int, kind: str, words: str, expected: type[errors.ModelError]
) -> None:
    body = {"type": "error", "error": {"type": kind, "message": f"{words} {KEY}"}}
    _, error, _ = asked(replay_server.refusal(status, body))
    assert type(error) is expected
    assert error.status == status
    assert error.model == "anthropic/claude"
    assert words.split(maxsplit=1)[0] in str(error)
    assert KEY not in str(error)


def test_no_error_told_in_the_stream_shows_the_key() -> None:
    refusal = {"type": "error", "error": {"type": "authentication_error", "message": f"invalid key {KEY}"}}
    _, error, _ = asked(replay_server.Answer([replay_server.events(BEGUN, refusal)]))
    assert type(error) is errors.KeyRefused
    assert KEY not in str(error)
    assert "invalid key" in str(error)


async def test_one_model_serves_calls_at_once() -> None:
    async with replay_server.Server(WHOLE) as one:
        model = adapter.AnthropicModel("claude", base_url=one.url, window=1000, key=KEY)
        replies = await asyncio.gather(*(heard(model) for _ in range(8)))
        assert [(reply.text, error) for reply, error in replies] == [("Hello", None)] * 8
        await model.close()


def test_the_body_is_what_msgspec_made_once() -> None:
    _, _, (request,) = asked(WHOLE)
    assert msgspec.json.decode(request.body)["messages"][0]["content"][0]["text"] == "hi"
    assert request.headers["content-type"] == "application/json"
