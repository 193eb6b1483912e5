"""Tools made of functions: what models are told of them, what reaches them, and what comes back."""

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
from holdfast import errors, types
from holdfast.tools import base, decorator, registry


class Place(msgspec.Struct):
    """Somewhere."""

    name: str
    floor: Annotated[int, msgspec.Meta(ge=0)] = 0


class Tree(msgspec.Struct):
    below: list[Tree] = []


def result(tool: base.Tool, gate: base.Gate = registry.allow_reads_only, **arguments: Any) -> base.Result:
    return asyncio.run(registry.Registry([tool], gate).run(types.ToolCall("x", tool.spec.name, arguments)))


@decorator.tool
def everything(
    text: str,
    count: Annotated[int, "How many."] = 3,
    share: float = 0.5,
    sure: bool = False,
    mode: Literal["fast", "slow"] = "fast",
    when: str | None = None,
    tags: list[str] = [],  # noqa: B006 -- what people write
    sizes: dict[str, int] = {},  # noqa: B006
    place: Place | None = None,
) -> Any:
    """Takes one of each.

    And says so.
    """
    tags.append("seen")
    return [text, count, share, sure, mode, when, tags, sizes, place]


def test_a_model_is_told_what_the_signature_says() -> None:
    assert everything.spec.name == "everything"
    assert everything.spec.description == "Takes one of each.\n\nAnd says so."
    schema = everything.spec.parameters
    assert (schema["type"], schema["required"], schema["additionalProperties"]) == ("object", ["text"], False)
    told = schema["properties"]
    assert told["text"] == {"type": "string"}
    assert told["count"] == {"type": "integer", "default": 3, "description": "How many."}
    assert told["mode"] == {"type": "string", "enum": ["fast", "slow"], "default": "fast"}
    assert told["when"]["anyOf"] == [{"type": "string"}, {"type": "null"}]
    assert told["sizes"] == {"type": "object", "additionalProperties": {"type": "integer"}}
    assert told["place"]["anyOf"][0]["properties"]["floor"] == {"type": "integer", "minimum": 0, "default": 0}
    assert "$ref" not in json.dumps(schema)


def test_what_is_left_out_is_the_default_anew_each_time() -> None:
    for _ in range(2):
        assert json.loads(str(result(everything, text="a").content)) == [
            "a", 3, 0.5, False, "fast", None, ["seen"], {}, None,
        ]  # fmt: skip


def test_nested_values_reach_the_function_as_what_it_declared() -> None:
    @decorator.tool
    async def where(places: list[Place]) -> str:
        """Names places."""
        return ", ".join(f"{place.name} {place.floor}" for place in places)

    assert result(where, places=[{"name": "hall"}, {"name": "attic", "floor": 3}]).content == "hall 0, attic 3"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "Missing arguments: text"),
        ({"text": 1}, "`text` must be of type string"),
        ({"text": "a", "mode": "odd"}, "fast, slow"),
        ({"text": "a", "tags": [1]}, "`tags[0]`: Expected `str`, got `int`"),
        ({"text": "a", "place": {"name": "x", "floor": -1}}, "`place.floor`: Expected `int` >= 0"),
        ({"text": "a", "place": {}}, "missing required field `name`"),
        ({"text": "a", "other": 1}, "Unknown argument: 'other'"),
    ],
)
def test_what_does_not_fit_is_told_and_never_reaches_the_function(arguments: dict[str, Any], told: str) -> None:
    made = result(everything, **arguments)
    assert not made.ok
    assert told in str(made.content)


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("text", "text"),
        (None, decorator.DONE),
        (7, "7"),
        ({"a": [1]}, '{"a":[1]}'),
        ([], "[]"),
        (Place("hall"), '{"name":"hall","floor":0}'),
        ([{"type": "text", "text": "x"}], [{"type": "text", "text": "x"}]),
        ([{"name": "x"}], '[{"name":"x"}]'),
    ],
)
def test_any_value_comes_back_as_something_a_model_reads(value: object, content: object) -> None:
    @decorator.tool
    def give() -> Any:
        """Gives it."""
        return value

    assert result(give) == base.Result(content)  # type: ignore[arg-type]


def test_a_value_that_is_no_json_is_told() -> None:
    @decorator.tool
    def give() -> Any:
        """Gives it."""
        return object()

    assert "object, which is neither" in str(result(give).content)


def test_a_function_that_is_not_async_does_not_hold_up_the_loop() -> None:
    release = threading.Event()

    @decorator.tool(parallel=True)
    def wait() -> str:
        """Waits."""
        assert release.wait(60)
        return "over"

    async def story() -> base.Result:
        running = asyncio.create_task(registry.Registry([wait]).run(types.ToolCall("x", "wait", {})))
        await asyncio.sleep(0)
        release.set()  # Reached only if the loop is free.
        return await running

    assert wait.parallel
    assert asyncio.run(story()).content == "over"


def test_no_way_to_raise_leaves_anybody_waiting() -> None:
    @decorator.tool
    def stop() -> str:
        """Raises what no future can carry."""
        raise StopIteration

    assert not result(stop).ok


# --- approval ----------------------------------------------------------------------------------------------


def test_nothing_happens_before_it_is_allowed() -> None:
    sent: list[str] = []
    asked: list[base.Act] = []

    @decorator.tool(approval="reach", name="send-mail")
    def send(to: str, text: str = "") -> str:
        """Sends mail."""
        sent.append(to)
        return "Sent."

    @asynccontextmanager
    async def allows(_: types.ToolCall, act: base.Act) -> AsyncIterator[None]:
        assert not sent
        asked.append(act)
        yield

    assert not result(send, to="Ann").ok
    assert sent == []
    assert result(send, allows, to="Ann\n\x1b[2J\u202e").content == "Sent."
    (act,) = asked
    assert (act.tool, act.kind) == ("send-mail", "reach")
    assert act.summary == 'send-mail(to="Ann\\n\\u001b[2J\\u202e")'
    assert act.summary.isprintable()
    asked.clear()
    sent.clear()
    result(send, allows, to="x" * 1_000)
    assert len(asked[0].summary) <= decorator.MAX_SUMMARY + 1
    assert "x" * 1_000 in asked[0].detail


# --- what no tool can be made of -----------------------------------------------------------------------------


def no_docstring(a: str) -> str:
    return a


def no_type(a) -> str:  # type: ignore[no-untyped-def]
    """Has no type."""
    return str(a)


def stars(*a: str) -> str:
    """Takes any number."""
    return str(a)


def unknown(a: Nowhere) -> str:  # type: ignore[name-defined]  # noqa: F821
    """Has a type nobody knows."""
    return str(a)


def endless(a: Tree) -> str:
    """Has a type that contains itself."""
    return str(a)


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (no_docstring, "docstring"),
        (no_type, "parameter `a` of the tool no_type needs a type"),
        (stars, r"\*a"),
        (unknown, "Nowhere"),
        (endless, "Tree contains itself"),
        (lambda: "", "not a valid tool name"),
    ],
)
def test_a_function_no_tool_can_be_made_of_is_refused_with_the_reason(function: Any, told: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=told):
        decorator.tool(function)


def test_the_package_hands_it_out() -> None:
    assert holdfast.tool is decorator.tool
