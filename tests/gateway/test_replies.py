"""What a chat is told of a turn: every way a turn can end without words, by table."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import events, types
from holdfast.gateway import replies
from holdfast.runtime import wording

BARE = "openai/gpt-5 refused the request (400)."
LONG = "Something broke. " * 40


def result(**given: Any) -> events.TurnResult:
    known: dict[str, Any] = {
        "final_response": "",
        "messages": (),
        "api_calls": 1,
        "completed": False,
        "failed": False,
        "partial": False,
        "interrupted": False,
        "error": None,
        "exit_reason": "completed",
        "usage": types.Usage(),
        "session_id": "talk",
        "conversation_id": "talk",
    }
    return events.TurnResult(**{**known, **given})


FAILED = {"failed": True, "exit_reason": "model"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        pytest.param({"final_response": "Yes.\n"}, "Yes.\n", id="text passes through unchanged"),
        pytest.param(
            {"final_response": "So f", "error": "It broke off.", "partial": True, "failed": True, "exit_reason": "cut"},
            "So f",
            id="so does the beginning of one",
        ),
        pytest.param(
            {"final_response": "I stopped after 50 steps.", "exit_reason": "steps"},
            "I stopped after 50 steps.",
            id="so does the sentence a limit ends with",
        ),
        pytest.param(
            {"failed": True, "exit_reason": "overflow", "error": "Too large."}, replies.TOO_LARGE, id="too large"
        ),
        pytest.param(
            {**FAILED, "error": BARE},
            f"The request failed: {BARE}\nTry again, or /new to begin a new conversation.",
            id="a bare 400 with few",
        ),
        pytest.param(
            {**FAILED, "error": "openai/gpt-5 refused the request (400): no such tool."},
            "The request failed: openai/gpt-5 refused the request (400): no such tool.\n"
            "Try again, or /new to begin a new conversation.",
            id="a 400 with a reason",
        ),
        pytest.param(
            {**FAILED, "error": LONG},
            f"The request failed: {LONG[:299]}…\nTry again, or /new to begin a new conversation.",
            id="a long error is cut at 300",
        ),
        pytest.param(
            {**FAILED, "error": None},
            "The request failed: unknown error\nTry again, or /new to begin a new conversation.",
            id="an error without words",
        ),
        pytest.param(
            {"interrupted": True, "exit_reason": "interrupted", "error": "Interrupted."},
            None,
            id="interrupted after work is silence",
        ),
        pytest.param(
            {"interrupted": True, "exit_reason": "interrupted", "api_calls": 0},
            "Interrupted. The message was not sent.",
            id="interrupted before any",
        ),
        pytest.param({"partial": True, "error": LONG}, f"{LONG[:299]}…", id="partial is cut at 300"),
        pytest.param({"completed": True}, wording.EMPTY_REPLY, id="worked, but blank"),
        pytest.param({"completed": True, "final_response": " \n"}, wording.EMPTY_REPLY, id="only spaces"),
        pytest.param({"api_calls": 0}, wording.NOT_COMPLETED, id="never ran"),
    ],
)
def test_every_turn_is_told_by_its_words_or_by_what_became_of_it(given: dict[str, Any], said: str | None) -> None:
    assert replies.result_text(result(**given)) == said


def test_what_is_too_large_names_the_ways_out() -> None:
    assert "too large for the model's context window" in replies.TOO_LARGE
    assert "/compact" in replies.TOO_LARGE
    assert "/new" in replies.TOO_LARGE


def test_no_key_is_told_with_an_error() -> None:
    said = replies.result_text(result(**FAILED, error="The key sk-proj-abcdefgh12345678abcdefgh was refused."))
    assert said is not None
    assert "sk-proj" not in said
