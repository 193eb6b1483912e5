"""Answers to an approval request at the terminal: letters and words, and a reason after a denial."""

from __future__ import annotations

import pytest

from holdfast import events
from holdfast.chat import approval_prompt


@pytest.mark.parametrize(
    ("line", "answer", "reason"),
    [
        ("y", "once", ""),
        (" Yes ", "once", ""),
        ("c", "conversation", ""),
        ("always", "always", ""),
        ("n", "deny", ""),
        ("no, use make instead", "deny", "use make instead"),
    ],
)
def test_known_words_are_answers(line: str, answer: events.Answered, reason: str) -> None:
    assert approval_prompt.parse_reply(line, "q") == events.Approve("q", answer, "at the terminal", reason)


@pytest.mark.parametrize("line", ["", "yy", "yes please", "c u", "1", "/approve", "y\ta"])
def test_other_lines_are_no_answer(line: str) -> None:
    assert approval_prompt.parse_reply(line, "q") == approval_prompt.OtherLine(line)


def test_lasting_answers_are_offered_only_if_they_are_possible() -> None:
    asked = events.ApprovalAsked("q", "c", "shell", "Run it.", remembers="shell(ls)")
    assert "a always" in approval_prompt.question_text(asked)
    assert "always" not in approval_prompt.question_text(events.ApprovalAsked("q", "c", "shell", "Run it."))
