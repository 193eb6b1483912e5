"""Events of a run and messages of the log as session updates of the protocol, for one session.

The builder remembers the calls under way, so that the end of a call repeats what its beginning said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias, assert_never

from acp import schema

from holdfast import content_parts, events, types
from holdfast.acp import conversion, diffs, plans
from holdfast.model import surrogates
from holdfast.runtime import attachments, wording

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

PROGRESS_CHARACTERS = 4_000
"""Characters of a tool's progress that are shown, the last ones."""
REDACTED = "(redacted)"


class ActiveCall(NamedTuple):
    """A tool call under way; `shown_id` is its id in updates."""

    name: str
    arguments: dict[str, Any]
    shown_id: str


class UpdateBuilder:
    """Builds the updates of one session."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.reply_seq = 0
        """The seq of the reply whose calls begin now; part of shown ids, as providers may reuse a call id later."""
        self._calls: dict[str, ActiveCall] = {}
        self._progress: dict[str, str] = {}
        self._terminals: dict[str, str] = {}
        self._approvals: dict[str, str] = {}
        """The shown call id of each pending approval request."""

    # --- events --------------------------------------------------------------------------------------

    def build(
        self, event: events.AnyEvent, result: types.Content | None = None, *, is_answer: bool = False
    ) -> list[Update]:
        """Return the updates of an event. `result` is the stored result of a call that ended, if it could be read.

        Notices are thoughts, unless they are the answer (`is_answer`) to a command of the person.
        """
        match event:
            case events.TextDelta(text):
                return [agent_message(text)] if text else []
            case events.ReasoningDelta(text):
                return [thought(text)] if text else []
            case events.ToolStarted(call_id, name, given):
                return self._start(call_id, name, conversion.parse_arguments(given))
            case events.ToolProgress(call_id, text):
                return self._add_progress(call_id, text)
            case events.ToolFinished(call_id, _, ok, preview):
                return self._finish(call_id, preview if result is None else content_parts.text(result), ok)
            case events.ApprovalAsked() | events.ApprovalSettled():
                return self._update_approval(event)
            case events.TurnFinished():
                return self.end_calls()
            case _:
                return _notice_updates(event, agent_message if is_answer else thought)

    def translate(self, update: schema.ToolCallProgress) -> list[Update]:
        """Return the update of a tool with the shown id of its call. A terminal stays visible after the call."""
        call_id = update.tool_call_id
        if (call := self._calls.get(call_id)) is None:
            return []
        for each in update.content or ():
            if isinstance(each, schema.TerminalToolCallContent):
                self._terminals[call_id] = each.terminal_id
        return [update.model_copy(update={"tool_call_id": call.shown_id})]

    def fail_unfinished(self) -> list[Update]:
        """Mark replayed calls without a result as failed. The result may follow if another process runs the call."""
        return [_progress(call.shown_id, status="failed") for call in self._calls.values() if call.name != plans.NAME]

    def end_calls(self) -> list[Update]:
        """End the calls that an interrupted turn left under way."""
        return [update for call_id in tuple(self._calls) for update in self._finish(call_id, "", ok=False)]

    def _start(self, call_id: str, name: str, arguments: dict[str, Any]) -> list[Update]:
        call = ActiveCall(name, arguments, surrogates.repair(f"{call_id}.{self.reply_seq}"))
        started = self._started(call)
        self._calls[call_id] = call
        return started

    def _started(self, call: ActiveCall) -> list[Update]:
        if call.name == plans.NAME:
            plan = plans.plan_update(call.arguments)
            return [plan] if plan is not None else []
        view = diffs.view_call(call.name, call.arguments, None, self._folder)
        return [
            schema.ToolCallStart(
                session_update="tool_call",
                tool_call_id=call.shown_id,
                title=conversion.call_title(call.name, call.arguments),
                kind=conversion.tool_kind(call.name),
                status="in_progress",
                content=view.content or None,
                locations=view.locations or None,
                raw_input=call.arguments,
            )
        ]

    def _add_progress(self, call_id: str, text: str) -> list[Update]:
        call = self._calls.get(call_id)
        if call is None or call_id in self._terminals or call.name == plans.NAME:
            return []
        shown = (self._progress.get(call_id, "") + text)[-PROGRESS_CHARACTERS:]
        self._progress[call_id] = shown
        return [_progress(call.shown_id, content=[*conversion.result_content(shown)])]

    def _finish(self, call_id: str, text: str, ok: bool) -> list[Update]:
        text = surrogates.repair(text)
        call = self._calls.pop(call_id, None)
        self._progress.pop(call_id, None)
        terminal = self._terminals.pop(call_id, None)
        if call is None or call.name == plans.NAME:
            return []
        view = diffs.view_call(call.name, call.arguments, text, self._folder) if ok else diffs.CallView([], [])
        content: list[diffs.Content] = [*view.content] or [*conversion.result_content(text)]
        if terminal is not None:
            content = [diffs.terminal_content(terminal)]
        status = "completed" if ok else "failed"
        return [_progress(call.shown_id, status=status, content=content, locations=view.locations or None)]

    # --- approvals -----------------------------------------------------------------------------------

    def permission_request(self, asked: events.ApprovalAsked) -> schema.ToolCallUpdate:
        """Return the call that an approval request is about, as the person sees it."""
        call = self._calls.get(asked.call_id) or ActiveCall(asked.tool, {}, surrogates.repair(asked.call_id))
        view = diffs.view_call(call.name, call.arguments, surrogates.repair(asked.detail), self._folder)
        return schema.ToolCallUpdate(
            tool_call_id=call.shown_id,
            title=conversion.call_title(call.name, call.arguments),
            kind=conversion.tool_kind(call.name),
            status="pending",
            content=[*conversion.approval_content(asked, with_detail=not view.content), *view.content],
            locations=view.locations or None,
            raw_input=call.arguments,
        )

    def _update_approval(self, event: events.ApprovalAsked | events.ApprovalSettled) -> list[Update]:
        """A call that waits for an approval is pending."""
        if isinstance(event, events.ApprovalAsked):
            if (call := self._calls.get(event.call_id)) is None:
                return []
            self._approvals[event.request_id] = call.shown_id
            return [_progress(call.shown_id, status="pending")]
        shown_id = self._approvals.pop(event.request_id, None)
        return [_progress(shown_id, status="in_progress")] if shown_id is not None and event.allowed else []

    # --- the log -------------------------------------------------------------------------------------

    def replay(self, message: types.Message) -> list[Update]:
        """Return the updates of a stored message, without its images."""
        match message.role:
            case "user":
                redacted = [conversion.text_block(REDACTED)]
                blocks = redacted if message.redacted else conversion.content_blocks(message.content)
                return [_user_message(each, message.uid) for each in blocks]
            case "assistant":
                self.reply_seq = message.seq
                return [*_reply(message), *self._replay_calls(message.tool_calls)]
            case "tool":
                call_id = message.tool_call_id or ""
                name = self._calls[call_id].name if call_id in self._calls else ""
                ok = content_parts.is_success(name, message.content)
                return self._finish(call_id, content_parts.text(message.content), ok)
            case "system":
                return []
            case _:
                assert_never(message.role)

    def _replay_calls(self, calls: Iterable[types.ToolCall]) -> list[Update]:
        return [
            update
            for call in calls
            for update in self._start(call.id, call.name, conversion.parse_arguments(call.arguments))
        ]


# --- single updates ------------------------------------------------------------------------------------


def agent_message(text: str, message_id: str | None = None) -> Update:
    block = conversion.text_block(text)
    return schema.AgentMessageChunk(session_update="agent_message_chunk", content=block, message_id=message_id)


def thought(text: str, message_id: str | None = None) -> Update:
    block = conversion.text_block(text)
    return schema.AgentThoughtChunk(session_update="agent_thought_chunk", content=block, message_id=message_id)


def image_update(image: attachments.EncodedImage, message_id: str) -> Update:
    block = schema.ImageContentBlock(type="image", mime_type=image.media_type, data=image.data)
    return _user_message(block, message_id)


def unreadable_message(seq: int) -> Update:
    """Return the placeholder for a message that cannot be shown."""
    return thought(f"Message {seq} cannot be shown; see the log for the reason.\n\n")


def title_update(title: str | None) -> Update:
    return schema.SessionInfoUpdate(session_update="session_info_update", title=surrogates.repair(title))


def _user_message(block: conversion.Block, message_id: str | None = None) -> Update:
    return schema.UserMessageChunk(session_update="user_message_chunk", content=block, message_id=message_id)


def _reply(message: types.Message) -> list[Update]:
    if message.redacted:
        return [agent_message(REDACTED, message.uid)]
    found: list[Update] = []
    for part in content_parts.parse(message.content):
        match part:
            case content_parts.Text(text) if text.strip():
                found.append(agent_message(text, message.uid))
            case content_parts.Reasoning(text) if text.strip():
                found.append(thought(text, message.uid))
    return found


def _progress(call_id: str, **changed: Any) -> schema.ToolCallProgress:
    return schema.ToolCallProgress(session_update="tool_call_update", tool_call_id=call_id, **changed)


def _notice_updates(event: events.AnyEvent, remark: Callable[[str], Update]) -> list[Update]:
    """Return the updates of an event that is not part of the reply."""
    match event:
        case events.TurnQueued():
            return [thought(f"{wording.turn_queued(event).text}\n\n")]
        case events.TurnStarted(_, _, text, _, notice) if notice:
            return [_user_message(conversion.text_block(text))]
        case events.Notice(text, "error"):
            return [agent_message(f"{text}\n\n")]
        case events.Notice(text):
            return [remark(f"{text}\n\n")]
        case events.Compacted():
            return [remark(f"{wording.compacted(event).text}\n\n")]
        case events.Titled(title):
            return [title_update(title)]
        case events.Answer(text):
            return [agent_message(f"{conversion.format_answer(text)}\n\n")]
        case _:
            return []
