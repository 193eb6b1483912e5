"""What a message is made of, read back from how it is stored."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast import parts

ANY = st.one_of(
    st.builds(parts.Text, st.text()),
    st.builds(parts.Image, st.text(), st.text(), st.text(), st.text()),
    st.builds(parts.Reasoning, st.text(), st.text(), st.text(), st.text()),
)


@given(st.lists(ANY))
def test_for_any_parts_what_is_written_reads_back(given_parts: list[parts.Part]) -> None:
    back = parts.read(parts.written(given_parts))
    if all(isinstance(part, parts.Text) for part in given_parts):
        assert "".join(part.text for part in back if isinstance(part, parts.Text)) == parts.text(
            parts.written(given_parts)
        )
    else:
        assert list(back) == given_parts


def test_notes_are_for_the_model_and_cuts_for_everybody() -> None:
    content = [parts.note("It is Sunday."), {"type": "text", "text": "Hello"}, parts.cut("interrupted")]
    assert parts.read(content) == (parts.Text("It is Sunday."), parts.Text("Hello"), parts.Text("\n[interrupted]"))
    assert parts.text(content) == "Hello\n[interrupted]"


def test_what_is_unknown_or_malformed_is_skipped() -> None:
    content = [{"type": "video"}, {"type": ["text"]}, {}, {"type": "text", "text": 3}, {"type": "text", "text": "x"}]
    assert parts.read(content) == (parts.Text("x"),)
    assert parts.read("") == ()
