"""The methods that front ends of their own may call: the server has one for each, and the schema tells of them."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.rpc_server import wire_types


class Method(NamedTuple):
    """What a method takes and gives."""

    params: type[wire_types.Value]
    result: type[wire_types.Value]
    help: str


METHODS: dict[str, Method] = {
    "server.info": Method(wire_types.Nothing, wire_types.ServerInfo, "What this is, and which protocol it speaks."),
    "session.create": Method(
        wire_types.Create, wire_types.Info, "Begin a conversation; nothing is kept before its first prompt."
    ),
    "session.list": Method(wire_types.List, wire_types.Sessions, "List conversations, the most recently active first."),
    "session.resume": Method(
        wire_types.Resume, wire_types.Info, "Open a conversation: an id or its beginning, a title, `last`."
    ),
    "session.info": Method(wire_types.OfSession, wire_types.Info, "How a session stands."),
    "session.options": Method(wire_types.SetOptions, wire_types.Info, "Change how the client is told of a session."),
    "session.title": Method(wire_types.Title, wire_types.Titled, "Show the title, set it, or take it away."),
    "session.history": Method(wire_types.History, wire_types.Transcript, "The transcript, a stretch at a time."),
    "session.undo": Method(wire_types.Undo, wire_types.Undone, "Take back the last turns. The transcript keeps them."),
    "session.compress": Method(
        wire_types.Compress, wire_types.Compressed, "Let a summary stand for the older part, now."
    ),
    "session.branch": Method(
        wire_types.Branch, wire_types.Info, "Open a copy of the conversation; this one stays as it is."
    ),
    "session.interrupt": Method(
        wire_types.OfSession, wire_types.Interrupted, "Stop the running turn, or compaction; what was said stays."
    ),
    "session.steer": Method(
        wire_types.Steer, wire_types.Steered, "Tell the running turn something before its next step."
    ),
    "session.close": Method(
        wire_types.OfSession, wire_types.Closed, "Stop what runs, and end the conversation's head."
    ),
    "prompt.submit": Method(
        wire_types.Submit, wire_types.Submitted, "Say something to the agent. During a turn, it waits for it."
    ),
    "command.exec": Method(
        wire_types.Exec, wire_types.Executed, "Carry out a line that begins with a slash; `/help` lists them."
    ),
    "approval.respond": Method(wire_types.Respond, wire_types.Responded, "Answer whether a tool may do something."),
}
"""All methods; who serves them has one for each of these."""
