"""The values of the RPC protocol: parameters, results, events and methods.

The published schema is generated from this module, with its docstrings. A new field needs a default; removing a field
or changing its meaning needs a new `PROTOCOL`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast import events, types

PROTOCOL = 1

REFUSED = -32000
"""The request cannot be carried out; `data.type` names the kind of error."""
NOT_OPEN = -32002
"""This client has not opened the session; session.resume opens it."""
NOT_FOUND = -32003
"""No such session, or several match; then `data.candidates` lists them."""

SessionId = Annotated[str, Meta(min_length=1, max_length=200, description="Any id that the session ever had.")]
Uid = Annotated[str, Meta(min_length=1, max_length=200, description="The permanent id of a message.")]
ToolProgress = Literal["all", "new", "off"]
Count = Annotated[int, Meta(ge=1, le=1000)]
Position = Annotated[int, Meta(ge=0, le=2**53)]


class WireValue(msgspec.Struct, frozen=True, kw_only=True):
    """A value of the protocol. Results and events may get more fields; clients ignore unknown ones."""


class Params(WireValue, frozen=True, forbid_unknown_fields=True):
    """Parameters of a method. Unknown fields are refused."""


class SessionParams(Params, frozen=True):
    """Parameters of a method about an open session: session.info, session.interrupt, session.close and others."""

    session_id: SessionId


class SessionResult(WireValue, frozen=True):
    """The result of a method about a session."""

    session_id: str
    """The key of the session: the head of the conversation."""


# --- sessions ------------------------------------------------------------------------------------------


class ImageParams(Params, frozen=True):
    """An image: PNG, JPEG, GIF or WebP."""

    data: str
    """The bytes in base64."""


class OptionChanges(Params, frozen=True):
    """Options of a session; omitted ones stay unchanged."""

    columns: Annotated[int, Meta(ge=20, le=1000)] | UnsetType = UNSET
    """The maximum width of lines made for display."""
    show_reasoning: bool | UnsetType = UNSET
    """Whether to send the model's reasoning."""
    tool_progress: ToolProgress | UnsetType = UNSET
    """Which tool calls to send: `all`, only the first of consecutive calls of a tool (`new`), or none (`off`)."""
    images: Annotated[list[ImageParams], Meta(max_length=8)] | UnsetType = UNSET
    """Images to attach to the next prompt."""


class SessionOptions(WireValue, frozen=True):
    """The current options of a session."""

    columns: int = 80
    show_reasoning: bool = False
    tool_progress: ToolProgress = "all"
    images: int = 0
    """The number of attached images."""


class ContextUsage(WireValue, frozen=True):
    """How full the context window is, in tokens."""

    used: int
    window: int
    soft: float
    """The share of the window from which on the conversation is compacted in the background."""
    hard: float
    """The share of the window from which on a turn waits for a compaction."""


class SessionState(SessionResult, frozen=True):
    """The state of a session."""

    conversation_id: str
    """The id of the conversation, which never changes."""
    begun: bool
    """Whether the conversation has messages; before its first one nothing is stored."""
    live: bool
    """Whether the conversation has not been ended. A message to an ended one continues it."""
    title: str | None
    pending_title: str | None
    """The title that the first message sets."""
    last_seq: int
    compacted_to: int
    """The last message that the summary replaces in the context; 0 without a summary."""
    running: bool
    """Whether a turn is running in this server."""
    queued: int
    """The number of queued prompts."""
    options: SessionOptions
    model: str | None = None
    """None until the model is known."""
    context: ContextUsage | None = None
    previous: str | None = None
    """The previous key, if the key has changed."""


class CreateParams(Params, frozen=True):
    """session.create: start a conversation, which is stored with its first prompt."""

    title: str | None = None
    options: OptionChanges = OptionChanges()


class ResumeParams(Params, frozen=True):
    """session.resume: open a conversation by an id, the beginning of an id, a title, or `last`."""

    session_id: SessionId
    options: OptionChanges = OptionChanges()


class ListParams(Params, frozen=True):
    """session.list: list conversations, the most recently active first."""

    limit: Count = 50
    skip: Position = 0


class SessionEntry(WireValue, frozen=True):
    """A conversation in a list."""

    session_id: str
    conversation_id: str
    title: str | None
    live: bool
    started_at: float
    active_at: float
    last_seq: int
    source: str
    model: str | None
    open: bool
    """Whether this client has it open."""


class ListResult(WireValue, frozen=True):
    """The result of session.list."""

    sessions: list[SessionEntry]


class OptionsParams(SessionParams, frozen=True):
    """session.options: change options."""

    options: OptionChanges


class TitleParams(SessionParams, frozen=True):
    """session.title: return the title, set it, or remove it (null)."""

    title: str | UnsetType | None = UNSET


