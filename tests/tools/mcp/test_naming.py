"""Whatever a server is called and says, models and terminals are given what they can take."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as some

from holdfast.tools.mcp import names

ACCEPTED = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@given(some.text(), some.text())
def test_any_name_becomes_one_that_providers_accept(server: str, tool: str) -> None:
    assert ACCEPTED.fullmatch(names.tool_name(server, tool))
    assert names.tool_name(server, tool) == names.tool_name(server, tool)


@given(some.tuples(some.text(max_size=80), some.text(max_size=80)), some.tuples(some.text(), some.text()))
def test_for_any_two_tools_the_names_differ(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (names.tool_name(*one) == names.tool_name(*other)) == (one == other)


def test_no_server_can_take_the_place_of_another_one() -> None:
    pairs = [("a", "b__c"), ("a__b", "c"), ("a_", "b"), ("a", "_b"), ("a", "b"), ("A", "b"), ("a", "b "), ("a b", "c")]
    assert len({names.tool_name(*pair) for pair in pairs}) == len(pairs)
    assert names.tool_name("github", "create_issue") == "github__create_issue"


@given(some.text(max_size=3_000))
def test_any_description_is_marked_bounded_and_printable(said: str) -> None:
    told = names.description("s\x1b[2J", said)
    assert told.startswith("[Tool of the MCP server s [2J; the description is the server's.]")
    assert len(told) <= names.MAX_DESCRIPTION
    assert all(character.isprintable() or character == "\n" for character in told)


@given(some.text(max_size=500), some.integers(2, 100))
def test_any_text_becomes_one_bounded_line(text: str, limit: int) -> None:
    line = names.one_line(text, limit)
    assert len(line) <= limit
    assert line.isprintable()
