"""A function becomes a tool, and the registry checks its arguments and marks its result."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

import msgspec
import pytest

import holdfast
from holdfast import content_parts, errors, types
from holdfast.tools import base, decorator, registry
from tests.support import agents


class Place(msgspec.Struct):
    """Somewhere."""

    name: str
    floor: Annotated[int, msgspec.Meta(ge=0)] = 0


class Tree(msgspec.Struct):
    below: list[Tree] = []


async def call(tool: base.Tool, gate: base.Gate = registry.allow_reads_only, **arguments: Any) -> base.Result:
    return await registry.Registry([tool], gate).run(types.ToolCall("x", tool.spec.name, arguments))


@holdfast.tool
def every_type(
    text: str,
    count: Annotated[int, "How many."] = 3,
    share: float = 0.5,
    mode: Literal["fast", "slow"] = "fast",
    when: str | None = None,
    tags: list[str] = [],  # noqa: B006 -- each call has its own default
    place: Place | None = None,
) -> Any:
    """Takes one of each.

    And says so.
    """
    tags.append("seen")
    return [text, count, share, mode, when, tags, place]


def test_schema_is_made_from_the_signature() -> None:
    assert every_type.spec.name == "every_type"
    assert every_type.spec.description == "Takes one of each.\n\nAnd says so."
    schema = every_type.spec.parameters
    assert (schema["type"], schema["required"], schema["additionalProperties"]) == ("object", ["text"], False)
    properties = schema["properties"]
    assert properties["count"] == {"type": "integer", "default": 3, "description": "How many."}
    assert properties["mode"] == {"type": "string", "enum": ["fast", "slow"], "default": "fast"}
    assert properties["when"]["anyOf"] == [{"type": "string"}, {"type": "null"}]
    assert properties["place"]["anyOf"][0]["properties"]["floor"] == {"type": "integer", "minimum": 0, "default": 0}
    assert "$ref" not in json.dumps(schema)


async def test_defaults_are_new_in_each_call_and_nested_values_are_converted() -> None:
    for given, place in ((None, None), ({"name": "hall"}, {"name": "hall", "floor": 0})):
        content = str((await call(every_type, text="a", place=given)).content)
        assert json.loads(content) == ["a", 3, 0.5, "fast", None, ["seen"], place]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({}, "Missing arguments: text"),
        ({"text": 1}, "`text` must be of type string"),
        ({"text": "a", "share": True}, "`share` must be of type number"),
        ({"text": "a", "place": {"name": "x", "floor": -1}}, "`place.floor`: Expected `int` >= 0"),
        ({"text": "a", "other": 1}, "Unknown argument: 'other'"),
    ],
)
async def test_invalid_arguments_never_reach_the_function(arguments: dict[str, Any], reason: str) -> None:
    result = await call(every_type, **arguments)
    assert not result.ok
    assert reason in str(result.content)


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("text", "text"),
        (None, decorator.DONE),
        (Place("hall"), '{"name":"hall","floor":0}'),
        ([{"type": "text", "text": "x"}], [{"type": "text", "text": "x"}]),
        ([{"name": "x"}], '[{"name":"x"}]'),
    ],
)
async def test_any_value_is_converted_to_content(value: object, content: types.Content) -> None:
    @decorator.tool
    async def give() -> Any:
        """Gives it."""
        return value

    assert await call(give) == base.Result(content)


async def test_function_that_returns_no_json_fails() -> None:
    @decorator.tool
    def fail() -> Any:
        """Fails."""
        return object()

    result = await call(fail)
    assert (result.ok, "object, which is neither" in str(result.content)) == (False, True)


async def test_synchronous_function_does_not_block_the_loop() -> None:
    release = threading.Event()

    @decorator.tool(parallel=True)
    def wait() -> str:
        """Waits."""
        assert release.wait(60)
        return "over"

    running = asyncio.create_task(call(wait))
    await asyncio.sleep(0)
    release.set()  # Reached only if the loop is free.
    assert (await running).content == "over"
    assert wait.parallel


async def test_function_runs_after_its_approval_only() -> None:
    sent: list[str] = []
    asked: list[base.Act] = []

    @decorator.tool(approval="reach", name="send-mail")
    def send(to: str, text: str = "") -> str:
        """Sends mail."""
        sent.append(to)
        return "Sent."

    @asynccontextmanager
    async def allow(_: types.ToolCall, act: base.Act) -> AsyncIterator[None]:
        assert not sent
        asked.append(act)
        yield

    assert not (await call(send, to="Ann")).ok
    assert sent == []
    assert (await call(send, allow, to="Ann\n\x1b[2J\u202e")).content == "Sent."
    assert (asked[0].tool, asked[0].kind) == ("send-mail", "reach")
    assert asked[0].summary == 'send-mail(to="Ann\\n\\u001b[2J\\u202e")'
    sent.clear()
    await call(send, allow, to="x" * 1_000)
    assert len(asked[1].summary) <= decorator.MAX_SUMMARY + 1
    assert "x" * 1_000 in asked[1].detail


# --- invalid functions ---------------------------------------------------------------------------------------


def no_docstring(a: str) -> str:
    return a


def no_type(a) -> str:  # type: ignore[no-untyped-def]
    """Has no type."""
    return str(a)


def endless(a: Tree) -> str:
    """Has a type that contains itself."""
    return str(a)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (no_docstring, "docstring"),
        (no_type, "parameter `a` of the tool no_type needs a type"),
        (print, r"\*args"),
        (endless, "Tree contains itself"),
        (lambda: "", "not a valid tool name"),
    ],
)
def test_invalid_function_is_refused(function: Any, reason: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=reason):
        decorator.tool(function)


# --- the registry --------------------------------------------------------------------------------------------


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(errors.InvalidArgument, match="two tools"):
        registry.Registry([agents.says("x"), agents.says("x")])


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("begin", ["Error: nothing found in 3 files.", "[No result: none]"])
async def test_success_does_not_depend_on_the_words_of_a_result(begin: str, long: bool) -> None:
    text = begin + " and more" * 10_000 if long else begin

    async def run(arguments: dict[str, Any]) -> types.Content:
        if arguments:
            raise errors.ToolFailed("It is not there.")
        return text

    tools = registry.Registry([base.Tool(types.ToolSpec("own__find", "", {"properties": {"x": {}}}), run)])
    result = await tools.run(types.ToolCall("c", "own__find", {}))
    failed = await tools.run(types.ToolCall("c", "own__find", {"x": 1}))
    assert (result.ok, failed.ok) == (True, False)
    assert content_parts.is_success("own__find", result.content)
    assert not content_parts.is_success("own__find", failed.content)
    assert content_parts.text(result.content).startswith(begin)
    assert [type(part) for part in content_parts.parse(result.content)] == [content_parts.Text]
