"""Names and descriptions of a server are made safe for providers and terminals."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from holdfast.tools.mcp import names

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


@given(st.text(max_size=500), st.integers(2, 100))
def test_any_text_becomes_one_bounded_line(text: str, limit: int) -> None:
    line = names.one_line(text, limit)
    assert len(line) <= limit
    assert line.isprintable()
