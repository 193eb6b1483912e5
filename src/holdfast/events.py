"""What a run emits, and what a front end may ask: two closed unions.

Every front end renders these events and sends these commands; none has another way in.
"""

from __future__ import annotations

from typing import Any, Literal, Self

import msgspec

from holdfast import errors, types

Level = Literal["info", "warning", "error"]

Exit = Literal[
    "completed",
    "interrupted",
    "steps",
    "cost",
    "overflow",
    "model",
    "cut",
    "lease_lost",
    "busy",
    "store",
    "failed",
]
"""Why a turn ended: it was answered; somebody stopped it; a limit of steps or cost; the context is too large;
the model could not answer; its answer broke off; the lease was lost; another turn runs; the store failed;
something else did."""


class Truncated(msgspec.Struct, frozen=True):
    """How much of what the person wrote in a turn was sent to the model, where it did not fit into the window."""

    characters: int
    """Written, and stored."""
    sent: int
    """Of them, about so many were sent."""
    images: int = 0
    """Images that were left out."""


class TurnResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a turn; always complete, whatever the exit."""

    final_response: str
    """What was answered; of a turn that failed, what was said until then."""
    messages: tuple[types.Message, ...]
    """What the turn wrote to the log, in order, the user's message first."""
    api_calls: int
    completed: bool
    """Whether it was answered to the end."""
    failed: bool
    partial: bool
    """Whether the answer broke off: some of it is there."""
    interrupted: bool
    error: str | None
    """One sentence for people, when it was not completed."""
    exit_reason: Exit
    usage: types.Usage
    session_id: str
    conversation_id: str
    refused: bool = False
    """Whether the provider declined to answer, or to go on; the exit says whether anything was answered."""
    truncated: Truncated | None = None
    """What the model was sent of the message, where that was not all of it."""
    output: Any = None
    """The answer as a value of the turn's `output_type`."""

    def raise_for_status(self) -> Self:
        """Return the result if the turn was completed. Raises TurnFailed otherwise."""
        if not self.completed:
            raise errors.TurnFailed(self.error, exit_reason=self.exit_reason)
        return self


# --- what a run emits ----------------------------------------------------------------------------------


class Event(msgspec.Struct, frozen=True, tag_field="type"):
    """One of those below."""


class TurnQueued(Event, frozen=True, tag="turn.queued"):
    """The message waits: another turn of this conversation is running."""

    holder: str


class TurnStarted(Event, frozen=True, tag="turn.start"):
    """The user's message is stored, and the turn begins."""

    conversation_id: str
    session_id: str
    text: str
    seq: int
    notice: str = ""
    """The kind of notice the message is, where a program tells it and not a person."""


class TextDelta(Event, frozen=True, tag="text.delta"):
    """A piece of the reply."""

    text: str


class ReasoningDelta(Event, frozen=True, tag="reasoning.delta"):
    """A piece of what the model thinks."""

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
    """A tool's result, or why there is none; the whole of it is in the log."""

    call_id: str
    name: str
    ok: bool
    preview: str


class ToolProgress(Event, frozen=True, tag="tool.progress"):
    """How far a tool is, or a piece of what it shows meanwhile; the log has only its result."""

    call_id: str
    text: str


class ApprovalAsked(Event, frozen=True, tag="approval.request"):
    """A tool wants to do something that somebody has to allow; the turn waits. `Approve` answers."""

    request_id: str
    call_id: str
    tool: str
    summary: str
    detail: str = ""
    danger: str = ""
    """Why to look twice; with it, the answer holds for this once only."""
    remembers: str = ""
    """What `conversation` and `always` would allow from now on, in words; empty: only `once` can be answered."""
    number: int = 0
    """Which question of its conversation it is, for those who answer in words: `/approve 2`."""


class ApprovalSettled(Event, frozen=True, tag="approval.settled"):
    """It was answered, by whomever and wherever, or nobody can answer any more."""

    request_id: str
    allowed: bool
    by: str


class Notice(Event, frozen=True, tag="notice"):
    """Something people should know, in one sentence."""

    text: str
    level: Level = "info"
    to_chats: bool = False
    """Whether chats are sent it as a message too: they show replies and questions only."""


class Titled(Event, frozen=True, tag="titled"):
    """The conversation has this title now."""

    title: str | None


class Compacted(Event, frozen=True, tag="compacted"):
    """Everything up to cut_seq is represented by a summary now; tokens of the context before and after.

    `model` wrote the summary; None: it is an extract, made without one. `remark` says that, and why summaries were
    rejected.
    """

    session_id: str
    cut_seq: int
    before: int
    after: int
    model: str | None = None
    remark: str = ""


class Answer(Event, frozen=True, tag="answer"):
    """What a command has to say; plain text of one or more lines."""

    text: str


class Say(Event, frozen=True, tag="say"):
    """The words a command stands for: whoever asked submits them, as if they had been typed."""

    text: str
    content: types.Content | None = None
    """The message with its parts, where it has more than text."""


class Moved(Event, frozen=True, tag="moved"):
    """Whoever asked goes on in this conversation; `new` when it begins with the next message."""

    conversation_id: str
    new: bool = False


class Quit(Event, frozen=True, tag="quit"):
    """Whoever asked wants to leave."""


class TurnFinished(Event, frozen=True, tag="turn.complete"):
    """The turn is over."""

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
    """An event with its place: number 1, 2, 3 … among those of a conversation that this process emitted."""

    conversation_id: str
    number: int
    event: AnyEvent


# --- what a front end may ask --------------------------------------------------------------------------


class Submit(msgspec.Struct, frozen=True, tag_field="type", tag="submit"):
    """A message to the agent. The uid makes asking again harmless; one is minted when none is given."""

    text: str
    uid: str | None = None
    content: types.Content | None = None
    """The message with its parts, where it has more than text."""
    route: str | None = None
    """The chat key of a conversation that begins with it; of one that has begun, its routes stay as they are."""
    instructions: str = ""
    """Instructions of the client, part of the system prompt for this turn; they are not stored in the log."""
    max_output: int | None = None
    """The longest reply of this turn in tokens; None leaves it to the agent's limits."""


class Interrupt(msgspec.Struct, frozen=True, tag_field="type", tag="interrupt"):
    """Stop the running turn; what was said stays."""


class Steer(msgspec.Struct, frozen=True, tag_field="type", tag="steer"):
    """Tell the running turn something before its next step; without one, it is a message like any other.

    The uid makes asking again harmless: in the log it stands behind `steer:`.
    """

    text: str
    uid: str | None = None


Place = Literal["terminal", "once", "chat", "editor", "web"]
"""The kinds of front ends: some commands mean something only in some. `once` is one message of a command line."""


class Command(msgspec.Struct, frozen=True, tag_field="type", tag="command"):
    """A line that begins with a slash, from someone allowed to send it."""

    line: str
    place: Place = "terminal"


Answered = Literal["once", "conversation", "always", "deny"]


class Approve(msgspec.Struct, frozen=True, tag_field="type", tag="approve"):
    """The answer to a question whether a tool may do something; from someone allowed to answer."""

    request_id: str
    answer: Answered
    by: str = ""
    reason: str = ""
    """Of a denial, what the model is told."""


AnyCommand = Submit | Interrupt | Steer | Command | Approve