class TitleResult(SessionResult, frozen=True):
    """The result of session.title."""

    title: str | None
    pending: bool
    """Whether the first message will set it."""


class HistoryParams(SessionParams, frozen=True):
    """session.history: read the transcript after the message `after`."""

    after: Position = 0
    limit: Count = 200


class TranscriptMessage(WireValue, frozen=True):
    """A message of the transcript."""

    seq: int
    uid: str
    session_id: str
    role: types.Role
    at: float
    text: str
    content: types.Content
    tool_calls: list[types.ToolCall]
    tool_call_id: str | None
    redacted: bool
    taken_back: bool
    """Whether an undo removed it from the context."""


class HistoryResult(SessionResult, frozen=True):
    """The result of session.history."""

    messages: list[TranscriptMessage]
    last_seq: int
    more: bool
    """Whether more messages follow: continue with `after` set to the last seq."""


class UndoParams(SessionParams, frozen=True):
    """session.undo: undo the last turns."""

    turns: Count = 1


class UndoResult(SessionResult, frozen=True):
    """The result of session.undo."""

    text: str


class CompressParams(SessionParams, frozen=True):
    """session.compress: replace older messages in the context with a summary now."""

    focus: str | None = None
    """The subject that the summary covers in most detail."""
    keep_exchanges: Count | None = None
    """The number of last exchanges to keep verbatim."""


class CompressResult(SessionResult, frozen=True):
    """The result of session.compress."""

    outcome: Literal["compacted", "nothing_to_do", "busy", "cooling_down", "failed", "exhausted"]
    reason: str
    cut_seq: int | None
    before: int
    after: int


class BranchParams(SessionParams, frozen=True):
    """session.branch: open a new conversation that shares the messages of this one; both stay open."""

    title: str | None = None


class InterruptResult(SessionResult, frozen=True):
    """The result of session.interrupt."""

    interrupted: bool
    """Whether a turn or a requested compaction was stopped."""


class SteerParams(SessionParams, frozen=True):
    """session.steer: add a message to the running turn before its next step; without a turn it becomes a prompt."""

    text: Annotated[str, Meta(min_length=1)]
    uid: Uid | None = None


class SteerResult(SessionResult, frozen=True):
    """The result of session.steer."""

    steered: bool
    prompt: SubmitResult | None
    """The prompt, if no turn was running."""


class CloseResult(SessionResult, frozen=True):
    """The result of session.close."""

    ended: bool
    """Whether the conversation was ended now. It is not if it has no messages, was ended before, is open in another
    client, or if the store failed."""


# --- prompts, commands, approvals ----------------------------------------------------------------------


class SubmitParams(Params, frozen=True):
    """prompt.submit: send a message to the agent. During a turn it is queued."""

    text: str
    session_id: SessionId | None = None
    """The default is the only open session; without one, a session is created."""
    uid: Uid | None = None
    """A message with the same uid is stored and answered once. The default is generated."""
    images: Annotated[list[ImageParams], Meta(max_length=8)] = []


class SubmitResult(SessionResult, frozen=True):
    """The result of prompt.submit. The reply follows as events; the last one is message.complete."""

    uid: str
    queued: int
    """The number of prompts that are answered first."""


class ExecParams(SessionParams, frozen=True):
    """command.exec: run a slash command."""

    line: Annotated[str, Meta(pattern="^/", max_length=100_000)]


class OutputLine(WireValue, frozen=True):
    """A line of a command's output."""

    level: Literal["answer", "info", "warning", "error"]
    text: str


class ExecResult(SessionResult, frozen=True):
    """The result of command.exec."""

    ok: bool
    output: list[OutputLine]
    prompt: SubmitResult | None = None
    """The prompt that the command submitted."""
    moved: SessionState | None = None
    """The session to continue in, which is open now; the other one stays open, too."""
    quit: bool = False
    """Whether the person wants to quit."""


class RespondParams(SessionParams, frozen=True):
    """approval.respond: answer an approval.request."""

    request_id: str
    answer: events.Answered
    reason: str = ""
    """The reason of a denial, for the model."""


class RespondResult(SessionResult, frozen=True):
    """The result of approval.respond."""

    accepted: bool
    """Whether the request was still pending: the first answer counts."""
    notice: str | None


class NoParams(Params, frozen=True):
    """server.info has no parameters."""


class ServerInfo(WireValue, frozen=True):
    """The result of server.info, and the payload of `ready`."""

    protocol: int
    program: str
    model: str | None
    notice: str | None
    methods: list[str]


# --- events --------------------------------------------------------------------------------------------


DeltaKind = Literal["text", "reasoning"]
StatusKind = Literal["notice", "answer", "queued", "compacted", "tool.progress", "approval.settled"]


