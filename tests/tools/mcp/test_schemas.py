"""Schemas of tools are converted for providers or refused."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.tools import registry
from holdfast.tools.mcp import schemas

PLAIN = {"type": "object", "properties": {"a": {"type": "string", "minLength": 1}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("given", "converted"),
    [
        (PLAIN, PLAIN),
        ({"$schema": "http://x", "anyOf": [{"required": ["a"]}], "properties": {"a": {}}},
         {"type": "object", "properties": {"a": {}}}),
        ({"type": "object", "additionalProperties": False},
         {"type": "object", "properties": {}, "additionalProperties": False}),
    ],
    ids=["plain", "keywords that providers refuse", "no arguments"],
)  # fmt: skip
def test_schema_is_converted(given: dict[str, Any], converted: dict[str, Any]) -> None:
    assert schemas.convert_schema(given) == converted


@pytest.mark.parametrize(
    "given", [{"type": "object"}, {"type": "object", "properties": {}, "additionalProperties": {}}]
)
def test_open_schema_accepts_any_argument(given: dict[str, Any]) -> None:
    assert registry.check_arguments({"x": 1}, schemas.convert_schema(given)) == {"x": 1}


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
        ({"required": [1]}, "no valid"),
        ({"properties": {"x" * 65: {}}}, "name"),
        ({"properties": {"a": True}}, "as an object"),
    ],
)
def test_unusable_schema_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(schemas.UnusableTool, match=why):
        schemas.convert_schema(given)
