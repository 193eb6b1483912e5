"""A schema that a provider would refuse never reaches one."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.tools import registry
from holdfast.tools.mcp import schemas


def test_a_plain_schema_is_passed_on_as_it_is() -> None:
    given = {"type": "object", "properties": {"a": {"type": "string", "minLength": 1}}, "required": ["a"]}
    assert schemas.convert_schema(given) == given


def test_what_providers_refuse_at_the_top_is_left_to_the_server() -> None:
    told = schemas.convert_schema(
        {"$schema": "http://json-schema.org/draft-07/schema#", "anyOf": [{"required": ["a"]}], "properties": {"a": {}}}
    )
    assert told == {"type": "object", "properties": {"a": {}}}


@pytest.mark.parametrize(
    "given", [{"type": "object"}, {"type": "object", "properties": {}, "additionalProperties": {}}]
)
def test_a_tool_that_takes_anything_can_be_given_anything(given: dict[str, Any]) -> None:
    assert registry.check_arguments({"x": 1}, schemas.convert_schema(given)) == {"x": 1}


def test_a_tool_that_takes_nothing_is_given_nothing() -> None:
    told = schemas.convert_schema({"type": "object", "additionalProperties": False})
    assert told["additionalProperties"] is False


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (deep(10_000), "nested"),
        ({"description": "x" * 20_000}, "larger"),
        ({"properties": {"a": {"type": "thing"}}}, "no valid"),
        ({"properties": {"a": {"pattern": 3}}}, "no valid"),
        ({"required": [1]}, "no valid"),
        ({"properties": {"a b": {}}}, "name"),
        ({"properties": {"x" * 65: {}}}, "name"),
        ({"properties": {"a": True}}, "as an object"),
    ],
)
def test_a_schema_that_cannot_be_told_is_refused_with_a_reason(given: dict[str, Any], why: str) -> None:
    with pytest.raises(schemas.UnusableTool, match=why):
        schemas.convert_schema(given)
