"""Approval requests in the chat: one after the other, each answered with a letter or a word.

Text typed before a request appeared is not an answer to it and returns to the prompt afterwards. So does a line that is
not an answer, unless it is a command.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast import events

ANSWERS: dict[str, events.Answered] = {
    "y": "once",
    "yes": "once",
    "once": "once",
    "c": "conversation",
    "conversation": "conversation",
    "a": "always",
    "always": "always",
    "n": "deny",
    "no": "deny",
    "deny": "deny",
}
DETAIL = ("d", "detail", "details")
BY = "at the terminal"


class OtherLine(msgspec.Struct, frozen=True):
    """A line that is not an answer."""

    line: str


Reply = events.Approve | OtherLine | Literal["detail", "stop"]


def question_text(asked: events.ApprovalAsked) -> str:
    """Return the prompt that lists the possible answers."""
    lasting = ", c this conversation, a always" if asked.remembers else ""
    return f"Allow? y once{lasting}, n no, d details > "


def parse_reply(line: str | None, request_id: str) -> Reply:
    """Parse a typed answer, None for Ctrl-C; the model is sent the text after a no."""
    if line is None:
        return "stop"
    word, _, rest = line.strip().partition(" ")
    word = word.lower().rstrip(",:.;")
    if word in DETAIL and not rest:
        return "detail"
    answer = ANSWERS.get(word)
    if answer is None or (rest.strip() and answer != "deny"):
        return OtherLine(line)
    reason = rest.strip().encode("utf-8", "replace").decode()
    return events.Approve(request_id, answer, BY, reason)
