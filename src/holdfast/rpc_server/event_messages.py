"""Events of a run as messages for one client, by the options of its session."""

from __future__ import annotations

from typing import assert_never

import msgspec

from holdfast import events, safe_text
from holdfast.rpc_server import wire_types
from holdfast.runtime import wording
from holdfast.terminal import event_text

MARKS = event_text.Marks()


class EventRenderer:
    """Renders the events of one session.

    It remembers which calls of the turn were sent: the end of a call that was not sent is not sent either.
    """

    def __init__(self, options: wire_types.Chosen) -> None:
        self.options = options
        self._last_tool: str | None = None
        self._sent_calls = set[str]()

    def render(self, event: events.AnyEvent, uid: str | None = None) -> list[wire_types.EventMessage]:
        """Return the messages of an event; `uid` is that of the message whose turn it belongs to."""
        match event:
            case events.TurnStarted(_, _, text, seq, notice):
                self._last_tool = None
                self._sent_calls.clear()
                start = wire_types.MessageStart(uid=uid, seq=seq, text=text, notice=notice)
                return [wire_types.EventMessage("message.start", start)]
            case events.TextDelta(text):
                return [_delta("text", text)]
            case events.ReasoningDelta(text):
                return [_delta("reasoning", text)] if self.options.show_reasoning else []
            case events.TurnFinished(result):
                return [wire_types.EventMessage("message.complete", _complete(result, uid))]
            case events.ToolStarted() | events.ToolProgress() | events.ToolFinished():
                return self._render_call(event)
            case events.ApprovalAsked():
                return [render_approval(event)]
            case _:
                return _render_notice(event)

    def _render_call(
        self, event: events.ToolStarted | events.ToolProgress | events.ToolFinished
    ) -> list[wire_types.EventMessage]:
        match event:
            case events.ToolStarted(call_id, name, arguments):
                if not self._should_send(name):
                    return []
                self._sent_calls.add(call_id)
                line = self._line(f"{MARKS.call} {name} {'' if arguments == '{}' else arguments}")
                start = wire_types.ToolStart(call_id=call_id, name=name, arguments=arguments, line=line)
                return [wire_types.EventMessage("tool.start", start)]
            case events.ToolFinished(call_id, name, ok, preview):
                if call_id not in self._sent_calls:
                    return []
                self._sent_calls.discard(call_id)
                first = next((line for line in preview.splitlines() if line.strip()), "")
                line = self._line(f"{MARKS.done if ok else MARKS.failed} {name}  {first}")
                end = wire_types.ToolComplete(call_id=call_id, name=name, ok=ok, preview=preview, line=line)
                return [wire_types.EventMessage("tool.complete", end)]
            case events.ToolProgress(call_id, text):
                if self.options.tool_progress != "all" or call_id not in self._sent_calls:
                    return []
                return [_status("tool.progress", text, data={"call_id": call_id})]
            case _:
                assert_never(event)

    def _should_send(self, name: str) -> bool:
        is_new, self._last_tool = name != self._last_tool, name
        return self.options.tool_progress == "all" or (is_new and self.options.tool_progress == "new")

    def _line(self, text: str) -> str:
        return safe_text.clipped(safe_text.safe(text).rstrip(), self.options.columns, MARKS.more)


def render_unfinished(uid: str | None, status: events.Exit | None, error: str) -> wire_types.EventMessage:
    """Return the end of a prompt without a finished turn: its failure, or that it was dropped."""
    end = wire_types.MessageComplete(uid=uid, status=status or "dropped", text="", error=error)
    return wire_types.EventMessage("message.complete", end)


def render_approval(event: events.ApprovalAsked) -> wire_types.EventMessage:
    return wire_types.EventMessage("approval.request", wire_types.Approval(**msgspec.structs.asdict(event)))


def _complete(result: events.TurnResult, uid: str | None) -> wire_types.MessageComplete:
    return wire_types.MessageComplete(
        uid=uid,
        status=result.exit_reason,
        text=result.final_response,
        partial=result.partial,
        error=result.error,
        last_seq=max((each.seq for each in result.messages), default=None),
        api_calls=result.api_calls,
        usage=result.usage,
    )


def _render_notice(
    event: events.TurnQueued
    | events.MessageStored
    | events.ApprovalSettled
    | events.Notice
    | events.Titled
    | events.Compacted
    | events.Answer
    | events.Say
    | events.Moved
    | events.Quit,
) -> list[wire_types.EventMessage]:
    """Return the messages of an event that is not part of the reply. A title is sent with session.info."""
    match event:
        case events.TurnQueued(holder):
            text = "Another turn of this conversation is running elsewhere. This one starts after it."
            return [_status("queued", text, data={"holder": holder})]
        case events.Notice(text, "error"):
            return [wire_types.EventMessage("error", wire_types.Failure(text=text))]
        case events.Notice(text, level):
            return [_status("notice", text, level)]
        case events.Answer(text):
            return [_status("answer", text)]
        case events.ApprovalSettled(request_id, allowed, by):
            data = {"request_id": request_id, "allowed": allowed, "by": by}
            return [_status("approval.settled", f"{'Allowed' if allowed else 'Denied'} ({by}).", data=data)]
        case events.Compacted(_, cut_seq, before, after, model, remark):
            data = {"cut_seq": cut_seq, "before": before, "after": after, "model": model, "remark": remark}
            return [_status("compacted", wording.compacted(event).text, data=data)]
        case events.MessageStored() | events.Titled() | events.Say() | events.Moved() | events.Quit():
            return []
        case _:
            assert_never(event)


def _delta(kind: wire_types.DeltaKind, text: str) -> wire_types.EventMessage:
    return wire_types.EventMessage("message.delta", wire_types.MessageDelta(kind=kind, text=text))


def _status(
    kind: wire_types.StatusKind, text: str, level: events.Level = "info", data: dict[str, object] | None = None
) -> wire_types.EventMessage:
    return wire_types.EventMessage("status", wire_types.Status(kind=kind, text=text, level=level, data=data or {}))
