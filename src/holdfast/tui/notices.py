"""What is said beside the talk, in words. Pure."""

from __future__ import annotations

from typing import NamedTuple, assert_never

from holdfast import events

Told = events.TurnQueued | events.Notice | events.Answer | events.Titled | events.Compacted


class Word(NamedTuple):
    """A sentence, and how much it matters."""

    text: str
    level: events.Level = "info"


def told(event: Told) -> Word:
    """What happened beside the talk, or what a command answers."""
    match event:
        case events.Notice(words, level):
            return Word(words, level)
        case events.Answer(words):
            return Word(words)
        case events.Titled(title):
            return Word(f"Title: {title}" if title else "It has no title any more.")
        case events.TurnQueued():
            return Word("Waiting: a turn of this conversation is running elsewhere.", "warning")
        case events.Compacted():
            return Word(event.text)
        case _:
            assert_never(event)


def settled(event: events.ApprovalSettled) -> Word:
    """How a question was answered."""
    return Word(f"Allowed ({event.by}).") if event.allowed else Word(f"Denied ({event.by}).", "warning")


def ended(result: events.TurnResult) -> Word | None:
    """What is to be said of a turn that did not simply answer."""
    if result.interrupted:
        stays = "What was said stays." if result.messages else "The message was not sent."
        return Word(f"Interrupted. {stays}", "warning")
    if not result.completed:
        return Word(result.error or "The turn was not completed.", "error" if result.failed else "warning")
    return None if result.final_response else Word("(No words.)")
