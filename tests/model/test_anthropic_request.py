"""Anthropic's requests: any context becomes one that the API takes, and the same bytes every time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import hypothesis
import msgspec
import pytest
from hypothesis import strategies

from holdfast import content_parts, types
from holdfast.model import base, request_common
from holdfast.model.anthropic import request as anthropic_request

MARK = {"cache_control": {"type": "ephemeral"}}
TOOL = types.ToolSpec("read_file", "Reads a file.", {"type": "object", "properties": {"path": {"type": "string"}}})


def message(role: types.Role, content: types.Content = "", **more: Any) -> types.Message:
    body = msgspec.json.encode({"content": content, **more}).decode()
    return types.Message(1, "u", "s", role, 0.0, body)


def call(id: str, name: str = "read_file", arguments: Any = "{}") -> dict[str, Any]:
    return {"id": id, "name": name, "arguments": arguments}


def asks(*calls: dict[str, Any], content: types.Content = "") -> types.Message:
    return message("assistant", content, tool_calls=list(calls))


def result(id: str, content: types.Content) -> types.Message:
    return message("tool", content, tool_call_id=id)


def built(messages: Sequence[types.Message], **more: Any) -> Any:
    """The request as the provider reads it."""
    extra = more.pop("extra", None)
    request = base.Request(messages=messages, **more)
    body = anthropic_request.build(request, model="claude", max_output=100, extra=extra)
    return msgspec.json.decode(msgspec.json.encode(body))


def said(messages: Sequence[types.Message], **more: Any) -> Any:
    """The messages of the request, without the marks."""
    turns = built(messages, **more)["messages"]
    for turn in turns:
        for block in turn["content"]:
            block.pop("cache_control", None)
    return turns


def text(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": given} for given in texts]


def user(*texts: str) -> dict[str, Any]:
    return {"role": "user", "content": text(*texts)}


def assistant(*texts: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text(*texts)}


def used(id: str, name: str = "read_file", input: Any = None) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": input or {}}


def answered(id: str, *texts: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, **({"content": text(*texts)} if texts else {})}


@pytest.mark.parametrize(
    ("messages", "turns"),
    [
        ([message("user", "hi")], [user("hi")]),
        ([message("user", "a"), message("user", "b")], [user("a", "b")]),
        (
            [message("user", "a"), message("assistant", "b"), message("assistant", "c"), message("user", "d")],
            [user("a"), assistant("b", "c"), user("d")],
        ),
        ([], [user(request_common.OPENING)]),
        ([message("user", " \n")], [user(request_common.OPENING)]),
        (
            [message("assistant", "Hello"), message("user", "hi")],
            [user(request_common.OPENING), assistant("Hello"), user("hi")],
        ),
        (
            [message("user", "hi"), message("assistant", "I was cut ")],
            [user("hi"), assistant("I was cut "), user(request_common.GO_ON)],
        ),
        (
            [message("user", "hi"), message("assistant", ""), message("user", "hello?")],
            [user("hi", "hello?")],
        ),
        (
            [message("user", "hi"), message("system", "Be brief."), message("user", "so?")],
            [user("hi", "<system>\nBe brief.\n</system>", "so?")],
        ),
        ([types.Message(1, "u", "s", "user", 0.0, ""), message("user", "hi")], [user("hi")]),
        ([message("user", [{"type": "text", "text": "a"}, {"type": "unheard of"}])], [user("a")]),
    ],
)
def test_roles_alternate_begin_and_end_with_the_user_and_have_no_empty_text(
    messages: list[types.Message], turns: list[dict[str, Any]]
) -> None:
    assert said(messages) == turns


@pytest.mark.parametrize(
    ("messages", "turns"),
    [
        (
            [asks(call("a"), call("b")), result("b", "two"), result("a", "one"), message("user", "and?")],
            [
                {"role": "assistant", "content": [used("a"), used("b")]},
                {"role": "user", "content": [answered("a", "one"), answered("b", "two"), *text("and?")]},
            ],
        ),
        (
            [asks(call("a"), content="Let me look."), message("user", "quick"), result("a", "one")],
            [
                {"role": "assistant", "content": [*text("Let me look."), used("a")]},
                {"role": "user", "content": [answered("a", "one"), *text("quick")]},
            ],
        ),
        (
            [asks(call("a"), call("b")), result("a", "")],
            [
                {"role": "assistant", "content": [used("a"), used("b")]},
                {"role": "user", "content": [answered("a"), answered("b", request_common.NO_RESULT)]},
            ],
        ),
        (
            [asks(call("a")), asks(call("b")), result("b", "two"), result("a", "one")],
            [
                {"role": "assistant", "content": [used("a")]},
                {"role": "user", "content": [answered("a", "one")]},
                {"role": "assistant", "content": [used("b")]},
                {"role": "user", "content": [answered("b", "two")]},
            ],
        ),
        (
            [asks(call("a")), result("a", "one"), asks(call("a")), result("a", "two")],
            [
                {"role": "assistant", "content": [used("a")]},
                {"role": "user", "content": [answered("a", "one")]},
                {"role": "assistant", "content": [used("a_2")]},
                {"role": "user", "content": [answered("a_2", "two")]},
            ],
        ),
        (
            [asks(call("a"), call("a")), result("a", "one"), result("a", "two"), result("a", "three")],
            [
                {"role": "assistant", "content": [used("a"), used("a_2")]},
                {"role": "user", "content": [answered("a", "one"), answered("a_2", "two"), *text("three")]},
            ],
        ),
        ([message("user", "x"), result("gone", "left over")], [user("x", "left over")]),
    ],
    ids=["parallel", "late", "missing", "apart", "id again", "id twice", "no call"],
)
def test_all_results_stand_right_behind_their_calls(messages: list[types.Message], turns: list[dict[str, Any]]) -> None:
    shown = said(messages)
    assert shown[1 if messages[0].role == "assistant" else 0 :] == turns


@pytest.mark.parametrize(
    ("given", "input"),
    [
        ('{"path": "a"}', {"path": "a"}),
        ({"path": "a"}, {"path": "a"}),
        ("", {}),
        (" ", {}),
        ('{"path": ', {"invalid_json": '{"path": '}),
        ("[1]", {"invalid_json": "[1]"}),
        ('"text"', {"invalid_json": '"text"'}),
        ('{"n": 1e999}', {"invalid_json": '{"n": 1e999}'}),
        ('{"n": NaN}', {"invalid_json": '{"n": NaN}'}),
        ('{"n": "\\ud800"}', {"invalid_json": '{"n": "\\ud800"}'}),
        ("[" * 9000, {"invalid_json": "[" * 9000}),
    ],
)
def test_arguments_of_a_call_are_always_an_object(given: Any, input: dict[str, Any]) -> None:
    assert said([asks(call("a", arguments=given))])[1]["content"] == [used("a", input=input)]


def test_large_numbers_in_arguments_stay_what_they_are() -> None:
    turn = anthropic_request.build(
        base.Request(messages=[asks(call("a", arguments='{"n": 12345678901234567890123}'))]), model="m", max_output=1
    )
    assert b'"input":{"n": 12345678901234567890123}' in msgspec.json.encode(turn)


@pytest.mark.parametrize("given", ["a b", "", "ü", "a.b/c", "x" * 65, "functions.read:0", "a\ud800"])
def test_ids_and_names_become_valid_and_stay_different(given: str) -> None:
    fit = request_common.safe_name(given)
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", fit)
    assert fit == request_common.safe_name(given)
    assert fit != request_common.safe_name(given + "!")


def test_a_renamed_tool_has_the_same_name_in_its_calls() -> None:
    wire = built([], tools=[types.ToolSpec("files.read", "", {})])["tools"][0]["name"]
    assert said([asks(call("x", "files.read"))])[1]["content"] == [used("x", wire)]
    assert request_common.original_names([types.ToolSpec("files.read", "", {})]) == {wire: "files.read"}


def test_ids_of_other_providers_pair_up_after_they_were_made_valid() -> None:
    turns = said([asks(call("functions.read:0")), result("functions.read:0", "ok")])
    (asked,), (told,) = turns[1]["content"], turns[2]["content"]
    assert asked["id"] == told["tool_use_id"]
    assert re.fullmatch(r"[a-zA-Z0-9_-]+", asked["id"])


def test_a_tool_has_an_object_schema() -> None:
    tools = [
        types.ToolSpec("a", "A.", {"properties": {}, "anyOf": [{"required": ["x"]}]}),
        types.ToolSpec("b", " ", {}),
    ]
    assert built([], tools=tools)["tools"] == [
        {"name": "a", "description": "A.", "input_schema": {"properties": {}, "type": "object"}},
        {"name": "b", "input_schema": {"type": "object"}, **MARK},
    ]


def test_calls_of_the_past_have_a_tool_though_none_may_be_called() -> None:
    body = built([asks(call("1", "b"), call("2", "a")), result("1", "x"), result("2", "y")])
    assert body["tools"] == [{"name": name, "input_schema": {"type": "object"}} for name in ("a", "b")]
    assert body["tool_choice"] == {"type": "none"}
    assert "tools" not in built([message("user", "hi")])


def test_what_is_noted_for_the_model_reaches_it_apart_from_what_was_said() -> None:
    noted = [content_parts.note("It is Sunday."), {"type": "text", "text": "Which day is it?"}]
    told = "<system>\nIt is Sunday.\n\nWhich day is it?\n</system>"
    assert said([message("user", noted)]) == [user("It is Sunday.", "Which day is it?")]
    assert said([message("user", "hi"), message("system", noted)]) == [user("hi", told)]
    (block,) = built([message("system", noted), message("user", "hi")])["system"]
    assert block["text"] == "It is Sunday.\n\nWhich day is it?"


def test_system_messages_at_the_beginning_belong_to_the_system_prompt() -> None:
    body = built([message("system", "You are Bo."), message("user", "hi")], system="Be kind.")
    assert body["system"] == [{"type": "text", "text": "Be kind."}, {"type": "text", "text": "You are Bo.", **MARK}]
    assert len(body["messages"]) == 1
    assert "system" not in built([message("user", "hi")], system=" ")


@pytest.mark.parametrize(
    ("image", "block"),
    [
        ({"data": "aGk=", "media_type": "image/png"}, {"type": "base64", "media_type": "image/png", "data": "aGk="}),
        ({"url": "https://a.example/x.png"}, {"type": "url", "url": "https://a.example/x.png"}),
        (
            {"url": "data:image/gif;base64,aGk="},
            {"type": "base64", "media_type": "image/gif", "data": "aGk="},
        ),
        ({"url": "http://a.example/x.png"}, None),
        ({"url": "data:image/gif,raw"}, None),
        ({"data": "aGk=", "media_type": "image/tiff"}, None),
        ({"blob": "abc"}, None),
    ],
)
def test_pictures_are_shown_where_the_api_can_show_them(image: dict[str, str], block: dict[str, str] | None) -> None:
    content = [{"type": "image", **image}]
    shown = [{"type": "image", "source": block}] if block else text(request_common.NO_PICTURE)
    assert said([message("user", content)])[0]["content"] == shown
    turns = said([asks(call("a")), result("a", content)])
    assert turns[2]["content"][0]["content"] == shown
    assert said([message("assistant", content)])[1]["content"] == text(request_common.NO_PICTURE)


def thought(text: str = "Hm.", signature: str = "", hidden: str = "", provider: str = "anthropic") -> dict[str, Any]:
    return msgspec.to_builtins(content_parts.Reasoning(text, signature, hidden, provider))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("given", "block"),
    [
        (thought(signature="S"), {"type": "thinking", "thinking": "Hm.", "signature": "S"}),
        (thought("", signature="S"), {"type": "thinking", "thinking": "", "signature": "S"}),
        (thought("", hidden="H"), {"type": "redacted_thinking", "data": "H"}),
        (thought(), None),
        (thought(signature="S", provider="openrouter"), None),
        (thought("", hidden="H", provider="openai"), None),
    ],
)
def test_reasoning_goes_back_word_for_word_and_only_to_who_signed_it(
    given: dict[str, Any], block: dict[str, Any] | None
) -> None:
    turn = said([message("assistant", [given, {"type": "text", "text": "Yes."}])])[1]
    assert turn["content"] == [*([block] if block else []), *text("Yes.")]


def test_a_thought_after_which_nothing_was_said_is_not_given_back() -> None:
    signed = thought(signature="S")
    assert said([message("user", "hi"), message("assistant", [signed]), message("user", "?")]) == [user("hi", "?")]
    turn = said([asks(call("a"), content=[signed])])[1]
    assert [block["type"] for block in turn["content"]] == ["thinking", "tool_use"]


def marks(body: Any) -> list[Any]:
    blocks = [*body.get("tools", []), *body.get("system", [])]
    for turn in body["messages"]:
        blocks += turn["content"]
    return [block for block in blocks if "cache_control" in block]


def test_the_cache_is_marked_at_the_ends_of_tools_system_and_the_last_two_turns_of_the_user() -> None:
    talk = [message("user", "1"), message("assistant", "2"), message("user", "3"), message("assistant", "4")]
    body = built([*talk, message("user", "5"), message("user", "6")], system="S", tools=[TOOL])
    assert [block.get("name") or block["text"] for block in marks(body)] == ["read_file", "S", "3", "6"]
    assert all(block["cache_control"] == {"type": "ephemeral"} for block in marks(body))


def test_a_longer_conversation_begins_with_the_shorter_and_marks_where_that_ended() -> None:
    talk = [message("user", "1"), asks(call("a")), result("a", "x"), message("assistant", "y"), message("user", "2")]
    talk += [asks(call("a")), result("a", "z")]
    for end in (1, 3, 5):
        before, after = built(talk[:end]), built(talk[: end + 2])
        last = before["messages"][-1]["content"][-1]
        assert last in marks(after)
        assert said(talk[: end + 2])[: len(before["messages"])] == said(talk[:end])


def test_a_request_is_the_same_bytes_every_time_it_is_built() -> None:
    talk = [message("user", "1"), asks(call("a b", arguments="{")), result("a b", "x")]
    fresh = [types.Message(1, "u", "s", one.role, 0.0, one.body) for one in talk]
    assert built(talk) == built(talk) == built(fresh)


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
    body = built([message("user", "hi")], **more)
    assert {name: body.get(name) for name in fields} == fields


def test_half_a_surrogate_pair_does_not_stop_a_request() -> None:
    tool = types.ToolSpec("a", "\ud800", {})
    body = anthropic_request.build(
        base.Request(messages=[], system="from \udcff", tools=[tool]), model="m", max_output=1
    )
    assert bytes(request_common.encode(body)).decode("utf-8")


contents = strategies.sampled_from(["", " ", "hello", [thought(signature="S")], [{"type": "image", "blob": "b"}]])
ids = strategies.sampled_from(["a", "b", "c d", ""])
any_message = strategies.one_of(
    strategies.builds(message, strategies.sampled_from(["user", "system", "assistant"]), contents),
    strategies.builds(lambda ids, content: asks(*map(call, ids), content=content), strategies.lists(ids), contents),
    strategies.builds(result, ids, contents),
)


@hypothesis.given(strategies.lists(any_message, max_size=12))
def test_any_context_becomes_a_request_the_api_takes(messages: list[types.Message]) -> None:
    turns = built(messages)["messages"]
    assert [turn["role"] for turn in turns] == ["user", "assistant"] * (len(turns) // 2) + ["user"]
    open_calls: list[str] = []
    seen: set[str] = set()
    for turn in turns:
        kinds = [block["type"] for block in turn["content"]]
        assert kinds
        assert all(block["text"].strip() for block in turn["content"] if block["type"] == "text")
        told = [block["tool_use_id"] for block in turn["content"] if block["type"] == "tool_result"]
        assert told == open_calls
        assert kinds[: len(told)] == ["tool_result"] * len(told)
        assert kinds[-1] != "thinking"
        open_calls = [block["id"] for block in turn["content"] if block["type"] == "tool_use"]
        assert len({*open_calls}) == len(open_calls)
        assert seen.isdisjoint(open_calls)
        seen.update(open_calls)
    assert not open_calls
    assert len(marks(built(messages, system="S", tools=[TOOL]))) <= 4


def test_metadata_is_not_sent() -> None:
    messages = [message("user", "hello", metadata={"secret": 1}), message("assistant", "hi", metadata={"secret": 2})]
    assert messages[0].metadata == {"secret": 1}
    assert "secret" not in msgspec.json.encode(built(messages)).decode()
