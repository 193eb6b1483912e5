"""The schemas of a server's tools, as far as they can be passed on to a model. Pure.

A provider refuses a whole request for one bad schema, so a tool that cannot be told is left out.
"""

from __future__ import annotations

import re
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import msgspec

LARGEST = 16_000
DEEPEST = 32

_PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
# Providers refuse these at the top of a schema; without them it allows more, and the server still checks.
_NOT_ON_TOP = ("anyOf", "oneOf", "allOf", "not", "enum", "const", "if", "then", "else", "$schema", "$id")


class Unfit(Exception):
    """Why a tool cannot be told to a model."""


def passed_on(given: object) -> dict[str, Any]:
    """A tool's schema as it can be passed on; Unfit where it cannot be."""
    if not isinstance(given, dict):
        raise Unfit("its schema is no object")
    if _depth(given) > DEEPEST:
        raise Unfit("its schema is nested too deeply")
    try:
        size = len(msgspec.json.encode(given))
    except (TypeError, ValueError, RecursionError):
        raise Unfit("its schema is not JSON") from None
    if size > LARGEST:
        raise Unfit(f"its schema is larger than {LARGEST:,} characters")
    if given.get("type", "object") != "object":
        raise Unfit("its schema describes no object")
    told = {key: value for key, value in given.items() if key not in _NOT_ON_TOP} | {"type": "object"}
    told.setdefault("properties", {})
    _check(told)
    if told.get("additionalProperties") == {} or not told["properties"] or told.get("patternProperties"):
        told["additionalProperties"] = told.get("additionalProperties") is not False
    return told


def _check(told: dict[str, Any]) -> None:
    try:
        jsonschema.Draft202012Validator.check_schema(told)
    except (jsonschema.SchemaError, RecursionError, ValueError, TypeError):
        raise Unfit("its schema is no valid JSON Schema") from None
    if not all(map(_PROPERTY.fullmatch, told["properties"])):
        raise Unfit("an argument of it has a name that models cannot be given")
    if not all(isinstance(each, dict) for each in told["properties"].values()):
        raise Unfit("an argument of it has no description as an object")


def _depth(value: object) -> int:
    """How deeply it is nested, as far as it matters; without recursion."""
    deepest, level = 0, [value]
    while level and deepest <= DEEPEST:
        inner: list[object] = []
        for each in level:
            inner.extend(each.values() if isinstance(each, dict) else each if isinstance(each, list) else ())
        level, deepest = inner, deepest + 1
    return deepest
