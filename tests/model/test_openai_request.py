"""Chat Completions requests: any context becomes one that every server takes, and the same bytes every time."""

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
from holdfast.model.openai import request as openai_request

DIALECT = openai_request.Dialect(provider="some")
TOOL = types.ToolSpec("read_file", "Reads a file.", {"type": "object", "properties": {"path": {"type": "string"}}})


def message(role: types.Role, content: types.Content = "", **more: Any) -> types.Message:
    body = msgspec.json.encode({"content": content, **more}).decode()
    return types.Message(1, "u", "s", role, 0.0, body)


def call(id: str, name: str = "read_file", arguments: Any = "{}", **more: Any) -> dict[str, Any]:
    return {"id": id, "name": name, "arguments": arguments, **more}


def asks(*calls: dict[str, Any], content: types.Content = "") -> types.Message:
    return message("assistant", content, tool_calls=list(calls))


def result(id: str, content: types.Content) -> types.Message:
    return message("tool", content, tool_call_id=id)


def built(
    messages: Sequence[types.Message],
    dialect: openai_request.Dialect = DIALECT,
    *,
    without: Sequence[str] = (),
    **more: Any,
) -> Any:
    """The request as the provider reads it."""
    extra = more.pop("extra", None)
    request = base.Request(messages=messages, **more)
    body = openai_request.build(request, dialect, model="m", extra=extra, without=without)
    return msgspec.json.decode(request_common.encode(body))


def turns(messages: Sequence[types.Message], dialect: openai_request.Dialect = DIALECT, **more: Any) -> Any:
    return built(messages, dialect, **more)["messages"]


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any, *calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more, **({"tool_calls": list(calls)} if calls else {})}


def used(id: str, arguments: str = "{}", name: str = "read_file", **more: Any) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def tool(id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content}


HI = message("user", "hi")
IMAGE = {"type": "image", "media_type": "image/jpeg", "data": "aGk="}
SEEN = {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,aGk="}}

TALKS: list[tuple[str, list[types.Message], list[dict[str, Any]]]] = [
    ("a word", [HI], [user("hi")]),
    ("nothing", [], [user(request_common.OPENING)]),
    ("two of the user's", [HI, message("user", "there")], [user("hi\n\nthere")]),
    (
        "text and a picture",
        [message("user", [{"type": "text", "text": "look"}, IMAGE]), HI],
        [user([{"type": "text", "text": "look"}, SEEN, {"type": "text", "text": "hi"}])],
    ),
    (
        "pictures elsewhere",
        [message("user", [{"type": "image", "url": "https://a.example/b.png"}, {"type": "image", "blob": "abc"}])],
        [
            user(
                [
                    {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}},
                    {"type": "text", "text": request_common.NO_PICTURE},
                ]
            )
        ],
    ),
    ("text in parts", [message("user", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])], [user("ab")]),
    ("unknown parts", [message("user", [{"type": "smell", "of": "sea"}, {"type": "text", "text": "b"}])], [user("b")]),
    ("nothing said", [HI, message("assistant"), message("user"), message("user", "b")], [user("hi\n\nb")]),
    (
        "two of the assistant's",
        [HI, message("assistant", "a"), message("assistant", "b"), HI],
        [user("hi"), assistant("a\n\nb"), user("hi")],
    ),
    (
        "two of the assistant's, the second one calls",
        [HI, message("assistant", "a"), asks(call("1"), content="b"), result("1", "r")],
        [user("hi"), assistant("a\n\nb", used("1")), tool("1", "r")],
    ),
    (
        "the assistant first and last",
        [message("assistant", "a")],
        [user(request_common.OPENING), assistant("a"), user(request_common.GO_ON)],
    ),
    (
        "the system in the midst",
        [HI, message("system", "mind the gap")],
        [user("hi\n\n<system>\nmind the gap\n</system>")],
    ),
    (
        "calls and results",
        [HI, asks(call("1"), call("2"), content="let me see"), result("1", "a"), result("2", "b")],
        [user("hi"), assistant("let me see", used("1"), used("2")), tool("1", "a"), tool("2", "b")],
    ),
    (
        "results in another order, and late",
        [HI, asks(call("1"), call("2")), result("2", "b"), message("user", "well?"), result("1", "a")],
        [user("hi"), assistant(None, used("1"), used("2")), tool("1", "a"), tool("2", "b"), user("well?")],
    ),
    (
        "a call that is running",
        [HI, asks(call("1"), call("2")), result("2", "b")],
        [user("hi"), assistant(None, used("1"), used("2")), tool("1", request_common.NO_RESULT), tool("2", "b")],
    ),
    (
        "an id used again",
        [HI, asks(call("1")), asks(call("1")), result("1", "b")],
        [
            user("hi"),
            assistant(None, used("1")),
            tool("1", request_common.NO_RESULT),
            assistant(None, used("1")),
            tool("1", "b"),
        ],
    ),
    ("a result without its call", [result("gone", "r"), HI], [user("r\n\nhi")]),
    (
        "a second result",
        [HI, asks(call("1")), result("1", "a"), result("1", "b")],
        [user("hi"), assistant(None, used("1")), tool("1", "a"), user("b")],
    ),
    (
        "a picture from a tool",
        [HI, asks(call("1"), call("2")), result("1", [{"type": "text", "text": "a"}, IMAGE]), result("2", "b")],
        [
            user("hi"),
            assistant(None, used("1"), used("2")),
            tool("1", "a"),
            tool("2", "b"),
            user([{"type": "text", "text": openai_request.IMAGES}, SEEN]),
        ],
    ),
    (
        "an empty result",
        [HI, asks(call("1")), result("1", "")],
        [user("hi"), assistant(None, used("1")), tool("1", "")],
    ),
]


