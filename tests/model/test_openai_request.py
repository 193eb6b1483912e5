"""Requests for Chat Completions: any context becomes a request that every server accepts, and the same bytes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import hypothesis
import msgspec
import pydantic
import pytest
from hypothesis import strategies
from openai.types.chat import completion_create_params

from holdfast import content_parts, types
from holdfast.model import base, request_common
from holdfast.model.openai import request as openai_request
from tests.support.provider_calls import (
    IMAGE,
    TOOL,
    any_message,
    call,
    call_message,
    expand,
    message,
    reasoning,
    result_message,
)

DIALECT = openai_request.Dialect(provider="some")
OTHER = openai_request.Dialect(provider="other")
HI = message("user", "hi")
SEEN = {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,aGk="}}


def build(
    messages: Sequence[types.Message],
    dialect: openai_request.Dialect = DIALECT,
    *,
    without: Sequence[str] = (),
    extra: dict[str, Any] | None = None,
    **more: Any,
) -> Any:
    """Return the request as the provider decodes it."""
    body = openai_request.build(
        base.Request(messages=messages, **more), dialect, model="m", extra=extra, without=without
    )
    return msgspec.json.decode(request_common.encode(body))


def build_turns(*messages: types.Message, dialect: openai_request.Dialect = DIALECT, **more: Any) -> Any:
    return build(messages, dialect, **more)["messages"]


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any, *calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more, **({"tool_calls": list(calls)} if calls else {})}


def function(id: str, arguments: str = "{}", name: str = "read_file", **more: Any) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def tool(id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content}


TWO_CALLS = [HI, call_message(call("1"), call("2"))]
TWO_SENT = [user("hi"), assistant(None, function("1"), function("2"))]
TURNS: dict[str, tuple[list[types.Message], list[dict[str, Any]]]] = {
    "nothing": ([], [user(request_common.OPENING)]),
    "text and image": (
        [message("user", [{"type": "text", "text": "look"}, IMAGE]), HI],
        [user([{"type": "text", "text": "look"}, SEEN, {"type": "text", "text": "hi"}])],
    ),
    "missing image": (
        [message("user", [{"type": "image", "blob": "abc"}])],
        [user([{"type": "text", "text": request_common.NO_PICTURE}])],
    ),
    "assistant first and last": (
        [message("assistant", "a")],
        [user(request_common.OPENING), assistant("a"), user(request_common.GO_ON)],
    ),
    "system in between": ([HI, message("system", "mind")], [user("hi\n\n<system>\nmind\n</system>")]),
    "id used again": (
        [HI, call_message(call("1")), call_message(call("1")), result_message("1", "b")],
        [
            user("hi"),
            assistant(None, function("1")),
            tool("1", request_common.NO_RESULT),
            assistant(None, function("1")),
            tool("1", "b"),
        ],
    ),
    "image of a tool": (
        [*TWO_CALLS, result_message("1", [{"type": "text", "text": "a"}, IMAGE]), result_message("2", "b")],
        [*TWO_SENT, tool("1", "a"), tool("2", "b"), user([{"type": "text", "text": openai_request.IMAGES}, SEEN])],
    ),
}


@pytest.mark.parametrize(("messages", "expected"), TURNS.values(), ids=TURNS)
def test_roles_alternate_and_results_are_paired(messages: list[types.Message], expected: list[dict[str, Any]]) -> None:
    assert build_turns(*messages) == expected
    assert build_turns(*messages) == expected, "the parts cached with the messages give the same"


def test_arguments_are_sent_as_the_text_of_an_object() -> None:
    calls = [call(f"{n}", arguments=given) for n, given in enumerate(({"path": "ü"}, '{"path": "a'))]
    sent = [function("0", '{"path":"ü"}'), function("1", '{"invalid_json":"{\\"path\\": \\"a"}')]
    assert build_turns(HI, call_message(*calls))[1] == assistant(None, *sent)


def test_notes_and_leading_system_messages_reach_the_model() -> None:
    noted = [
        content_parts.note("It is Sunday."),
        {"type": "text", "text": "Which day "},
        {"type": "text", "text": "is it?"},
    ]
    text = "It is Sunday.\n\nWhich day is it?"
    assert build_turns(HI, message("user", noted)) == [user(f"hi\n\n{text}")]
    assert build_turns(message("user", noted[:1])) == [user("It is Sunday.")]
    assert build_turns(message("user", [{"type": "note"}, {"type": "text", "text": "hi"}])) == [user("hi")]
    assert build_turns(HI, call_message(call("c1")), result_message("c1", noted))[2] == tool("c1", text)
    assert build_turns(HI, message("system", noted)) == [user(f"hi\n\n<system>\n{text}\n</system>")]
    system = [message("system", noted), message("system", "")]
    assert build_turns(*system, HI, system="a") == [{"role": "system", "content": f"a\n\n{text}"}, user("hi")]
    assert build_turns(HI, system=" ") == [user("hi")]


def test_request_has_the_requested_fields_only() -> None:
    plain = {"model": "m", "messages": [user("hi")], "stream": True, "stream_options": {"include_usage": True}}
    assert build([HI]) == plain
    described = {"name": "read_file", "description": "Reads a file.", "parameters": TOOL.parameters}
    assert build([HI], tools=[TOOL], max_output=7, temperature=0.0, extra={"seed": 1}) == {
        **plain,
        "tools": [{"type": "function", "function": described}],
        "max_tokens": 7,
        "temperature": 0.0,
        "seed": 1,
    }
    newer = openai_request.Dialect(provider="openai", max_tokens="max_completion_tokens")
    assert build([HI], newer, max_output=7)["max_completion_tokens"] == 7
    del plain["stream_options"]
    assert build([HI], without=["stream_options", "temperature"], temperature=1.0) == plain


def test_odd_tool_name_becomes_valid_and_leads_back_to_the_tool() -> None:
    odd = types.ToolSpec("files.read/it", "", {"type": "object"})
    name = build([HI], tools=[odd])["tools"][0]["function"]["name"]
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name)
    assert request_common.original_names([odd, TOOL]) == {name: "files.read/it", "read_file": "read_file"}
    assert build_turns(HI, call_message(call("1", "files.read/it")))[1]["tool_calls"][0]["function"]["name"] == name
    assert name != request_common.safe_name("files.read/it!")


@pytest.mark.parametrize(("length", "pattern"), [(40, r"[\w-]{1,40}"), (9, r"[a-zA-Z0-9]{9}")])
def test_ids_are_shortened_alike_for_call_and_result(length: int, pattern: str) -> None:
    long = "chatcmpl-tool-" + "0123456789abcdef" * 2
    messages = [HI, call_message(call(long), call("x")), result_message(long, "a"), result_message("x", "b")]
    sent = build_turns(*messages, dialect=openai_request.Dialect(provider="some", id_length=length))
    ids = [one["id"] for one in sent[1]["tool_calls"]]
    assert all(re.fullmatch(pattern, one) for one in ids)
    assert len(set(ids)) == 2
    assert sent[2:] == [tool(ids[0], "a"), tool(ids[1], "b")]


DETAILS = [{"type": "reasoning.encrypted", "data": "xyz", "index": 0}]


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({"signature": "reasoning_content"}, {"reasoning_content": "Hm."}),
        ({"hidden": msgspec.json.encode(DETAILS).decode()}, {"reasoning_details": DETAILS}),
        ({"hidden": "{not json"}, {"reasoning_details": []}),
    ],
)
def test_reasoning_goes_back_with_calls_to_its_provider_only(fields: dict[str, str], sent: dict[str, Any]) -> None:
    content = [reasoning("some", **fields), {"type": "text", "text": "a"}]
    asked = call_message(call("1"), content=content)
    assert build_turns(HI, asked)[1] == assistant("a", function("1"), **sent)
    assert build_turns(HI, asked, dialect=OTHER)[1] == assistant("a", function("1"))
    assert build_turns(HI, message("assistant", content), HI)[1] == assistant("a")


def test_extra_fields_of_a_call_go_back_to_their_provider_only() -> None:
    extra = {"extra_content": {"google": {"thought_signature": "x"}}}
    asked = call_message(call("1", extra={"some": extra}))
    assert build_turns(HI, asked)[1] == assistant(None, function("1", **extra))
    assert build_turns(HI, asked, dialect=OTHER)[1] == assistant(None, function("1"))


def test_request_has_no_metadata_and_no_unpaired_surrogates() -> None:
    odd = types.ToolSpec("t", "a \ud83d b", {"type": "object", "properties": {"\udc00": {}}})
    sent = build([message("user", "hello", metadata={"secret": 1})], system="half \ud83d", tools=[odd])
    assert sent["messages"][0]["content"] == "half ?"
    assert sent["tools"][0]["function"]["description"] == "a ? b"
    assert "secret" not in str(sent)


ANY = any_message("some")
KNOWN = pydantic.TypeAdapter(completion_create_params.CompletionCreateParamsStreaming)


@hypothesis.given(strategies.lists(ANY, max_size=12))
def test_any_context_becomes_a_valid_request(messages: list[types.Message]) -> None:
    # Reasoning comes back to its provider only, in fields that the SDK does not know.
    body = build(messages, OTHER, system="s", tools=[TOOL], temperature=1.0)
    assert expand(KNOWN.validate_python(body)) == body
    sent = build_turns(*messages, system="s")[1:]
    assert (sent[0]["role"], sent[-1]["role"] != "assistant") == ("user", True)
    open_ids: list[str] = []
    last = ""
    for turn in sent:
        role = turn["role"]
        if role == "tool":
            assert turn["tool_call_id"] == open_ids.pop(0)
            assert isinstance(turn["content"], str)
        else:
            assert role in ("user", "assistant")
            assert (open_ids, role != last) == ([], True)
            assert turn["content"] or turn.get("tool_calls")
        open_ids = [one["id"] for one in turn["tool_calls"]] if turn.get("tool_calls") else open_ids
        assert len(set(open_ids)) == len(open_ids)
        for one in turn.get("tool_calls", ()):
            assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", one["id"])
            assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", one["function"]["name"])
            assert isinstance(msgspec.json.decode(one["function"]["arguments"]), dict)
        last = role
    assert open_ids == []


@hypothesis.given(strategies.lists(ANY, max_size=8), strategies.lists(strategies.sampled_from(["", "a"]), min_size=1))
def test_longer_context_begins_with_the_shorter_one(messages: list[types.Message], more: list[str]) -> None:
    shorter = build_turns(*messages, HI)
    longer = build_turns(*messages, HI, message("assistant", "y"), *(message("user", one) for one in more))
    assert longer[: len(shorter)] == shorter


@hypothesis.given(strategies.lists(ANY, max_size=8))
def test_no_text_is_lost(messages: list[types.Message]) -> None:
    numbered = [
        message(one.role, f"said-{at}", tool_calls=one.tool_calls, tool_call_id=one.tool_call_id)
        for at, one in enumerate(messages)
    ]
    sent = str(build_turns(*numbered))
    assert all(f"said-{at}" in sent for at in range(len(messages)))
