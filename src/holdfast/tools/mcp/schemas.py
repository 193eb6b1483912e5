"""Check the schema of a tool before it is sent to a provider.

A provider refuses a whole request because of one invalid schema, so a tool with such a schema is left out.
"""

from __future__ import annotations

import re
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import msgspec

MAX_SCHEMA_BYTES = 16_000
MAX_DEPTH = 32

_PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
# Providers refuse these at the top of a schema. Without them it accepts more arguments; the server still checks them.
_NOT_ON_TOP = ("anyOf", "oneOf", "allOf", "not", "enum", "const", "if", "then", "else", "$schema", "$id")


class UnusableTool(Exception):
    """The reason why a tool cannot be passed on to a model."""


def convert_schema(given: dict[str, Any]) -> dict[str, Any]:
    """Return a tool's schema for the model. Raise UnusableTool if providers would refuse it."""
    if _depth(given) > MAX_DEPTH:
        raise UnusableTool("its schema is nested too deeply")
    if len(msgspec.json.encode(given)) > MAX_SCHEMA_BYTES:
        raise UnusableTool(f"its schema is larger than {MAX_SCHEMA_BYTES:,} characters")
    schema = {key: value for key, value in given.items() if key not in _NOT_ON_TOP} | {"type": "object"}
    properties = schema.setdefault("properties", {})
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except (jsonschema.SchemaError, RecursionError, ValueError, TypeError):
        raise UnusableTool("its schema is no valid JSON Schema") from None
    if not all(map(_PROPERTY.fullmatch, properties)):
        raise UnusableTool("the name of an argument is not accepted by providers")
    if not all(isinstance(each, dict) for each in properties.values()):
        raise UnusableTool("an argument has no description as an object")
    if schema.get("additionalProperties") == {} or not properties or schema.get("patternProperties"):
        schema["additionalProperties"] = schema.get("additionalProperties") is not False
    return schema


def _depth(value: object) -> int:
    """Return how deeply a value is nested, up to the limit; without recursion."""
    deepest, level = 0, [value]
    while level and deepest <= MAX_DEPTH:
        inner: list[object] = []
        for each in level:
            inner.extend(each.values() if isinstance(each, dict) else each if isinstance(each, list) else ())
        level, deepest = inner, deepest + 1
    return deepest
