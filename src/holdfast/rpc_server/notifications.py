"""What a client is told unasked, as values: the notification `event`, and what each type of it carries."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from holdfast import events, types
from holdfast.rpc_server import wire_types

Beside = Literal["notice", "answer", "queued", "compacted", "tool.progress", "approval.settled"]


class MessageStart(wire_types.Value, frozen=True):
    """A message is stored, and its turn begins."""

    uid: str | None
    seq: int
    text: str
    notice: str
    """The kind of notice it is, where a program tells it and not a person."""


class MessageDelta(wire_types.Value, frozen=True):
    """A piece of the reply, or of what the model thinks."""

    kind: Literal["text", "reasoning"]
    text: str


class MessageComplete(wire_types.Value, frozen=True):
    """The turn is over. Every prompt gets exactly one of these."""

    uid: str | None
    status: events.Exit | Literal["dropped"]
    """Why it ended; `dropped`: it was taken back before it began."""
    text: str
    """What was answered; of a turn that failed, what was said until then."""
    partial: bool = False
    error: str | None = None
    last_seq: int | None = None
    """The last message that it wrote."""
    api_calls: int = 0
    usage: types.Usage = types.Usage()


class ToolStart(wire_types.Value, frozen=True):
    """A tool was called."""

    call_id: str
    name: str
    arguments: str
    line: str
    """The same on one line of as many columns as the client has."""


class ToolComplete(wire_types.Value, frozen=True):
    """What came of it; the whole of it is in the transcript."""

    call_id: str
    name: str
    ok: bool
    preview: str
    line: str


class Status(wire_types.Value, frozen=True):
    """Something beside the talk."""

    kind: Beside
    text: str
    level: events.Level = "info"
    data: dict[str, Any] = msgspec.field(default_factory=dict)


class Approval(wire_types.Value, frozen=True):
    """A tool wants to do something that somebody has to allow; the turn waits. approval.respond answers."""

    request_id: str
    call_id: str
    tool: str
    summary: str
    detail: str
    danger: str
    """Why to look twice; with it, the answer holds for this once only."""
    remembers: str
    """What `conversation` and `always` would allow from now on, in words; empty: only `once` can be answered."""
    number: int


class Failure(wire_types.Value, frozen=True):
    """Something went wrong that people should know."""

    text: str


Payload = (
    wire_types.ServerInfo
    | wire_types.Info
    | MessageStart
    | MessageDelta
    | MessageComplete
    | ToolStart
    | ToolComplete
    | Status
    | Approval
    | Failure
)

EVENTS: dict[str, type[msgspec.Struct]] = {
    "ready": wire_types.ServerInfo,
    "session.info": wire_types.Info,
    "message.start": MessageStart,
    "message.delta": MessageDelta,
    "message.complete": MessageComplete,
    "tool.start": ToolStart,
    "tool.complete": ToolComplete,
    "status": Status,
    "approval.request": Approval,
    "error": Failure,
}
"""All types of events, and what each of them carries."""


class Told(msgspec.Struct, frozen=True):
    """An event, but for the session it is about."""

    type: str
    payload: Payload


class Event(msgspec.Struct, frozen=True):
    """The parameters of the notification `event`."""

    type: str
    session_id: str | None
    """The key of the session as of then; null where it is about none."""
    payload: Payload
