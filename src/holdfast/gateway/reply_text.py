"""What a chat is told of a turn. Pure.

A turn that has words for the person is told by them, unchanged. One that has none is told by what became of it, so
that nobody is left without an answer; only a turn that somebody stopped after it had begun is met with silence.
"""

from __future__ import annotations

import re

from holdfast import events, redaction

FAILED, CUT = 300, 200
"""Characters of an error that are told."""
MANY = 50
"""With more messages than these, a refusal without a reason is taken for one of their size."""

TOO_LARGE = (
    "The conversation is too large for the model's context window. /compact makes it smaller; /reset begins a new one."
)
BLANK = "I worked on it, but the answer came out empty. Please try again."
NOT_RUN = "Your message was not worked on. Please send it again."
UNKNOWN = "It is not known why."

# A provider that says that it refuses, and not why.
_BARE_400 = re.compile(r"\(400\)\.?\s*$|^\s*(?:HTTP |Error )?400(?: Bad Request)?\.?\s*$", re.IGNORECASE)


def of(result: events.TurnResult, history: int) -> str | None:
    """What to say; None: nothing. `history` is how many messages the model was to see."""
    if result.final_response.strip():
        return result.final_response
    if result.failed:
        return _of_failure(result, history)
    if result.interrupted and result.api_calls:
        return None
    if result.partial:
        return f"I stopped in the middle: {_short(result.error, CUT)}"
    return BLANK if result.api_calls else NOT_RUN


def _of_failure(result: events.TurnResult, history: int) -> str:
    bare = history > MANY and _BARE_400.search(result.error or "") is not None
    if result.exit_reason == "overflow" or bare:
        return TOO_LARGE
    return f"{failure(result.error)}\nTry again, or /reset to begin a new conversation."


def failure(error: str | None) -> str:
    """Return the message for the user about an error of the model."""
    return f"That failed: {_short(error, FAILED)}"


def _short(error: str | None, most: int) -> str:
    said = redaction.redact(error or "").strip() or UNKNOWN
    return said if len(said) <= most else f"{said[: most - 1]}…"
