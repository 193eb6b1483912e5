"""One sentence per event, the same in every front end.

The functions are pure and return plain text with a level; a front end adds styles, marks and line breaks, and makes the
text safe for its medium. `describe` covers every event; the other functions cover one kind each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast import events
from holdfast.agent import commands

INTERRUPTED = "Interrupted."
NOT_COMPLETED = "The turn was not completed."
EMPTY_REPLY = "The model returned an empty reply."
CUT_OFF = "The reply was cut off at the model's output limit."


class EventSentence(NamedTuple):
    """A sentence for people, and how serious it is."""

    text: str
    level: events.Level = "info"


def notice(event: events.Notice) -> EventSentence:
    """Return a notice as it is."""
    return EventSentence(event.text, event.level)


def turn_queued(_: events.TurnQueued) -> EventSentence:
    """Say that the message waits for a turn in another process."""
    return EventSentence("Waiting: a turn of this conversation is running elsewhere.", "warning")


def turn_started(event: events.TurnStarted) -> EventSentence | None:
    """Return the first line of a notice that starts a turn; None for a person's message."""
    return EventSentence(first_line(event.text)) if event.notice else None


def titled(event: events.Titled) -> EventSentence:
    """Say what the conversation is called now."""
    return EventSentence(f"Title: {event.title}" if event.title else "The title was removed.")


def compacted(event: events.Compacted) -> EventSentence:
    """Say what was compacted, and how the size of the context changed."""
    text = f"Compacted up to message {event.cut_seq:,}: {event.before:,} tokens before, {event.after:,} after."
    return EventSentence(f"{text} {event.remark}".rstrip())


def tool_started(event: events.ToolStarted) -> EventSentence:
    """Return the tool's name and its arguments."""
    return EventSentence(f"{event.name} {'' if event.arguments == '{}' else event.arguments}".rstrip())


def tool_finished(event: events.ToolFinished) -> EventSentence:
    """Return the tool's name and the first line of its result; a warning if it failed."""
    return EventSentence(f"{event.name}  {first_line(event.preview)}".rstrip(), "info" if event.ok else "warning")


def approval_asked(event: events.ApprovalAsked) -> EventSentence:
    """Say which tool wants to do what; a warning if it is dangerous."""
    return EventSentence(f"{event.tool}: {event.summary}", "warning" if event.danger else "info")


def approval_settled(event: events.ApprovalSettled) -> EventSentence:
    """Say whether a tool call was allowed, and where that was decided."""
    return (
        EventSentence(f"Allowed ({event.by}).") if event.allowed else EventSentence(f"Denied ({event.by}).", "warning")
    )


def turn_finished(result: events.TurnResult) -> EventSentence | None:
    """Say how a turn ended; None if it was answered in full."""
    if result.interrupted:
        saved = "The conversation up to here is saved." if result.messages else "The message was not sent."
        return EventSentence(f"{INTERRUPTED} {saved}", "warning")
    if not result.completed:
        return EventSentence(result.error or NOT_COMPLETED, "error" if result.failed else "warning")
    if result.partial:
        return EventSentence(CUT_OFF, "warning")
    return None if result.final_response.strip() else EventSentence(EMPTY_REPLY)


def continues_elsewhere(conversation_id: str) -> EventSentence:
    """Say that the turn of a conversation that the person left is still running."""
    return EventSentence(f"The reply continues there. Use {commands.resume_line(conversation_id)} to go back.")


def first_line(text: str) -> str:
    """Return the first line that is not blank; an empty text if there is none."""
    return next((line for line in text.splitlines() if line.strip()), "")


_SENTENCES: dict[type[events.Event], Callable[[Any], EventSentence | None]] = {
    events.Notice: notice,
    events.Answer: lambda event: EventSentence(event.text),
    events.TurnQueued: turn_queued,
    events.TurnStarted: turn_started,
    events.TurnFinished: lambda event: turn_finished(event.result),
    events.Titled: titled,
    events.Compacted: compacted,
    events.ToolStarted: tool_started,
    events.ToolFinished: tool_finished,
    events.ApprovalAsked: approval_asked,
    events.ApprovalSettled: approval_settled,
}


def describe(event: events.AnyEvent) -> EventSentence | None:
    """Return the sentence for an event; None for events that are not shown as one, such as a piece of the reply."""
    sentence = _SENTENCES.get(type(event))
    return sentence(event) if sentence else None
