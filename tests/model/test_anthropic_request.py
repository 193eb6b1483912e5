"""Requests to Anthropic: any context becomes a valid request, also to the SDK, and the same bytes every time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import hypothesis
import msgspec
import pydantic
import pytest
from anthropic.types import message_create_params
from hypothesis import strategies

from holdfast import content_parts, types
from holdfast.model import request_common
from tests.support.provider_calls import (
    TOOL,
    anthropic_body,
    any_message,
    call,
    call_message,
    expand,
    message,
    reasoning,
    result_message,
)

MARK = {"cache_control": {"type": "ephemeral"}}
HI = message("user", "hi")


def build_turns(messages: Sequence[types.Message], **more: Any) -> Any:
    """Build a request and return its messages without cache marks."""
    turns = anthropic_body(messages, **more)["messages"]
    for turn in turns:
        for block in turn["content"]:
            block.pop("cache_control", None)
    return turns


def text(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": given} for given in texts]


def user(*parts: str | dict[str, Any]) -> dict[str, Any]:
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return {"role": "user", "content": content}


def assistant(*parts: str | dict[str, Any]) -> dict[str, Any]:
    return {**user(*parts), "role": "assistant"}


def tool_use(id: str, name: str = "read_file", input: Any = None) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": input or {}}


def tool_result(id: str, *texts: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, **({"content": text(*texts)} if texts else {})}


OPENING = user(request_common.OPENING)
TURNS: dict[str, tuple[list[types.Message], list[dict[str, Any]]]] = {
    "system in between": (
        [HI, message("system", "Be brief."), message("user", "so?")],
        [user("hi", "<system>\nBe brief.\n</system>", "so?")],
    ),
    "late result": (
        [call_message(call("a"), content="Let me look."), message("user", "quick"), result_message("a", "one")],
        [OPENING, assistant("Let me look.", tool_use("a")), user(tool_result("a", "one"), "quick")],
    ),
    "id used again": (
        [call_message(call("a")), result_message("a", "one"), call_message(call("a")), result_message("a", "two")],
        [
            OPENING,
            assistant(tool_use("a")),
            user(tool_result("a", "one")),
            assistant(tool_use("a_2")),
            user(tool_result("a_2", "two")),
        ],
    ),
    "result without a call": ([HI, result_message("gone", "left over")], [user("hi", "left over")]),
}


@pytest.mark.parametrize(("messages", "turns"), TURNS.values(), ids=TURNS)
def test_roles_alternate_and_results_are_paired(messages: list[types.Message], turns: list[dict[str, Any]]) -> None:
    assert build_turns(messages) == turns


@pytest.mark.parametrize(
    ("given", "input"),
    [
        ('{"path": "a"}', {"path": "a"}),
        ({"path": "a"}, {"path": "a"}),
        (" ", {}),
        *(
            (text, {"invalid_json": text})
            for text in ('{"path": ', "[1]", '{"n": 1e999}', '{"n": NaN}', '{"n": "\\ud800"}')
        ),
        ("[" * 9000, {"invalid_json": "[" * 9000}),
    ],
)
def test_arguments_of_a_call_are_always_an_object(given: Any, input: dict[str, Any]) -> None:
    assert build_turns([call_message(call("a", arguments=given))])[1] == assistant(tool_use("a", input=input))


def test_large_numbers_in_arguments_are_kept() -> None:
    body = anthropic_body([call_message(call("a", arguments='{"n": 12345678901234567890123}'))], raw=True)
    assert b'"input":{"n": 12345678901234567890123}' in msgspec.json.encode(body)


def test_tools_have_object_schemas_and_past_calls_have_a_tool() -> None:
    tools = [
        types.ToolSpec("a", "A.", {"properties": {}, "anyOf": [{"required": ["x"]}]}),
        types.ToolSpec("b", " ", {}),
    ]
    assert anthropic_body([], tools=tools)["tools"] == [
        {"name": "a", "description": "A.", "input_schema": {"properties": {}, "type": "object"}},
        {"name": "b", "input_schema": {"type": "object"}, **MARK},
    ]
    body = anthropic_body(
        [call_message(call("1", "b"), call("2", "a")), result_message("1", "x"), result_message("2", "y")]
    )
    assert body["tools"] == [{"name": name, "input_schema": {"type": "object"}} for name in ("a", "b")]
    assert body["tool_choice"] == {"type": "none"}
    assert "tools" not in anthropic_body([HI])


def test_system_prompt_has_leading_system_messages_and_notes() -> None:
    noted = [content_parts.note("It is Sunday."), {"type": "text", "text": "Which day is it?"}]
    assert build_turns([message("user", noted)]) == [user("It is Sunday.", "Which day is it?")]
    body = anthropic_body([message("system", noted), HI], system="Be kind.")
    noted_text = "It is Sunday.\n\nWhich day is it?"
    assert body["system"] == [{"type": "text", "text": "Be kind."}, {"type": "text", "text": noted_text, **MARK}]
    assert len(body["messages"]) == 1
    assert build_turns([HI, message("system", noted)]) == [user("hi", f"<system>\n{noted_text}\n</system>")]
    assert "system" not in anthropic_body([HI], system=" ")


@pytest.mark.parametrize(
    ("image", "source"),
    [
        ({"data": "aGk=", "media_type": "image/png"}, {"type": "base64", "media_type": "image/png", "data": "aGk="}),
        ({"url": "https://a.example/x.png"}, {"type": "url", "url": "https://a.example/x.png"}),
        ({"url": "data:image/gif;base64,aGk="}, {"type": "base64", "media_type": "image/gif", "data": "aGk="}),
        ({"url": "http://a.example/x.png"}, None),
        ({"data": "aGk=", "media_type": "image/tiff"}, None),
        ({"blob": "abc"}, None),
    ],
)
def test_images_are_sent_where_the_api_accepts_them(image: dict[str, str], source: dict[str, str] | None) -> None:
    content = [{"type": "image", **image}]
    missing = text(request_common.NO_PICTURE)
    shown = [{"type": "image", "source": source}] if source else missing
    assert build_turns([message("user", content)])[0]["content"] == shown
    turns = build_turns([call_message(call("a")), result_message("a", content)])
    assert turns[2]["content"][0]["content"] == shown
    assert build_turns([message("assistant", content)])[1]["content"] == missing


@pytest.mark.parametrize(
    ("given", "block"),
    [
        (reasoning("anthropic", signature="S"), {"type": "thinking", "thinking": "Hm.", "signature": "S"}),
        (reasoning("anthropic", text="", signature="S"), {"type": "thinking", "thinking": "", "signature": "S"}),
        (reasoning("anthropic", text="", hidden="H"), {"type": "redacted_thinking", "data": "H"}),
        (reasoning("anthropic"), None),
        (reasoning("openrouter", signature="S"), None),
    ],
)
def test_reasoning_goes_back_unchanged_to_its_provider(given: dict[str, Any], block: dict[str, Any] | None) -> None:
    turn = build_turns([message("assistant", [given, {"type": "text", "text": "Yes."}])])[1]
    assert turn == assistant(*([block] if block else []), "Yes.")
    turn = build_turns([call_message(call("a"), content=[given])])[1]
    assert turn == assistant(*([block] if block else []), tool_use("a"))
    assert build_turns([HI, message("assistant", [given]), HI]) == [user("hi", "hi")]  # nothing was said after it


def marks(body: Any) -> list[Any]:
    blocks = [*body.get("tools", []), *body.get("system", [])]
    for turn in body["messages"]:
        blocks += turn["content"]
    return [block for block in blocks if block.get("cache_control") == MARK["cache_control"]]


def test_cache_is_marked_after_tools_system_and_the_last_two_turns_of_the_user() -> None:
    talk = [message(("user", "assistant")[n % 2], f"{n}") for n in range(5)]  # type: ignore[arg-type]
    body = anthropic_body([*talk, message("user", "5")], system="S", tools=[TOOL])
    assert [block.get("name") or block["text"] for block in marks(body)] == ["read_file", "S", "2", "5"]


def test_longer_conversation_begins_with_the_shorter_one_and_its_mark() -> None:
    talk = [HI, call_message(call("a")), result_message("a", "x"), message("assistant", "y"), HI]
    talk += [call_message(call("a")), result_message("a", "z")]
    for end in (1, 3, 5):
        before, after = anthropic_body(talk[:end]), anthropic_body(talk[: end + 2])
        assert before["messages"][-1]["content"][-1] in marks(after)
        assert build_turns(talk[: end + 2])[: len(before["messages"])] == build_turns(talk[:end])
    fresh = [types.Message(1, "u", "s", one.role, 0.0, one.body) for one in talk]
    assert anthropic_body(talk) == anthropic_body(fresh)


@pytest.mark.parametrize(
    ("more", "fields"),
    [
        ({}, {"max_tokens": 100, "stream": True, "model": "claude"}),
        ({"max_output": 7, "temperature": 0.0}, {"max_tokens": 7, "temperature": None}),
        ({"max_output": 0}, {"max_tokens": 1}),
        ({"extra": {"thinking": {"type": "adaptive"}}}, {"thinking": {"type": "adaptive"}}),
    ],
)
def test_settings_of_the_call_are_in_the_request(more: dict[str, Any], fields: dict[str, Any]) -> None:
    body = anthropic_body([HI], **more)
    assert {name: body.get(name) for name in fields} == fields


KNOWN = pydantic.TypeAdapter(message_create_params.MessageCreateParamsStreaming)


@hypothesis.given(strategies.lists(any_message("anthropic"), max_size=12))
def test_any_context_becomes_a_valid_request(messages: list[types.Message]) -> None:
    turns = anthropic_body(messages)["messages"]
    assert [turn["role"] for turn in turns] == ["user", "assistant"] * (len(turns) // 2) + ["user"]
    open_calls: list[str] = []
    seen: set[str] = set()
    for turn in turns:
        kinds = [block["type"] for block in turn["content"]]
        assert kinds
        assert all(block["text"].strip() for block in turn["content"] if block["type"] == "text")
        answered = [block["tool_use_id"] for block in turn["content"] if block["type"] == "tool_result"]
        assert answered == open_calls
        assert kinds[: len(answered)] == ["tool_result"] * len(answered)
        assert kinds[-1] != "thinking"
        calls = [block for block in turn["content"] if block["type"] == "tool_use"]
        assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", call[key]) for call in calls for key in ("id", "name"))
        open_calls = [block["id"] for block in calls]
        assert len({*open_calls}) == len(open_calls)
        assert seen.isdisjoint(open_calls)
        seen.update(open_calls)
    assert not open_calls
    body = anthropic_body(messages, system="S", tools=[TOOL], temperature=1.0)
    assert len(marks(body)) <= 4
    assert expand(KNOWN.validate_python(body)) == body
