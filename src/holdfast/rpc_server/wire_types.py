"""What goes over the wire between a front end of its own and this program, as values: parameters and results.

The schema that others make their clients from is made of these. A field that is added has a default; one that is taken
away or means something else makes another `PROTOCOL`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast import events, types

PROTOCOL = 1

REFUSED = -32000
"""What was asked cannot be done now, or not with this; `data.type` names the kind."""
NOT_OPEN = -32002
"""This client has no such session open: session.resume opens it."""
NOT_FOUND = -32003
"""There is no such session, or several fit: then `data.candidates` lists them."""
INVALID = -32602

SessionId = Annotated[str, Meta(min_length=1, max_length=200, description="Any id the session ever had.")]
Uid = Annotated[str, Meta(min_length=1, max_length=200, description="What a message is known by, for ever.")]
Progress = Literal["all", "new", "off"]
Count = Annotated[int, Meta(ge=1, le=1000)]
Place = Annotated[int, Meta(ge=0, le=2**53)]


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """One of those below. What is told may get more fields: who reads it ignores those it does not know."""


class Asked(Value, frozen=True, forbid_unknown_fields=True):
    """Parameters, and what is in them. What nobody knows here was meant to do something: it is refused."""


# --- sessions ------------------------------------------------------------------------------------------


class Image(Asked, frozen=True):
    """A picture: PNG, JPEG, GIF or WebP."""

    data: str
    """Its bytes, in base64."""


class Options(Asked, frozen=True):
    """How a client wants to be told of a session; what is left out stays as it is."""

    columns: Annotated[int, Meta(ge=20, le=1000)] | UnsetType = UNSET
    """How wide the lines may be that are made to be shown."""
    show_reasoning: bool | UnsetType = UNSET
    """Whether what the model thinks is told, too."""
    tool_progress: Progress | UnsetType = UNSET
    """`all` calls of tools, those of a `new` tool only, or `off`."""
    images: Annotated[list[Image], Meta(max_length=8)] | UnsetType = UNSET
    """Attached: they go with the next prompt, and then are not attached any more."""


class Chosen(Value, frozen=True):
    """The options of a session, all of them."""

    columns: int = 80
    show_reasoning: bool = False
    tool_progress: Progress = "all"
    images: int = 0
    """How many are attached."""


class Room(Value, frozen=True):
    """How full the model's window is, in tokens."""

    used: int
    window: int
    soft: float
    """From this share of it on a compaction is made beside the turns."""
    hard: float
    """From this share of it on a turn waits for one."""


class Info(Value, frozen=True):
    """How a session stands."""

    session_id: str
    """Its key: the head of the conversation."""
    conversation_id: str
    """The same for life."""
    begun: bool
    """Whether anything was said: before, nothing of it is kept."""
    live: bool
    """Whether it was not ended; a message to one that was opens it again."""
    title: str | None
    pending_title: str | None
    """The title it gets with its first message."""
    last_seq: int
    compacted_to: int
    """A summary stands for the messages up to this one; 0: for none."""
    running: bool
    """Whether a turn runs here."""
    queued: int
    """How many prompts wait for their turn."""
    options: Chosen
    model: str | None = None
    """None until somebody had to know."""
    context: Room | None = None
    previous: str | None = None
    """The key it had before, where this tells of another one."""


class Create(Asked, frozen=True):
    """session.create: a new conversation, which begins with its first prompt."""

    title: str | None = None
    options: Options = Options()


class Resume(Asked, frozen=True):
    """session.resume: go on with a conversation: an id, the beginning of one, a title, or `last`."""

    session_id: SessionId
    options: Options = Options()


class List(Asked, frozen=True):
    """session.list: conversations, the most recently active first."""

    limit: Count = 50
    skip: Place = 0


class Listed(Value, frozen=True):
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


class Sessions(Value, frozen=True):
    """The result of session.list."""

    sessions: list[Listed]


class OfSession(Asked, frozen=True):
    """A session that is open: session.info, session.interrupt, session.close."""

    session_id: SessionId


class SetOptions(Asked, frozen=True):
    """session.options: change some of them."""

    session_id: SessionId
    options: Options


class Title(Asked, frozen=True):
    """session.title: the title; with one given, it is set, and with null taken away."""

    session_id: SessionId
    title: str | UnsetType | None = UNSET


