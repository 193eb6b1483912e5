"""The events that a run emits and the commands that a front end sends: two closed unions.

Front ends render these events and send these commands; the runtime has no other interface.
"""

from __future__ import annotations

from typing import Any, Literal, Self

import msgspec

from holdfast import errors, types

Level = Literal["info", "warning", "error"]

Exit = Literal[
    "completed", "interrupted", "steps", "cost", "overflow", "model", "cut", "lease_lost", "busy", "store", "failed"
]
"""Why a turn ended: answered; interrupted; the limit of steps or cost reached; the context too large; the model failed;
its reply was cut off; the lease was lost; another turn is running; the store failed; any other error."""


class Truncated(msgspec.Struct, frozen=True):
    """The part of the user's message that was sent to the model, if it did not fit into the window."""

    characters: int
    """The length of the message, all of which is stored."""
    sent: int
    """About how many of them were sent."""
    images: int = 0
    """The number of images that were left out."""


class TurnResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a turn. All fields are set, whatever the exit reason."""

    final_response: str
    """The reply; after a failure, the text received until then."""
    messages: tuple[types.Message, ...]
    """The messages that the turn appended to the log, the user's message first."""
    api_calls: int
    completed: bool
    """Whether the reply is complete."""
    failed: bool
    partial: bool
    """Whether the reply was cut off after a part of it."""
    interrupted: bool
    error: str | None
    """One sentence for people if the turn was not completed."""
    exit_reason: Exit
    usage: types.Usage
    session_id: str
    conversation_id: str
    refused: bool = False
    """Whether the provider declined to answer, or to continue."""
    truncated: Truncated | None = None
    """The part of the message that was sent to the model, if not all of it."""
    output: Any = None
    """The reply as a value of the turn's `output_type`."""

    def raise_for_status(self) -> Self:
        """Return the result if the turn was completed. Raises TurnFailed otherwise."""
        if not self.completed:
            raise errors.TurnFailed(self.error, exit_reason=self.exit_reason)
        return self


# --- events -------------------------------------------------------------------------------------------


class Event(msgspec.Struct, frozen=True, tag_field="type"):
    """The base class of all events."""


class TurnQueued(Event, frozen=True, tag="turn.queued"):
    """The message is queued, because another turn of this conversation is running."""

    holder: str


class TurnStarted(Event, frozen=True, tag="turn.start"):
    """The user's message is stored, and the turn begins."""

    conversation_id: str
    session_id: str
    text: str
    seq: int
    notice: str = ""
    """The kind of notice, if a program and not a user wrote the message."""


class TextDelta(Event, frozen=True, tag="text.delta"):
    """A piece of the reply."""

    text: str


class ReasoningDelta(Event, frozen=True, tag="reasoning.delta"):
    """A piece of the model's reasoning."""

    text: str


class MessageStored(Event, frozen=True, tag="message.stored"):
    """A message of the turn is in the log."""

    seq: int
    uid: str
    role: types.Role


class ToolStarted(Event, frozen=True, tag="tool.start"):
    """A tool was called."""

    call_id: str
    name: str
    arguments: str


class ToolFinished(Event, frozen=True, tag="tool.complete"):
    """A tool call ended. `preview` is the beginning of its result, which is in the log."""

    call_id: str
    name: str
    ok: bool
    preview: str


class ToolProgress(Event, frozen=True, tag="tool.progress"):
    """Progress or output of a running tool; the log has only its result."""

    call_id: str
    text: str


class ApprovalAsked(Event, frozen=True, tag="approval.request"):
    """A tool call needs an approval, and the turn waits for it. `Approve` answers."""

    request_id: str
    call_id: str
    tool: str
    summary: str
    detail: str = ""
    danger: str = ""
    """Why the call is dangerous. Such a call can be approved `once` only."""
    remembers: str = ""
    """The rule that `conversation` and `always` would add, in words; empty if only `once` is possible."""
    number: int = 0
    """The number of the question in its conversation, as in `/approve 2`."""


