"""Names, descriptions and schemas of a server are made safe for providers, and its secrets are redacted."""

from __future__ import annotations

import base64
import re
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.tools import registry
from holdfast.tools.mcp import content, names, schemas
from tests.support.image_files import png

ACCEPTED = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@given(st.text(), st.text())
def test_any_name_is_made_valid_for_providers(server: str, tool: str) -> None:
    assert ACCEPTED.fullmatch(names.tool_name(server, tool))
    assert names.tool_name("github", "create_issue") == "github__create_issue"


SIMILAR = st.text(st.sampled_from("aA_ -"), max_size=4) | st.text(max_size=80)


@given(st.tuples(SIMILAR, SIMILAR), st.tuples(SIMILAR, SIMILAR))
def test_names_of_any_two_tools_differ(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (names.tool_name(*one) == names.tool_name(*other)) == (one == other)


@given(st.text(max_size=3_000))
def test_any_description_is_marked_bounded_and_printable(text: str) -> None:
    shown = names.description("s\x1b[2J", text)
    assert shown.startswith("[Tool of the MCP server s [2J; the description is the server's.]")
    assert len(shown) <= names.MAX_DESCRIPTION
    assert all(character.isprintable() or character == "\n" for character in shown)


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
    assert registry.check_arguments({"x": 1}, schemas.convert_schema({"type": "object"})) == {"x": 1}


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
        ({"properties": {"x" * 65: {}}}, "name"),
        ({"properties": {"a": True}}, "as an object"),
    ],
)
def test_unusable_schema_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(schemas.UnusableTool, match=why):
        schemas.convert_schema(given)


@pytest.mark.parametrize(
    ("name", "value", "is_secret"),
    [
        ("TOKEN", "plain-words", True),
        ("apiKey", "plain-words", True),
        ("Authorization", "Bearer plainwords", True),
        ("WHERE", "postgres://me:plain-words@host/db", True),
        ("WHAT", "ghp_0123456789abcdefghij", True),
        ("PATH_TO_NOTES", "/home/somebody/notes", False),
        ("PROJECT", "0b5e9f6e-6f1c-4a53-9e53-0123456789ab", False),
    ],
)
def test_secrets_are_redacted_everywhere_and_other_values_in_errors(name: str, value: str, is_secret: bool) -> None:
    secrets = content.SecretFilter([(name, value)])
    for word in (value, value.rsplit(maxsplit=1)[-1]):
        assert secrets.redact(f"<{word}>") == ("<[redacted]>" if is_secret else f"<{word}>")
        assert secrets.redact_all(f"<{word}>") == "<[redacted]>"


def test_short_values_are_left_and_longer_ones_redacted_first() -> None:
    assert content.SecretFilter([("TOKEN", "on"), ("KEY", "a b c")]).redact_all("on a b c") == "on a b c"
    secrets = content.SecretFilter([("KEY", "password"), ("TOKEN", "password-and-more")])
    assert secrets.redact("password-and-more, password") == "[redacted], [redacted]"


def test_result_has_at_most_eight_images() -> None:
    picture = SimpleNamespace(type="image", mime_type="image/png", data=base64.b64encode(png()).decode())
    found = content.convert_result([picture] * 9, None, str)
    assert [part["type"] for part in found] == ["image"] * 8 + ["text"]
    assert found[8]["text"] == "[an image was left out: more than 8 images]"