class Titled(Value, frozen=True):
    """The result of session.title."""

    session_id: str
    title: str | None
    pending: bool
    """Whether it is given with the first message."""


class History(Asked, frozen=True):
    """session.history: the transcript, from the message behind `after` on."""

    session_id: SessionId
    after: Place = 0
    limit: Count = 200


class Said(Value, frozen=True):
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
    """Whether it left the context by an undo."""


class Transcript(Value, frozen=True):
    """The result of session.history."""

    session_id: str
    messages: list[Said]
    last_seq: int
    more: bool
    """Whether there are more behind these: go on with `after` the last of them."""


class Undo(Asked, frozen=True):
    """session.undo: take back the last turns."""

    session_id: SessionId
    turns: Count = 1


class Undone(Value, frozen=True):
    """The result of session.undo."""

    session_id: str
    text: str


class Compress(Asked, frozen=True):
    """session.compress: let a summary stand for the older part, now."""

    session_id: SessionId
    focus: str | None = None
    """What gets most of the room."""
    keep_exchanges: Count | None = None
    """How many of the last exchanges stay as they are."""


class Compressed(Value, frozen=True):
    """The result of session.compress."""

    session_id: str
    outcome: Literal["compacted", "nothing_to_do", "busy", "cooling_down", "failed", "exhausted"]
    reason: str
    cut_seq: int | None
    before: int
    after: int


class Branch(Asked, frozen=True):
    """session.branch: a conversation that shares this one's messages; both are open then."""

    session_id: SessionId
    title: str | None = None


class Interrupted(Value, frozen=True):
    """The result of session.interrupt."""

    session_id: str
    interrupted: bool
    """Whether there was a turn to stop, or a compaction that somebody asked for."""


class Steer(Asked, frozen=True):
    """session.steer: tell the running turn something before its next step; without one it is a prompt."""

    session_id: SessionId
    text: Annotated[str, Meta(min_length=1)]
    uid: Uid | None = None


class Steered(Value, frozen=True):
    """The result of session.steer."""

    session_id: str
    steered: bool
    prompt: Submitted | None
    """The prompt it became, where no turn ran."""


class Closed(Value, frozen=True):
    """The result of session.close."""

    session_id: str
    """The head that was left."""
    ended: bool
    """Whether this ended it: nothing was said, it was ended before, or another client has it open, where not. Where the
    store could not end it, that is an error, and the session stays open."""


# --- prompts, commands, approvals ----------------------------------------------------------------------


class Submit(Asked, frozen=True):
    """prompt.submit: a message to the agent. One that comes during a turn waits for it."""

    text: str
    session_id: SessionId | None = None
    """Without one, it is the one that the client has open; where it has none, one is created."""
    uid: Uid | None = None
    """Of the same uid again, the same message: it is stored and answered once. Without one, one is made."""
    images: Annotated[list[Image], Meta(max_length=8)] = []


class Submitted(Value, frozen=True):
    """The result of prompt.submit; what comes of it comes as events, the last of them message.complete."""

    session_id: str
    uid: str
    queued: int
    """How many are answered before it."""


class Exec(Asked, frozen=True):
    """command.exec: a line that begins with a slash."""

    session_id: SessionId
    line: Annotated[str, Meta(pattern="^/", max_length=100_000)]


class Line(Value, frozen=True):
    """Something a command said."""

    level: Literal["answer", "info", "warning", "error"]
    text: str


class Executed(Value, frozen=True):
    """The result of command.exec."""

    session_id: str
    ok: bool
    output: list[Line]
    prompt: Submitted | None = None
    """The prompt the command stands for, which was submitted."""
    moved: Info | None = None
    """The session to go on in, which is open now; the other one stays open, too."""
    quit: bool = False
    """Whether the person wants to leave."""


class Respond(Asked, frozen=True):
    """approval.respond: answer an approval.request."""

    session_id: SessionId
    request_id: str
    answer: events.Answered
    reason: str = ""
    """Of a denial, what the model is told."""


class Responded(Value, frozen=True):
    """The result of approval.respond."""

    session_id: str
    accepted: bool
    """Whether this answer counts: the first one does."""
    notice: str | None


class Nothing(Asked, frozen=True):
    """server.info takes nothing."""


class ServerInfo(Value, frozen=True):
    """The result of server.info, and what `ready` tells."""

    protocol: int
    program: str
    model: str | None
    notice: str | None
    methods: list[str]
