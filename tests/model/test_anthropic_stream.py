"""Anthropic's stream: its events become deltas, and whatever goes wrong in it becomes an error of ours."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast import content_parts, errors, types
from holdfast.model import base, provider_errors, reply_builder, request_common
from holdfast.model.anthropic import stream

ASKED = provider_errors.Advice(model="anthropic/claude", key="Set ANTHROPIC_API_KEY to a valid key.")


def event(kind: str, **fields: Any) -> str:
    return msgspec.json.encode({"type": kind, **fields}).decode()


def started(**usage: Any) -> str:
    return event("message_start", message={"id": "msg_1", "usage": {"input_tokens": 5, "output_tokens": 1, **usage}})


def piece(kind: str, index: int = 0, **fields: Any) -> str:
    return event("content_block_delta", index=index, delta={"type": kind, **fields})


def block(kind: str, index: int = 0, **fields: Any) -> str:
    return event("content_block_start", index=index, content_block={"type": kind, **fields})


def stopped(reason: str | None, **usage: Any) -> str:
    return event("message_delta", delta={"stop_reason": reason}, usage={"output_tokens": 9, **usage})


STOP = event("message_stop")
HELLO = [block("text", text=""), piece("text_delta", text="Hello")]


def gathered(*events: str, price: base.Price | None = None) -> base.Reply:
    parser = stream.Parser(ASKED, price=price)
    got = reply_builder.ReplyBuilder("anthropic/claude")
    for data in events:
        for delta in parser.feed(msgspec.json.decode(data)["type"], data):
            got.add(delta)
    for delta in parser.end():
        got.add(delta)
    return got.reply()


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("pause_turn", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "refused"),
        ("heard_of_tomorrow", "stop"),
    ],
)
def test_each_reason_to_stop_has_its_finish(reason: str, finish: str) -> None:
    reply = gathered(started(), *HELLO, stopped(reason), STOP)
    assert (reply.text, reply.finish) == ("Hello", finish)


def test_parallel_calls_come_in_pieces_and_stay_apart() -> None:
    reply = gathered(
        started(),
        block("text", 0, text="I "),
        piece("text_delta", 0, text="look."),
        block("tool_use", 1, id="a", name="read", input={}),
        piece("input_json_delta", 1, partial_json=""),
        piece("input_json_delta", 1, partial_json='{"p'),
        block("tool_use", 3, id="b", name="list", input={}),
        piece("input_json_delta", 1, partial_json='":1}'),
        event("content_block_stop", index=1),
        event("content_block_stop", index=3),
        stopped("tool_use"),
        STOP,
    )
    assert reply.text == "I look."
    assert reply.calls == (types.ToolCall("a", "read", '{"p":1}'), types.ToolCall("b", "list", "{}"))
    assert reply.finish == "calls"


@pytest.mark.parametrize("closing", [[event("content_block_stop", index=0)], []])
def test_a_call_that_came_whole_is_whole(closing: list[str]) -> None:
    whole = block("tool_use", id="a", name="read", input={"path": "x"})
    reply = gathered(started(), whole, *closing, stopped("end_turn"), STOP)
    assert reply.calls == (types.ToolCall("a", "read", '{"path":"x"}'),)
    assert reply.finish == "calls"


def test_a_renamed_tool_is_called_by_its_own_name() -> None:
    (wire,) = names = request_common.original_names([types.ToolSpec("files.read", "", {})])
    got = stream.Parser(ASKED, names=names).feed("", block("tool_use", id="x", name=wire))
    assert got[-1] == base.ToolCallDelta(0, "x", "files.read")


def test_calls_without_an_id_get_one_of_their_own() -> None:
    reply = gathered(started(), block("tool_use", 0, name="a"), block("tool_use", 1, name="b", id=""), STOP)
    assert [one.id for one in reply.calls] == ["msg_1_0", "msg_1_1"]


def test_reasoning_is_kept_with_its_signature_and_hidden_reasoning_too() -> None:
    reply = gathered(
        started(),
        block("thinking", 0, thinking="", signature=""),
        piece("thinking_delta", 0, thinking="Let me "),
        piece("thinking_delta", 0, thinking="see."),
        piece("signature_delta", 0, signature="SIG"),
        event("content_block_stop", index=0),
        block("redacted_thinking", 1, data="HIDDEN"),
        event("content_block_stop", index=1),
        *HELLO,
        stopped("end_turn"),
        STOP,
    )
    assert reply.parts == (
        content_parts.Reasoning("Let me see.", "SIG", "", "anthropic"),
        content_parts.Reasoning("", "", "HIDDEN", "anthropic"),
        content_parts.Text("Hello"),
    )


def test_usage_counts_what_came_from_the_cache_and_went_there() -> None:
    price = base.Price(input=3, output=15, cache_read=0.3, cache_write=3.75)
    reply = gathered(
        started(cache_creation_input_tokens=1000, cache_read_input_tokens=None),
        *HELLO,
        stopped("end_turn", cache_read_input_tokens=2000, output_tokens_details={"thinking_tokens": 4}),
        STOP,
        price=price,
    )
    cost = (5 * 3 + 2000 * 0.3 + 1000 * 3.75 + 9 * 15) / 1_000_000
    assert reply.usage == types.Usage(3005, 9, 2000, 1000, 4, cost)


def test_a_cut_reply_has_its_text_and_its_usage_and_no_half_call() -> None:
    parser, got = stream.Parser(ASKED), reply_builder.ReplyBuilder("anthropic/claude")
    for data in [
        started(),
        *HELLO,
        block("tool_use", 1, id="a", name="read"),
        piece("input_json_delta", 1, partial_json="{"),
    ]:
        for delta in parser.feed("", data):
            got.add(delta)
    with pytest.raises(errors.ModelCut):
        parser.end()
    reply = got.reply()
    assert (reply.text, reply.calls, reply.finish, reply.usage.input) == ("Hello", (), "cut", 5)


def test_a_reply_that_lacks_only_its_last_event_is_complete() -> None:
    assert gathered(started(), *HELLO, stopped("end_turn")).finish == "stop"


def test_nothing_is_told_before_something_is_said_so_that_the_call_can_be_made_again() -> None:
    parser = stream.Parser(ASKED)
    quiet = [started(), event("ping"), block("text", text=""), piece("text_delta", text="")]
    assert [parser.feed("", data) for data in quiet] == [[], [], [], []]
    assert parser.feed("", piece("text_delta", text="x"))[-1] == base.ContentDelta("x")


@pytest.mark.parametrize(
    "data",
    [
        "",
        event("ping"),
        event("from_tomorrow", index=7, delta={"type": "x"}),
        piece("citations_delta", citation={}),
        piece("input_json_delta", 5, partial_json="{}"),
        block("server_tool_use", 5, id="x", name="web_search", input={}),
        block("text", text=None),
    ],
)
def test_what_says_nothing_is_passed_over(data: str) -> None:
    assert stream.Parser(ASKED).feed("", data) == []


def failed(kind: str, message: str = "Sorry") -> str:
    return event("error", error={"type": kind, "message": message})


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("overloaded_error", errors.ModelBusy, errors.ModelCut),
        ("rate_limit_error", errors.ModelBusy, errors.ModelCut),
        ("api_error", errors.ModelServerError, errors.ModelCut),
        ("timeout_error", errors.ModelBusy, errors.ModelCut),
        ("authentication_error", errors.KeyRefused, errors.KeyRefused),
        ("permission_error", errors.KeyRefused, errors.KeyRefused),
        ("invalid_request_error", errors.RequestRefused, errors.RequestRefused),
    ],
)
@pytest.mark.parametrize("name", ["error", "message"])
def test_an_error_in_the_stream_has_its_type(
    kind: str, before: type[errors.ModelError], after: type[errors.ModelError], name: str
) -> None:
    for events, expected in (([started()], before), ([started(), *HELLO], after)):
        parser = stream.Parser(ASKED)
        for data in events:
            parser.feed("", data)
        with pytest.raises(errors.ModelError) as raised:
            parser.feed(name, failed(kind))
        assert type(raised.value) is expected


def test_too_long_is_an_overflow_however_the_stream_says_it() -> None:
    parser = stream.Parser(ASKED)
    with pytest.raises(errors.ContextOverflow):
        parser.feed("error", failed("invalid_request_error", "prompt is too long: 215000 tokens > 200000 maximum"))
    with pytest.raises(errors.ContextOverflow):
        gathered(started(), stopped("model_context_window_exceeded"), STOP)


@pytest.mark.parametrize(
    "data",
    ["{", "[]", "null", "[" * 9000, event("content_block_delta", index="x"), piece("text_delta", text=5)],
)
def test_an_event_that_cannot_be_read_is_one_error_before_and_another_after_something_was_said(data: str) -> None:
    parser = stream.Parser(ASKED)
    with pytest.raises(errors.ModelServerError):
        parser.feed("", data)
    for good in HELLO:
        parser.feed("", good)
    with pytest.raises(errors.ModelCut):
        parser.feed("", data)


def test_no_error_of_the_stream_shows_the_key() -> None:
    parser = stream.Parser(ASKED, secrets=("a-secret-of-mine",))
    with pytest.raises(errors.KeyRefused) as raised:
        parser.feed("error", failed("authentication_error", "invalid x-api-key a-secret-of-mine"))
    assert "a-secret-of-mine" not in str(raised.value)
    assert "ANTHROPIC_API_KEY" in str(raised.value)


def half(escaped: str, data: str) -> str:
    """An event with an escape in it, where a @ stands: half a character, which no strict writer would write."""
    return data.replace("@", escaped)


def heard(*events: str) -> base.Reply:
    """As `gathered`, of events that strict readers refuse."""
    parser, got = stream.Parser(ASKED), reply_builder.ReplyBuilder("anthropic/claude")
    for data in events:
        for delta in parser.feed("", data):
            got.add(delta)
    return got.reply()


def test_a_character_in_two_events_is_one_character() -> None:
    got = heard(
        started(),
        block("thinking", 0, thinking=""),
        half(r"\ud83d", piece("thinking_delta", 0, thinking="Hm @")),
        half(r"\ude00", piece("thinking_delta", 0, thinking="@!")),
        event("content_block_stop", index=0),
        half(r"\ud83d", block("text", 1, text="Hi @")),
        half(r"\ude00", piece("text_delta", 1, text="@ you")),
        block("tool_use", 2, id="a", name="one", input={}),
        block("tool_use", 3, id="b", name="two", input={}),
        half(r"\ud83d", piece("input_json_delta", 2, partial_json='{"x": "@')),
        half(r"\ud83c", piece("input_json_delta", 3, partial_json='{"y": "@')),
        half(r"\ude00", piece("input_json_delta", 2, partial_json='@"}')),
        half(r"\udf89", piece("input_json_delta", 3, partial_json='@"}')),
        stopped("tool_use"),
        STOP,
    )
    assert got.parts == (
        content_parts.Reasoning("Hm \U0001f600!", provider="anthropic"),
        content_parts.Text("Hi \U0001f600 you"),
    )
    assert [call.arguments for call in got.calls] == ['{"x": "\U0001f600"}', '{"y": "\U0001f389"}']


@pytest.mark.parametrize("closed", [True, False])
def test_half_a_character_that_stays_alone_is_marked_and_the_rest_is_kept(closed: bool) -> None:
    ends = [event("content_block_stop", index=index) for index in (1, 2, 3)] if closed else []
    got = heard(
        started(),
        half(r"\ud83d", block("thinking", 0, thinking="Hm @", signature="s@")),
        event("content_block_stop", index=0),
        half(r"\ude00", block("text", 1, text="@ low")),
        half(r"\ud83d", piece("text_delta", 1, text=" high @")),
        piece("text_delta", 1, text="x"),
        half(r"\ud83d", piece("text_delta", 1, text="end @")),
        half(r"\ud83d", block("tool_use", 2, id="i@", name="n@", input={"@": "@"})),
        block("tool_use", 3, id="b", name="two", input={}),
        half(r"\ud83d", piece("input_json_delta", 3, partial_json="{@")),
        *ends,
        stopped("tool_use"),
        STOP,
    )
    assert got.parts == (
        content_parts.Reasoning("Hm \ufffd", "s\ufffd", provider="anthropic"),
        content_parts.Text("\ufffd low high \ufffdxend \ufffd"),
    )
    assert got.calls == (
        types.ToolCall("i\ufffd", "n\ufffd", '{"\ufffd":"\ufffd"}'),
        types.ToolCall("b", "two", "{\ufffd"),
    )