class MessageStart(WireValue, frozen=True):
    """A message was stored and its turn begins."""

    uid: str | None
    seq: int
    text: str
    notice: str
    """The kind of notice, if a program sent the message and not a person."""


class MessageDelta(WireValue, frozen=True):
    """A piece of the reply, or of the model's reasoning."""

    kind: DeltaKind
    text: str


class MessageComplete(WireValue, frozen=True):
    """The turn is over. Every prompt gets exactly one of these."""

    uid: str | None
    status: events.Exit | Literal["dropped"]
    """Why the turn ended; `dropped`: the prompt was removed from the queue."""
    text: str
    """The reply; of a turn that failed, the part before the failure."""
    partial: bool = False
    error: str | None = None
    last_seq: int | None = None
    """The last message that the turn stored."""
    api_calls: int = 0
    usage: types.Usage = types.Usage()


class ToolStart(WireValue, frozen=True):
    """A tool was called."""

    call_id: str
    name: str
    arguments: str
    line: str
    """The call on one line, within the client's columns."""


class ToolComplete(WireValue, frozen=True):
    """A tool call ended; the whole result is in the transcript."""

    call_id: str
    name: str
    ok: bool
    preview: str
    line: str


class StatusNotice(WireValue, frozen=True):
    """Something that is not part of the reply."""

    kind: StatusKind
    text: str
    level: events.Level = "info"
    data: dict[str, Any] = msgspec.field(default_factory=dict)


class ApprovalRequest(WireValue, frozen=True):
    """A tool needs an approval; the turn waits. Answer with approval.respond."""

    request_id: str
    call_id: str
    tool: str
    summary: str
    detail: str
    danger: str
    """A warning; if present, the answer applies to this call only."""
    remembers: str
    """The rule that `conversation` and `always` would add; if empty, only `once` can be answered."""
    number: int


class ErrorNotice(WireValue, frozen=True):
    """An error that people should see."""

    text: str


EventPayload = (
    ServerInfo
    | SessionState
    | MessageStart
    | MessageDelta
    | MessageComplete
    | ToolStart
    | ToolComplete
    | StatusNotice
    | ApprovalRequest
    | ErrorNotice
)

EVENTS: dict[str, type[msgspec.Struct]] = {
    "ready": ServerInfo,
    "session.info": SessionState,
    "message.start": MessageStart,
    "message.delta": MessageDelta,
    "message.complete": MessageComplete,
    "tool.start": ToolStart,
    "tool.complete": ToolComplete,
    "status": StatusNotice,
    "approval.request": ApprovalRequest,
    "error": ErrorNotice,
}
"""The types of events, and their payloads."""
EVENT_TYPES = {payload: name for name, payload in EVENTS.items()}


class EventParams(msgspec.Struct, frozen=True):
    """The parameters of the notification `event`."""

    type: str
    session_id: str | None
    """The key of the session at that time; null if the event is not about a session."""
    payload: EventPayload


# --- methods -------------------------------------------------------------------------------------------


class Method(NamedTuple):
    """The parameters and the result of a method."""

    params: type[WireValue]
    result: type[WireValue]
    help: str


METHODS: dict[str, Method] = {
    "server.info": Method(NoParams, ServerInfo, "Return the program and its protocol version."),
    "session.create": Method(CreateParams, SessionState, "Start a conversation; it is stored with its first prompt."),
    "session.list": Method(ListParams, ListResult, "List conversations, the most recently active first."),
    "session.resume": Method(
        ResumeParams, SessionState, "Open a conversation by an id, the beginning of an id, a title, or `last`."
    ),
    "session.info": Method(SessionParams, SessionState, "Return the state of a session."),
    "session.options": Method(OptionsParams, SessionState, "Change what the client is sent about a session."),
    "session.title": Method(TitleParams, TitleResult, "Return, set or remove the title."),
    "session.history": Method(HistoryParams, HistoryResult, "Read a page of the transcript."),
    "session.undo": Method(UndoParams, UndoResult, "Undo the last turns. They stay in the transcript."),
    "session.compress": Method(
        CompressParams, CompressResult, "Replace older messages in the context with a summary now."
    ),
    "session.branch": Method(
        BranchParams, SessionState, "Branch the conversation and open the branch; this one stays unchanged."
    ),
    "session.interrupt": Method(
        SessionParams, InterruptResult, "Stop the running turn or compaction; stored messages stay."
    ),
    "session.steer": Method(SteerParams, SteerResult, "Add a message to the running turn before its next step."),
    "session.close": Method(SessionParams, CloseResult, "Stop the running turn and end the conversation."),
    "prompt.submit": Method(SubmitParams, SubmitResult, "Send a message to the agent. During a turn it is queued."),
    "command.exec": Method(ExecParams, ExecResult, "Run a slash command; `/help` lists them."),
    "approval.respond": Method(RespondParams, RespondResult, "Answer an approval request."),
}