@pytest.mark.parametrize(("messages", "expected"), [case[1:] for case in TALKS], ids=[case[0] for case in TALKS])
def test_talk_becomes_one_that_every_server_takes(
    messages: list[types.Message], expected: list[dict[str, Any]]
) -> None:
    assert turns(messages) == expected
    assert turns(messages) == expected, "what is kept with the messages is the same"


ARGUMENTS: list[tuple[Any, str]] = [
    ('{"path": "a"}', '{"path": "a"}'),
    ({"path": "ü"}, '{"path":"ü"}'),
    ("", "{}"),
    ("  ", "{}"),
    ('{"path": "a', '{"invalid_json":"{\\"path\\": \\"a"}'),
    ("[1]", '{"invalid_json":"[1]"}'),
    ("null", '{"invalid_json":"null"}'),
    ('{"a": NaN}', '{"invalid_json":"{\\"a\\": NaN}"}'),
    ("{} {}", '{"invalid_json":"{} {}"}'),
]


@pytest.mark.parametrize(("given", "sent"), ARGUMENTS)
def test_arguments_are_always_an_object(given: Any, sent: str) -> None:
    assert turns([HI, asks(call("1", arguments=given))])[1] == assistant(None, used("1", sent))


NOTED = [
    content_parts.note("It is Sunday."),
    {"type": "text", "text": "Which day "},
    {"type": "text", "text": "is it?"},
]


@pytest.mark.parametrize("role", ["user", "system", "tool"])
def test_what_is_noted_for_the_model_reaches_it_apart_from_what_was_said(role: types.Role) -> None:
    told = "It is Sunday.\n\nWhich day is it?"
    if role == "tool":
        assert turns([message("user", "hi"), asks(call("c1")), result("c1", NOTED)])[2] == tool("c1", told)
    elif role == "system":
        assert turns([message("system", NOTED), message("user", "hi")])[0] == {"role": "system", "content": told}
        assert turns([message("user", "hi"), message("system", NOTED)]) == [user(f"hi\n\n<system>\n{told}\n</system>")]
    else:
        assert turns([message("user", NOTED)]) == [user(told)]
        assert turns([message("user", "hi"), message("user", NOTED)]) == [user(f"hi\n\n{told}")]


def test_a_note_alone_is_said_and_a_damaged_one_is_not() -> None:
    assert turns([message("user", [content_parts.note("It is Sunday.")])]) == [user("It is Sunday.")]
    assert turns([message("user", [{"type": "note"}, {"type": "text", "text": "hi"}])]) == [user("hi")]


