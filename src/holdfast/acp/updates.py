"""Events of a run, and messages of the log, as an editor is told of them. Knows one session.

What it keeps is what the calls under way are about: an editor is told of their end what it was told of their beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias, assert_never

from acp import schema

from holdfast import content_parts, events, types
from holdfast.acp import conversion, diffs, plans
from holdfast.model import surrogates

Update: TypeAlias = (
    schema.UserMessageChunk
    | schema.AgentMessageChunk
    | schema.AgentThoughtChunk
    | schema.ToolCallStart
    | schema.ToolCallProgress
    | schema.AgentPlanUpdate
    | schema.AvailableCommandsUpdate
    | schema.CurrentModeUpdate
    | schema.ConfigOptionUpdate
    | schema.SessionInfoUpdate
    | schema.UsageUpdate
)

PROGRESS = 4_000
"""Characters of what a tool shows meanwhile, the last ones."""
QUEUED = "Another turn of this conversation is running elsewhere; this one comes after it."
REDACTED = "(redacted)"


class Call(NamedTuple):
    """A call under way."""

    name: str
    arguments: dict[str, Any]
    shown: str
    """What an editor knows it by."""


class Teller:
    """Makes what is told of what happened."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.seq = 0
        """The reply whose calls begin now. Providers may give the same id to calls of two replies; editors may not."""
        self._calls: dict[str, Call] = {}
        self._progress: dict[str, str] = {}
        self._terminals: dict[str, str] = {}
        self._asked: dict[str, str] = {}
        """Questions, and what editors know the calls by that they are about."""

    # --- as it happens -------------------------------------------------------------------------------

    def tell(
        self, event: events.AnyEvent, result: types.Content | None = None, *, answers: bool = False
    ) -> list[Update]:
        """What there is to tell of an event; `result` is that of a call that ended, where the log has it.

        What `answers` a person who asked is told as an answer, and not as a thought.
        """
        match event:
            case events.TextDelta(text):
                return [agent_says(text)] if text else []
            case events.ReasoningDelta(text):
                return [thinks(text)] if text else []
            case events.ToolStarted(call_id, name, given):
                return self._started(call_id, name, conversion.arguments(given))
            case events.ToolProgress(call_id, text):
                return self._progressed(call_id, text)
            case events.ToolFinished(call_id, _, ok, preview):
                return self.ended(call_id, preview if result is None else content_parts.text(result), ok)
            case events.ApprovalAsked() | events.ApprovalSettled():
                return self._permission(event)
            case events.TurnFinished():
                return self.broken_off()
            case _:
                return _beside(event, agent_says if answers else thinks)

    def shown(self, update: schema.ToolCallProgress) -> list[Update]:
        """What a tool shows of its call, which it knows by its own name. A terminal stays when the call has ended."""
        call_id = update.tool_call_id
        if (call := self._calls.get(call_id)) is None:
            return []
        for each in update.content or ():
            if isinstance(each, schema.TerminalToolCallContent):
                self._terminals[call_id] = each.terminal_id
        return [update.model_copy(update={"tool_call_id": call.shown})]

    def _started(self, call_id: str, name: str, arguments: dict[str, Any]) -> list[Update]:
        call = Call(name, arguments, surrogates.mended(f"{call_id}.{self.seq}"))
        told = self._beginning(call)
        self._calls[call_id] = call
        return told

    def _beginning(self, call: Call) -> list[Update]:
        if call.name == plans.NAME:
            plan = plans.update(call.arguments)
            return [plan] if plan is not None else []
        shown = diffs.content(call.name, call.arguments, None, self._folder)
        return [
            schema.ToolCallStart(
                session_update="tool_call",
                tool_call_id=call.shown,
                title=conversion.title(call.name, call.arguments),
                kind=conversion.kind(call.name),
                status="in_progress",
                content=shown.content or None,
                locations=shown.locations or None,
                raw_input=call.arguments,
            )
        ]

    def _progressed(self, call_id: str, text: str) -> list[Update]:
        call = self._calls.get(call_id)
        if call is None or call_id in self._terminals or call.name == plans.NAME:
            return []
        said = (self._progress.get(call_id, "") + text)[-PROGRESS:]
        self._progress[call_id] = said
        return [_progress(call.shown, content=[*conversion.result(said)])]

    def ended(self, call_id: str, text: str, ok: bool) -> list[Update]:
        """The end of a call that was told of."""
        text = surrogates.mended(text)
        call = self._calls.pop(call_id, None)
        self._progress.pop(call_id, None)
        terminal = self._terminals.pop(call_id, None)
        if call is None or call.name == plans.NAME:
            return []
        shown = diffs.content(call.name, call.arguments, text, self._folder) if ok else diffs.Shown([], [])
        content: list[diffs.Content] = [*shown.content] or [*conversion.result(text)]
        if terminal is not None:
            content = [diffs.terminal(terminal)]
        return [
            _progress(
                call.shown, status="completed" if ok else "failed", content=content, locations=shown.locations or None
            )
        ]

    def broken_off(self) -> list[Update]:
        """What was under way when a turn ended: nobody works on it any more."""
        return [update for call_id in tuple(self._calls) for update in self.ended(call_id, "", ok=False)]

    def unfinished(self) -> list[Update]:
        """What the log has no end of. It may still come, where another process works on it; often none does."""
        return [_progress(call.shown, status="failed") for call in self._calls.values() if call.name != plans.NAME]

    # --- permissions ---------------------------------------------------------------------------------

    def request(self, asked: events.ApprovalAsked) -> schema.ToolCallUpdate:
        """The call that a question is about, as it is shown to whoever answers."""
        call = self._calls.get(asked.call_id) or Call(asked.tool, {}, surrogates.mended(asked.call_id))
        shown = diffs.content(call.name, call.arguments, surrogates.mended(asked.detail), self._folder)
        return schema.ToolCallUpdate(
            tool_call_id=call.shown,
            title=conversion.title(call.name, call.arguments),
            kind=conversion.kind(call.name),
            status="pending",
            content=[*conversion.question(asked, whole=not shown.content), *shown.content],
            locations=shown.locations or None,
            raw_input=call.arguments,
        )

    def _permission(self, event: events.ApprovalAsked | events.ApprovalSettled) -> list[Update]:
        """A call that waits for an answer has not begun."""
        if isinstance(event, events.ApprovalAsked):
            if (call := self._calls.get(event.call_id)) is None:
                return []
            self._asked[event.request_id] = call.shown
            return [_progress(call.shown, status="pending")]
        shown = self._asked.pop(event.request_id, None)
        return [_progress(shown, status="in_progress")] if shown is not None and event.allowed else []

    # --- as it was -----------------------------------------------------------------------------------

    def replay(self, message: types.Message) -> list[Update]:
        """A message of the log. Its pictures are somebody else's to show."""
        match message.role:
            case "user":
                said = [conversion.block(REDACTED)] if message.redacted else conversion.blocks(message.content)
                return [_user(each, message.uid) for each in said]
            case "assistant":
                self.seq = message.seq
                return [*_spoken(message), *self._called(message.tool_calls)]
            case "tool":
                call_id = message.tool_call_id or ""
                name = self._calls[call_id].name if call_id in self._calls else ""
                return self.ended(
                    call_id, content_parts.text(message.content), content_parts.is_success(name, message.content)
                )
            case "system":
                return []
            case _:
                assert_never(message.role)

    def _called(self, calls: Iterable[types.ToolCall]) -> list[Update]:
        return [
            update
            for call in calls
            for update in self._started(call.id, call.name, conversion.arguments(call.arguments))
        ]


