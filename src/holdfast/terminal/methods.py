"""The methods that front ends of their own may call: the server has one for each, and the schema tells of them."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.terminal import wire


class Method(NamedTuple):
    """What a method takes and gives."""

    params: type[wire.Value]
    result: type[wire.Value]
    help: str


METHODS: dict[str, Method] = {
    "server.info": Method(wire.Nothing, wire.ServerInfo, "What this is, and which protocol it speaks."),
    "session.create": Method(wire.Create, wire.Info, "Begin a conversation; nothing is kept before its first prompt."),
    "session.list": Method(wire.List, wire.Sessions, "List conversations, the most recently active first."),
    "session.resume": Method(wire.Resume, wire.Info, "Open a conversation: an id or its beginning, a title, `last`."),
    "session.info": Method(wire.OfSession, wire.Info, "How a session stands."),
    "session.options": Method(wire.SetOptions, wire.Info, "Change how the client is told of a session."),
    "session.title": Method(wire.Title, wire.Titled, "Show the title, set it, or take it away."),
    "session.history": Method(wire.History, wire.Transcript, "The transcript, a stretch at a time."),
    "session.undo": Method(wire.Undo, wire.Undone, "Take back the last turns. The transcript keeps them."),
    "session.compress": Method(wire.Compress, wire.Compressed, "Let a summary stand for the older part, now."),
    "session.branch": Method(wire.Branch, wire.Info, "Open a copy of the conversation; this one stays as it is."),
    "session.interrupt": Method(
        wire.OfSession, wire.Interrupted, "Stop the running turn, or compaction; what was said stays."
    ),
    "session.steer": Method(wire.Steer, wire.Steered, "Tell the running turn something before its next step."),
    "session.close": Method(wire.OfSession, wire.Closed, "Stop what runs, and end the conversation's head."),
    "prompt.submit": Method(wire.Submit, wire.Submitted, "Say something to the agent. During a turn, it waits for it."),
    "command.exec": Method(wire.Exec, wire.Executed, "Carry out a line that begins with a slash; `/help` lists them."),
    "approval.respond": Method(wire.Respond, wire.Responded, "Answer whether a tool may do something."),
}
"""All methods; who serves them has one for each of these."""