def test_system_messages_at_the_beginning_join_the_system_prompt() -> None:
    sent = turns([message("system", "b"), message("system", ""), HI], system="a")
    assert sent == [{"role": "system", "content": "a\n\nb"}, user("hi")]
    assert turns([HI], system=" ") == [user("hi")]


def test_request_has_what_was_asked_for_and_nothing_else() -> None:
    plain = {"model": "m", "messages": [user("hi")], "stream": True, "stream_options": {"include_usage": True}}
    assert built([HI]) == plain
    function = {"name": "read_file", "description": "Reads a file.", "parameters": TOOL.parameters}
    assert built([HI], tools=[TOOL], max_output=7, temperature=0.0, extra={"seed": 1}) == {
        **plain,
        "tools": [{"type": "function", "function": function}],
        "max_tokens": 7,
        "temperature": 0.0,
        "seed": 1,
    }
    newer = openai_request.Dialect(provider="openai", max_tokens="max_completion_tokens")
    assert built([HI], newer, max_output=7)["max_completion_tokens"] == 7
    del plain["stream_options"]
    assert built([HI], without=["stream_options", "temperature"], temperature=1.0) == plain


def test_names_fit_and_lead_back_to_the_tool() -> None:
    odd = types.ToolSpec("files.read/it", "", {"type": "object"})
    name = built([HI], tools=[odd])["tools"][0]["function"]["name"]
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name)
    assert request_common.original_names([odd, TOOL]) == {name: "files.read/it", "read_file": "read_file"}
    assert turns([HI, asks(call("1", "files.read/it"))])[1]["tool_calls"][0]["function"]["name"] == name


def test_long_ids_are_shortened_alike_for_call_and_result() -> None:
    long = "chatcmpl-tool-" + "0123456789abcdef" * 2
    for length, pattern in ((40, r"[\w-]{1,40}"), (9, r"[a-zA-Z0-9]{9}")):
        dialect = openai_request.Dialect(provider="some", id_length=length)
        sent = turns([HI, asks(call(long), call("x")), result(long, "a"), result("x", "b")], dialect)
        ids = [one["id"] for one in sent[1]["tool_calls"]]
        assert all(re.fullmatch(pattern, one) for one in ids)
        assert len(set(ids)) == 2
        assert sent[2:] == [tool(ids[0], "a"), tool(ids[1], "b")]


def test_calls_of_one_message_never_share_an_id() -> None:
    sent = turns([HI, asks(call(""), call(""), call("1"), call("1")), result("1", "a"), result("1", "b")])
    ids = [one["id"] for one in sent[1]["tool_calls"]]
    assert len(set(ids)) == 4
    assert [one["tool_call_id"] for one in sent[2:]] == ids
    assert [one["content"] for one in sent[2:]] == [request_common.NO_RESULT] * 2 + ["a", "b"]


def thought(provider: str, **more: str) -> dict[str, Any]:
    part = content_parts.Reasoning(**{"text": "hm", "provider": provider, **more})
    return msgspec.to_builtins(part)  # type: ignore[no-any-return]


def test_reasoning_goes_back_with_calls_to_its_provider_only() -> None:
    content = [thought("some", signature="reasoning_content"), {"type": "text", "text": "a"}]
    assert turns([HI, asks(call("1"), content=content)])[1] == assistant("a", used("1"), reasoning_content="hm")
    other = openai_request.Dialect(provider="other")
    assert turns([HI, asks(call("1"), content=content)], other)[1] == assistant("a", used("1"))
    assert turns([HI, message("assistant", content), HI])[1] == assistant("a")


def test_hidden_reasoning_goes_back_as_it_came() -> None:
    details = [{"type": "reasoning.encrypted", "data": "xyz", "index": 0}]
    content = [thought("some", hidden=msgspec.json.encode(details).decode())]
    assert turns([HI, asks(call("1"), content=content)])[1] == assistant(None, used("1"), reasoning_details=details)
    damaged = [thought("some", hidden="{not json")]
    assert turns([HI, asks(call("1"), content=damaged)])[1] == assistant(None, used("1"), reasoning_details=[])


