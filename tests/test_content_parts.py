"""The parts of messages, in memory and as stored."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import content_parts, types
from holdfast.agent import loop
from holdfast.store import tool_pairs

ANY = st.one_of(
    st.builds(content_parts.Text, st.text()),
    st.builds(content_parts.Image, st.text(), st.text(), st.text(), st.text()),
    st.builds(content_parts.Reasoning, st.text(), st.text(), st.text(), st.text()),
)


@given(st.lists(ANY))
def test_any_parts_are_read_back_as_written(given_parts: list[content_parts.Part]) -> None:
    back = content_parts.parse(content_parts.encode(given_parts))
    if all(isinstance(part, content_parts.Text) for part in given_parts):
        assert "".join(part.text for part in back if isinstance(part, content_parts.Text)) == content_parts.text(
            content_parts.encode(given_parts)
        )
    else:
        assert list(back) == given_parts


def test_notes_are_for_the_model_only() -> None:
    content = [content_parts.note("It is Sunday."), {"type": "text", "text": "Hello"}, content_parts.cut("interrupted")]
    texts = ("It is Sunday.", "Hello", "\n[interrupted]")
    assert content_parts.parse(content) == tuple(map(content_parts.Text, texts))
    assert content_parts.text(content) == "Hello\n[interrupted]"


def test_unknown_and_malformed_parts_are_skipped() -> None:
    content = [{"type": "video"}, {"type": ["text"]}, {}, {"type": "text", "text": 3}, {"type": "text", "text": "x"}]
    assert content_parts.parse(content) == (content_parts.Text("x"),)
    assert content_parts.parse("") == ()


@pytest.mark.parametrize(
    ("tool", "result", "well"),
    [
        ("shell", "done\n[exit code 0]", True),
        ("shell", "Error: 0 found\n[exit code 0]", True),
        ("shell", [{"type": "text", "text": "done\n[exit code 0]"}, {"type": "output", "blob": "x"}], True),
        ("shell", "[exit code 0]\n[exit code 10]", False),
        ("shell", "x\n[killed after 2 s; give it a longer `timeout`, or use start_process]", False),
        ("shell", "Error: Not allowed: Run make.", False),
        ("read_file", "1: make\n[exit code 1]", True),
        ("read_file", "Error: There is no such file.", False),
        ("shell", loop.NOT_RUN, False),
        ("shell", tool_pairs.NO_RESULT, False),
    ],
)
def test_result_text_tells_success_from_failure(tool: str, result: types.Content, well: bool) -> None:
    assert content_parts.is_success(tool, result) == well
