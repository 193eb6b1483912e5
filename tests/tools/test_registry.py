"""The registry checks arguments before a tool runs, and marks results as successful or failed."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import content_parts, errors, types
from holdfast.tools import base, registry
from tests.support import agents


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