def test_what_a_provider_added_to_a_call_goes_back_to_it_only() -> None:
    extra = {"some": {"extra_content": {"google": {"thought_signature": "x"}}}}
    sent = turns([HI, asks(call("1", extra=extra))])
    assert sent[1] == assistant(None, used("1", extra_content={"google": {"thought_signature": "x"}}))
    assert turns([HI, asks(call("1", extra=extra))], openai_request.Dialect(provider="other"))[1] == assistant(
        None, used("1")
    )


def test_half_a_character_cannot_spoil_a_request() -> None:
    odd = types.ToolSpec("t", "a \ud83d b", {"type": "object", "properties": {"\udc00": {}}})
    sent = built([HI], system="half \ud83d", tools=[odd])
    assert sent["messages"][0]["content"] == "half ?"
    assert sent["tools"][0]["function"]["description"] == "a ? b"


# --- for any context -----------------------------------------------------------------------------------

IDS = strategies.sampled_from(["1", "2", "a b", "", "x" * 60])
TEXTS = strategies.sampled_from(["", "a", "ü 🌊"])
CONTENTS = strategies.one_of(
    TEXTS,
    strategies.lists(
        strategies.sampled_from(
            [{"type": "text", "text": "t"}, {"type": "text", "text": ""}, IMAGE, {"type": "?"}, thought("some")]
        ),
        max_size=3,
    ),
)
CALLS = strategies.builds(
    call, IDS, strategies.sampled_from(["f", "f.g", ""]), strategies.sampled_from(["{}", "{", {}])
)
MESSAGES = strategies.one_of(
    strategies.builds(message, strategies.sampled_from(["user", "assistant", "system"]), CONTENTS),
    strategies.builds(lambda calls, said: asks(*calls, content=said), strategies.lists(CALLS, max_size=3), CONTENTS),
    strategies.builds(result, IDS, CONTENTS),
)


def check(sent: list[dict[str, Any]]) -> None:
    """What the strictest of the servers want."""
    rest = sent[1:] if sent[0]["role"] == "system" else sent
    assert rest[0]["role"] == "user"
    assert rest[-1]["role"] != "assistant"
    open_ids: list[str] = []
    last = ""
    for turn in rest:
        role = turn["role"]
        if role == "tool":
            assert turn["tool_call_id"] == open_ids.pop(0)
            assert isinstance(turn["content"], str)
        else:
            assert role in ("user", "assistant")
            assert open_ids == []
            assert role != last
            assert turn["content"] or turn.get("tool_calls")
        open_ids = [one["id"] for one in turn["tool_calls"]] if turn.get("tool_calls") else open_ids
        assert len(set(open_ids)) == len(open_ids)
        for one in turn.get("tool_calls", ()):
            assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", one["id"])
            assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", one["function"]["name"])
            assert isinstance(msgspec.json.decode(one["function"]["arguments"]), dict)
        last = role
    assert open_ids == []


@hypothesis.given(strategies.lists(MESSAGES, max_size=12))
def test_for_any_context_the_request_is_valid(messages: list[types.Message]) -> None:
    check(turns(messages, system="s"))


@hypothesis.given(strategies.lists(MESSAGES, max_size=8), strategies.lists(TEXTS, min_size=1, max_size=3))
def test_for_any_context_more_of_it_begins_with_the_same(messages: list[types.Message], more: list[str]) -> None:
    shorter = turns([*messages, message("user", "x")])
    longer = turns(
        [*messages, message("user", "x"), message("assistant", "y"), *(message("user", one) for one in more)]
    )
    assert longer[: len(shorter)] == shorter


@hypothesis.given(strategies.lists(MESSAGES, max_size=8))
def test_for_any_context_nothing_said_is_lost(messages: list[types.Message]) -> None:
    numbered = [
        message(one.role, f"said-{at}", tool_calls=one.tool_calls, tool_call_id=one.tool_call_id)
        for at, one in enumerate(messages)
    ]
    whole = request_common.encode(openai_request.build(base.Request(messages=numbered), DIALECT, model="m"))
    assert all(f"said-{at}".encode() in bytes(whole) for at in range(len(messages)))


def test_metadata_is_not_sent() -> None:
    messages = [message("user", "hello", metadata={"secret": 1}), message("assistant", "hi", metadata={"secret": 2})]
    assert messages[0].metadata == {"secret": 1}
    assert "secret" not in msgspec.json.encode(built(messages)).decode()
