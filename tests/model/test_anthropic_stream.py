"""Anthropic's stream: cases that its SDK does not decide (see test_anthropic_oracle.py)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast import content_parts, errors, types
from holdfast.model import base, provider_errors, reply_builder, request_common
from holdfast.model.anthropic import stream

ADVICE = provider_errors.Advice(model="anthropic/claude", key="Set ANTHROPIC_API_KEY to a valid key.")


def event(kind: str, **fields: Any) -> str:
    return msgspec.json.encode({"type": kind, **fields}).decode()


def piece(kind: str, index: int = 0, **fields: Any) -> str:
    return event("content_block_delta", index=index, delta={"type": kind, **fields})


def block(kind: str, index: int = 0, **fields: Any) -> str:
    return event("content_block_start", index=index, content_block={"type": kind, **fields})


def stopped(reason: str | None, **usage: Any) -> str:
    return event("message_delta", delta={"stop_reason": reason}, usage={"output_tokens": 9, **usage})


BEGIN = event("message_start", message={"id": "msg_1", "usage": {"input_tokens": 5, "output_tokens": 1}})
STOP = event("message_stop")
HELLO = [block("text", text=""), piece("text_delta", text="Hello")]


def parse(*events: str) -> base.Reply:
    parser, builder = stream.Parser(ADVICE), reply_builder.ReplyBuilder("anthropic/claude")
    for data in events:
        for delta in parser.feed("", data):
            builder.add(delta)
    for delta in parser.end():
        builder.add(delta)
    return builder.reply()


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("pause_turn", "stop"),
        ("model_context_window_exceeded", "length"),
        ("unknown_reason", "stop"),
    ],
)
def test_stop_reason_gives_the_finish(reason: str, finish: str) -> None:
    reply = parse(BEGIN, *HELLO, stopped(reason), STOP)
    assert (reply.text, reply.finish) == ("Hello", finish)
    assert parse(BEGIN, *HELLO, stopped(reason)).finish == finish  # without the last event


def test_calls_that_came_whole_or_without_an_id_are_complete() -> None:
    whole = block("tool_use", id="a", name="read", input={"path": "x"})
    reply = parse(
        BEGIN, whole, block("tool_use", 1, name="a"), block("tool_use", 2, name="b", id=""), stopped("end_turn")
    )
    assert reply.calls[0] == types.ToolCall("a", "read", '{"path":"x"}')
    assert [one.id for one in reply.calls[1:]] == ["msg_1_1", "msg_1_2"]
    assert reply.finish == "calls"


def test_renamed_tool_is_called_by_its_original_name() -> None:
    (wire,) = names = request_common.original_names([types.ToolSpec("files.read", "", {})])
    deltas = stream.Parser(ADVICE, names=names).feed("", block("tool_use", id="x", name=wire))
    assert deltas[-1] == base.ToolCallDelta(0, "x", "files.read")


def test_nothing_is_emitted_before_the_first_text_so_that_the_call_can_be_retried() -> None:
    parser = stream.Parser(ADVICE)
    quiet = [BEGIN, event("ping"), block("text", text=""), piece("text_delta", text="")]
    assert [parser.feed("", data) for data in quiet] == [[], [], [], []]
    assert parser.feed("", piece("text_delta", text="x"))[-1] == base.ContentDelta("x")


@pytest.mark.parametrize(
    "data",
    [
        "",
        event("unknown", index=7, delta={"type": "x"}),
        piece("input_json_delta", 5, partial_json="{}"),
        block("server_tool_use", 5, id="x", name="web_search", input={}),
        block("text", text=None),
    ],
)
def test_events_without_content_are_ignored(data: str) -> None:
    assert stream.Parser(ADVICE).feed("", data) == []


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("rate_limit_error", errors.ModelBusy, errors.ModelCut),
        ("permission_error", errors.KeyRefused, errors.KeyRefused),
    ],
)
@pytest.mark.parametrize("name", ["error", "message"])
def test_error_event(kind: str, before: type[errors.ModelError], after: type[errors.ModelError], name: str) -> None:
    for events, expected in (([BEGIN], before), ([BEGIN, *HELLO], after)):
        parser = stream.Parser(ADVICE)
        for data in events:
            parser.feed("", data)
        with pytest.raises(errors.ModelError) as raised:
            parser.feed(name, event("error", error={"type": kind, "message": "Sorry"}))
        assert type(raised.value) is expected


def test_overflow_is_found_in_errors_and_stop_reasons() -> None:
    error = {"type": "invalid_request_error", "message": "prompt is too long: 215000 tokens > 200000 maximum"}
    with pytest.raises(errors.ContextOverflow):
        stream.Parser(ADVICE).feed("error", event("error", error=error))
    with pytest.raises(errors.ContextOverflow):
        parse(BEGIN, stopped("model_context_window_exceeded"), STOP)


@pytest.mark.parametrize(
    "data", ["{", "[]", "[" * 9000, event("content_block_delta", index="x"), piece("text_delta", text=5)]
)
def test_unreadable_event_is_a_server_error_and_a_cut_after_some_text(data: str) -> None:
    parser = stream.Parser(ADVICE)
    with pytest.raises(errors.ModelServerError):
        parser.feed("", data)
    for good in HELLO:
        parser.feed("", good)
    with pytest.raises(errors.ModelCut):
        parser.feed("", data)


def escaped(code: str, data: str) -> str:
    """Put an escaped surrogate in place of @, as no strict encoder would."""
    return data.replace("@", code)


@pytest.mark.parametrize("second", [r"\ude00", "x"], ids=["paired", "unpaired"])
def test_surrogate_pair_split_over_two_events_is_one_character(second: str) -> None:
    reply = parse(
        BEGIN,
        block("thinking", 0, thinking=""),
        escaped(r"\ud83d", piece("thinking_delta", 0, thinking="Hm @")),
        escaped(second, piece("thinking_delta", 0, thinking="@!")),
        escaped(r"\ud83d", piece("thinking_delta", 0, thinking="@")),
        event("content_block_stop", index=0),
        escaped(r"\ud83d", block("text", 1, text="Hi @")),
        escaped(second, piece("text_delta", 1, text="@ you")),
        escaped(r"\ud83d", piece("text_delta", 1, text="@")),
        event("content_block_stop", index=1),
        block("tool_use", 2, id="a", name="one", input={}),
        block("tool_use", 3, id="b", name="two", input={}),
        escaped(r"\ud83d", piece("input_json_delta", 2, partial_json='{"x": "@')),
        escaped(r"\ud83d", piece("input_json_delta", 3, partial_json='{"y": "@')),
        escaped(second, piece("input_json_delta", 2, partial_json='@"}')),
        escaped(second, piece("input_json_delta", 3, partial_json='@"}')),
        escaped(r"\ud83d", block("tool_use", 4, id="i@", name="n@", input={"@": "@"})),
        stopped("tool_use"),
        STOP,
    )
    joined = "\U0001f600" if second != "x" else "\ufffdx"
    thought = content_parts.Reasoning(f"Hm {joined}!\ufffd", provider="anthropic")
    assert reply.parts == (thought, content_parts.Text(f"Hi {joined} you\ufffd"))
    assert reply.calls == (
        types.ToolCall("a", "one", f'{{"x": "{joined}"}}'),
        types.ToolCall("b", "two", f'{{"y": "{joined}"}}'),
        types.ToolCall("i\ufffd", "n\ufffd", '{"\ufffd":"\ufffd"}'),
    )
