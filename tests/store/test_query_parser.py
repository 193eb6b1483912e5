"""Search queries and snippets: any text can be searched for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast import types
from holdfast.store.search import fts5_index, query_parser


def test_text_of_a_message_has_content_and_calls() -> None:
    call = types.ToolCall("c1", "shell", {"command": "ls"})
    parts = [{"type": "text", "text": "look"}, {"type": "image", "data": "zzz"}]
    text = query_parser.message_text(types.Body(tool_calls=(call,), content=parts))
    assert text.splitlines() == ["look", 'shell {"command":"ls"}']


@given(st.text())
def test_any_question_holds_only_quoted_words(text: str) -> None:
    asked = query_parser.parse(text)
    if asked is not None:
        outside = fts5_index.match_expressions(asked)[1].split('"')[::2]
        assert not {letter for piece in outside for letter in piece} - set("{textaround} :(ANDOR, NEAR8)*")


@given(st.text(), st.lists(st.text(min_size=1)))
def test_snippet_of_any_text_is_a_part_of_it_in_one_line(text: str, terms: list[str]) -> None:
    cut = query_parser.snippet(text, terms, width=40)
    assert cut.strip("…") in " ".join(text.split()) or cut == ""
    assert len(cut) <= 42


def test_snippet_shows_most_terms_and_tags_are_single_words() -> None:
    text = "alpha " + "x " * 200 + "alpha beta gamma " + "y " * 200
    assert "alpha beta gamma" in query_parser.snippet(text, ("alpha", "beta", "gamma"))
    assert query_parser.tag("o", "a b*\"'").isalnum()
    assert query_parser.tag("o", "a") != query_parser.tag("t", "a")
