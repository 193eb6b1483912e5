"""Answers at the terminal: letters and words, what follows a no is a reason, and nothing else is an answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import events
from holdfast.chat import approval_prompt


@pytest.mark.parametrize(
    ("line", "answer", "reason"),
    [
        ("y", "once", ""),
        ("Y", "once", ""),
        (" yes ", "once", ""),
        ("once", "once", ""),
        ("c", "conversation", ""),
        ("a", "always", ""),
        ("always", "always", ""),
        ("n", "deny", ""),
        ("no, use make instead", "deny", "use make instead"),
        ("n  not that file ", "deny", "not that file"),
        ("deny", "deny", ""),
    ],
)
def test_answers(line: str, answer: str, reason: str) -> None:
    assert approval_prompt.parse_reply(line, "q") == events.Approve("q", answer, "at the terminal", reason)  # type: ignore[arg-type]


@pytest.mark.parametrize("line", ["", " ", "yy", "ja", "yes please", "a lot", "c u", "1", "sure", "/approve", "y\ta"])
def test_whatever_is_no_answer_is_asked_again(line: str) -> None:
    assert approval_prompt.parse_reply(line, "q") == approval_prompt.OtherLine(line)


@given(st.text())
def test_for_any_line_only_a_known_word_alone_allows(line: str) -> None:
    typed = approval_prompt.parse_reply(line, "q")
    if isinstance(typed, events.Approve) and typed.answer != "deny":
        assert line.strip().lower().rstrip(",:.;") in approval_prompt.ANSWERS


def test_lasting_answers_are_offered_only_where_there_are_some() -> None:
    asked = events.ApprovalAsked("q", "c", "shell", "Run it.", remembers="shell(ls)")
    assert "a always" in approval_prompt.question_text(asked)
    assert "always" not in approval_prompt.question_text(events.ApprovalAsked("q", "c", "shell", "Run it."))