# --- single updates ------------------------------------------------------------------------------------


def agent_says(text: str, message_id: str | None = None) -> Update:
    return schema.AgentMessageChunk(
        session_update="agent_message_chunk", content=conversion.block(text), message_id=message_id
    )


def thinks(text: str, message_id: str | None = None) -> Update:
    return schema.AgentThoughtChunk(
        session_update="agent_thought_chunk", content=conversion.block(text), message_id=message_id
    )


def notice(text: str) -> Update:
    """What a program says in the place of a person."""
    return _user(conversion.block(text))


def picture(media_type: str, data: str, message_id: str) -> Update:
    """One that a person sent, in base64."""
    return _user(schema.ImageContentBlock(type="image", mime_type=media_type, data=data), message_id)


def untold(seq: int) -> Update:
    """What stands in the place of a message that cannot be told."""
    return thinks(f"Message {seq} cannot be shown here; the log says why.\n\n")


def titled(title: str | None) -> Update:
    return schema.SessionInfoUpdate(session_update="session_info_update", title=surrogates.mended(title))


def _user(block: conversion.Block, message_id: str | None = None) -> Update:
    return schema.UserMessageChunk(session_update="user_message_chunk", content=block, message_id=message_id)


def _spoken(message: types.Message) -> list[Update]:
    if message.redacted:
        return [agent_says(REDACTED, message.uid)]
    told: list[Update] = []
    for part in content_parts.parse(message.content):
        match part:
            case content_parts.Text(text) if text.strip():
                told.append(agent_says(text, message.uid))
            case content_parts.Reasoning(text) if text.strip():
                told.append(thinks(text, message.uid))
    return told


def _progress(call_id: str, **changed: Any) -> schema.ToolCallProgress:
    return schema.ToolCallProgress(session_update="tool_call_update", tool_call_id=call_id, **changed)


def _beside(
    event: events.TurnQueued
    | events.TurnStarted
    | events.MessageStored
    | events.Notice
    | events.Titled
    | events.Compacted
    | events.Answer
    | events.Say
    | events.Moved
    | events.Quit,
    remark: Callable[[str], Update],
) -> list[Update]:
    """What is not the talk itself. What is no part of the conversation is a remark."""
    match event:
        case events.TurnQueued():
            return [thinks(f"{QUEUED}\n\n")]
        case events.TurnStarted(_, _, words, _, kind):
            return [notice(words)] if kind else []
        case events.Notice(words, "error"):
            return [agent_says(f"{words}\n\n")]
        case events.Notice(words):
            return [remark(f"{words}\n\n")]
        case events.Titled(title):
            return [titled(title)]
        case events.Compacted():
            return [remark(f"{event.text}\n\n")]
        case events.Answer(words):
            return [agent_says(f"{conversion.answer(words)}\n\n")]
        case events.MessageStored() | events.Say() | events.Moved() | events.Quit():
            return []
        case _:
            assert_never(event)