class ApprovalSettled(Event, frozen=True, tag="approval.settled"):
    """An approval was answered by any client, or can no longer be answered."""

    request_id: str
    allowed: bool
    by: str


class Notice(Event, frozen=True, tag="notice"):
    """A message of the program to people, in one sentence."""

    text: str
    level: Level = "info"
    to_chats: bool = False
    """Whether it is also sent to chats, which otherwise show only replies and questions."""


class Titled(Event, frozen=True, tag="titled"):
    """The title of the conversation changed."""

    title: str | None


class Compacted(Event, frozen=True, tag="compacted"):
    """A summary replaced everything up to `cut_seq`. `before` and `after` are the tokens of the context.

    `model` wrote the summary; None: it is an extract. `remark` states that, and why summaries were rejected.
    """

    session_id: str
    cut_seq: int
    before: int
    after: int
    model: str | None = None
    remark: str = ""


class Answer(Event, frozen=True, tag="answer"):
    """The output of a command: plain text of one or more lines."""

    text: str


class Say(Event, frozen=True, tag="say"):
    """The message that a command expands to. The client submits it as if the user had typed it."""

    text: str
    content: types.Content | None = None
    """The message with its parts, if it has more than text."""


class Moved(Event, frozen=True, tag="moved"):
    """The client continues in this conversation; `new` if the next message creates it."""

    conversation_id: str
    new: bool = False


class Quit(Event, frozen=True, tag="quit"):
    """The client should close."""


class TurnFinished(Event, frozen=True, tag="turn.complete"):
    """The turn ended."""

    result: TurnResult


AnyEvent = (
    TurnQueued
    | TurnStarted
    | TextDelta
    | ReasoningDelta
    | MessageStored
    | ToolStarted
    | ToolFinished
    | ToolProgress
    | ApprovalAsked
    | ApprovalSettled
    | Notice
    | Titled
    | Compacted
    | Answer
    | Say
    | Moved
    | Quit
    | TurnFinished
)


class Emitted(msgspec.Struct, frozen=True):
    """An event and its number among the events that this process emitted for the conversation, from 1."""

    conversation_id: str
    number: int
    event: AnyEvent


# --- commands -----------------------------------------------------------------------------------------


class Submit(msgspec.Struct, frozen=True, tag_field="type", tag="submit"):
    """A message to the agent. The uid makes a retry harmless; one is generated if none is given."""

    text: str
    uid: str | None = None
    content: types.Content | None = None
    """The message with its parts, if it has more than text."""
    route: str | None = None
    """The chat key to bind if the message creates the conversation."""
    instructions: str = ""
    """Instructions of the client for this turn, added to the system prompt and not stored."""
    max_output: int | None = None
    """The longest reply of this turn in tokens; None for the agent's own limit."""


class Interrupt(msgspec.Struct, frozen=True, tag_field="type", tag="interrupt"):
    """Interrupt the running turn. The part of the reply received so far is stored."""


class Steer(msgspec.Struct, frozen=True, tag_field="type", tag="steer"):
    """Add a message to the running turn before its next step; without a running turn, it starts one.

    The uid makes a retry harmless; in the log it has the prefix `steer:`.
    """

    text: str
    uid: str | None = None


Place = Literal["terminal", "once", "chat", "editor", "web"]
"""The kinds of front ends; some commands exist in some of them only. `once` is `holdfast -p`."""


class Command(msgspec.Struct, frozen=True, tag_field="type", tag="command"):
    """A slash command of a user who is allowed to use it."""

    line: str
    place: Place = "terminal"


Answered = Literal["once", "conversation", "always", "deny"]


class Approve(msgspec.Struct, frozen=True, tag_field="type", tag="approve"):
    """The answer to `ApprovalAsked`, from a user who is allowed to answer."""

    request_id: str
    answer: Answered
    by: str = ""
    reason: str = ""
    """The reason of a denial, which is sent to the model."""


AnyCommand = Submit | Interrupt | Steer | Command | Approve
