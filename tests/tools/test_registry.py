"""The border between what a model asked for and what a tool is given."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast import errors, types
from holdfast.tools import port, recall, registry


def test_two_tools_of_one_name_are_refused() -> None:
    async def run(_: dict[str, Any]) -> str:
        return ""

    tool = port.Tool(types.ToolSpec("x", "", {}), run)
    with pytest.raises(errors.OutOfRange, match="two tools"):
        registry.Registry([tool, tool])


def test_a_long_output_keeps_its_beginning_and_its_end() -> None:
    text = "a" * 50_000 + "END"
    short = registry.capped(text)
    assert isinstance(short, str)
    assert len(short) < registry.MAX_OUTPUT + 200
    assert short.endswith("END")
    assert "characters left out" in short
    assert registry.capped("short") == "short"


SCHEMA = {
    "properties": {"n": {"type": "number"}, "kind": {"type": "string", "enum": ["a", "b"]}, "any": {}},
    "required": ["n"],
}


@pytest.mark.parametrize(
    ("given", "told"),
    [({}, "Missing: n"), ({"n": "1"}, "type number"), ({"n": True}, "type number"), ({"n": 1, "kind": "c"}, "a, b")],
)
def test_arguments_that_do_not_fit_are_told(given: dict[str, Any], told: str) -> None:
    with pytest.raises(errors.ToolFailed, match=told):
        registry.checked(given, SCHEMA)
    assert registry.checked({"n": 1.5, "kind": "a", "any": [1]}, SCHEMA)


def test_the_past_is_quoted_with_its_place() -> None:
    asked: list[tuple[str, int]] = []

    async def find(query: str, limit: int) -> Sequence[types.Hit]:
        asked.append((query, limit))
        return [types.Hit("s", 7, "user", "We take the train.", "train", 1.0, "c", 0.0)] if query == "train" else []

    tools = registry.Registry([recall.search_conversation(find)])

    def result(**arguments: Any) -> port.Result:
        return asyncio.run(tools.run(types.ToolCall("x", "search_conversation", arguments)))

    assert result(query="train", limit=900).content == "[message 7, user, 1970-01-01 00:00 UTC]\nWe take the train."
    assert "Nothing" in str(result(query="boat").content)
    assert asked == [("train", 50), ("boat", recall.LIMIT)]
    assert not result().ok


def test_originals_come_by_their_numbers() -> None:
    log = [
        types.Message(1, "a", "s", "user", 0.0, '{"content":"The whole of it."}'),
        types.Message(2, "b", "s", "assistant", 0.0, '{"tool_calls":[{"id":"x","name":"look","arguments":"{}"}]}'),
    ]

    async def fetch(first: int, last: int) -> Sequence[types.Message]:
        return [message for message in log if first <= message.seq <= last]

    tools = registry.Registry([recall.recall(fetch)])

    def result(**arguments: Any) -> port.Result:
        return asyncio.run(tools.run(types.ToolCall("x", "recall", arguments)))

    assert result(first=1).content == "[message 1, user]\nThe whole of it."
    assert result(first=1, from_character=4).content == "[message 1, user]\nwhole of it."
    assert "[calls look {}]" in str(result(first=1, last=900).content)
    assert "no such" in str(result(first=9).content)
    assert not result(first=0).ok
    assert not result(first=3, last=2).ok
