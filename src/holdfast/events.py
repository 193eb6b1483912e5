"""The events that an agent emits, and the commands that a front end sends: two closed unions."""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast import types

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
"""Why a turn ended: answered, interrupted, limit of steps or cost reached, context too large, model failed, answer cut
off, lease lost, another turn is running, store failed, or another failure."""


class Truncated(msgspec.Struct, frozen=True):
    """How much of the user's message was sent to the model, if it did not fit into the context window."""

    characters: int
    """The length of the message, which is stored completely."""
    sent: int
    """The approximate number of characters that were sent."""
    images: int = 0
    """The number of images that were left out."""


class TurnResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a turn."""

    final_response: str
    """The answer; for a failed turn, the text up to the failure."""
    messages: tuple[types.Message, ...]
    """The messages that the turn appended to the log, in order, starting with the user's."""
    api_calls: int
    completed: bool
    """Whether the answer is complete."""
    failed: bool
    partial: bool
    """Whether the answer was cut off."""
    interrupted: bool
    error: str | None
    """One sentence for users, if the turn was not completed."""
    exit_reason: Exit
    usage: types.Usage
    session_id: str
    conversation_id: str
    refused: bool = False
    """Whether the provider declined to answer or to continue."""
    truncated: Truncated | None = None
    """Set if the model received only a part of the message."""


# --- events ---------------------------------------------------------------------------------------------


class Event(msgspec.Struct, frozen=True, tag_field="type"):
    """The base class of events."""


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
    """The kind of notice, if a program wrote the message and not a user."""


class TextDelta(Event, frozen=True, tag="text.delta"):
    """A part of the reply."""

    text: str


class ReasoningDelta(Event, frozen=True, tag="reasoning.delta"):
    """A part of the model's reasoning."""

    text: str


class MessageStored(Event, frozen=True, tag="message.stored"):
    """A message of the turn was stored."""

    seq: int
    uid: str
    role: types.Role


class ToolStarted(Event, frozen=True, tag="tool.start"):
    """A tool was called."""

    call_id: str
    name: str
    arguments: str


class ToolFinished(Event, frozen=True, tag="tool.complete"):
    """A tool call ended. The log has the complete result."""

    call_id: str
    name: str
    ok: bool
    preview: str


class ToolProgress(Event, frozen=True, tag="tool.progress"):
    """Progress or partial output of a tool. The log has only its result."""

    call_id: str
    text: str


class ApprovalAsked(Event, frozen=True, tag="approval.request"):
    """A tool call needs an approval, and the turn waits. `Approve` answers it."""

    request_id: str
    call_id: str
    tool: str
    summary: str
    detail: str = ""
    danger: str = ""
    """Why the call is dangerous; an approval then applies to this call only."""
    remembers: str = ""
    """What `conversation` and `always` would allow, in words; if empty, only `once` is possible."""
    number: int = 0
    """The number of the question in its conversation, for answers such as `/approve 2`."""


class ApprovalSettled(Event, frozen=True, tag="approval.settled"):
    """An approval was answered by any client, or can no longer be answered."""

    request_id: str
    allowed: bool
    by: str


class Notice(Event, frozen=True, tag="notice"):
    """A message for users, in one sentence."""

    text: str
    level: Level = "info"
    to_chats: bool = False
    """Whether chat platforms, which show only replies and questions, send it as a message, too."""


class Titled(Event, frozen=True, tag="titled"):
    """The title of the conversation changed."""

    title: str | None


class Compacted(Event, frozen=True, tag="compacted"):
    """A summary replaces the messages up to cut_seq; with the tokens of the context before and after.

    `model` wrote the summary; None for an extract made without a model. `remark` states that, and why summaries were
    rejected.
    """

    session_id: str
    cut_seq: int
    before: int
    after: int
    model: str | None = None
    remark: str = ""

    @property
    def text(self) -> str:
        """The event as a sentence for users."""
        text = f"Compacted up to message {self.cut_seq:,}: {self.before:,} tokens are {self.after:,} now."
        return f"{text} {self.remark}".rstrip()


class Answer(Event, frozen=True, tag="answer"):
    """The output of a command: plain text of one or more lines."""

    text: str


class Say(Event, frozen=True, tag="say"):
    """The message that a command expands to. The client submits it as if the user had typed it."""

    text: str
    content: types.Content | None = None
    """The message with its parts, if it has more than text."""


class Moved(Event, frozen=True, tag="moved"):
    """The client continues in this conversation; `new` if it begins with the next message."""

    conversation_id: str
    new: bool = False


class Quit(Event, frozen=True, tag="quit"):
    """The user wants to leave."""


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
    """An event with its number: 1, 2, 3 … within the events of a conversation that this process emitted."""

    conversation_id: str
    number: int
    event: AnyEvent


# --- commands ------------------------------------------------------------------------------------------


class Submit(msgspec.Struct, frozen=True, tag_field="type", tag="submit"):
    """A message to the agent. The uid makes it idempotent; one is generated if it is None."""

    text: str
    uid: str | None = None
    content: types.Content | None = None
    """The message with its parts, if it has more than text."""
    route: str | None = None
    """The chat key of a new conversation. The routes of an existing one are not changed."""
    instructions: str = ""
    """Instructions of the client for the system prompt of this turn. They are not stored."""
    max_output: int | None = None
    """The maximum length of a reply in tokens; None for the agent's limits."""


class Interrupt(msgspec.Struct, frozen=True, tag_field="type", tag="interrupt"):
    """Stop the running turn; its text up to now is kept."""


class Steer(msgspec.Struct, frozen=True, tag_field="type", tag="steer"):
    """A message for the running turn, before its next step; without a running turn, an ordinary message.

    The uid makes it idempotent; in the log it has the prefix `steer:`.
    """

    text: str
    uid: str | None = None


Place = Literal["terminal", "once", "chat", "editor", "web"]
"""The kinds of front ends; some commands work only in some. `once` is a single message with -p."""


class Command(msgspec.Struct, frozen=True, tag_field="type", tag="command"):
    """A slash command, from an authorized user."""

    line: str
    place: Place = "terminal"


Answered = Literal["once", "conversation", "always", "deny"]


class Approve(msgspec.Struct, frozen=True, tag_field="type", tag="approve"):
    """The answer to ApprovalAsked, from an authorized user."""

    request_id: str
    answer: Answered
    by: str = ""
    reason: str = ""
    """The reason of a denial, which is sent to the model."""


AnyCommand = Submit | Interrupt | Steer | Command | Approve
