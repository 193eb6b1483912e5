"""Events of a run as a client of its own is told them, by the options of its session. Knows one session.

What it keeps is which tools of the turn under way were told of: where only new ones are wanted, the next call of the
same tool is not, and of a call that was not told the end is not told, either.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from holdfast import events, safe_text
from holdfast.rpc_server import notifications, wire_types
from holdfast.terminal import event_text

MARKS = event_text.Marks()


class Teller:
    """Makes what is told of what was emitted."""

    def __init__(self, options: wire_types.Chosen) -> None:
        self.options = options
        self._last_tool: str | None = None
        self._told_calls = set[str]()

    def tell(self, event: events.AnyEvent, uid: str | None = None) -> list[notifications.Told]:
        """What there is to tell; `uid` is that of the message whose turn it is."""
        match event:
            case events.TurnStarted(_, _, words, seq, notice):
                self._last_tool = None
                self._told_calls.clear()
                return [_told("message.start", notifications.MessageStart(uid=uid, seq=seq, text=words, notice=notice))]
            case events.TextDelta(words):
                return [_told("message.delta", notifications.MessageDelta(kind="text", text=words))]
            case events.ReasoningDelta(words):
                thought = _told("message.delta", notifications.MessageDelta(kind="reasoning", text=words))
                return [thought] if self.options.show_reasoning else []
            case events.TurnFinished(result):
                return [_told("message.complete", complete(result, uid))]
            case events.ToolStarted() | events.ToolProgress() | events.ToolFinished():
                return self._tool(event)
            case events.ApprovalAsked():
                return [_told("approval.request", asked(event))]
            case _:
                return _beside(event)

    def _tool(self, event: events.ToolStarted | events.ToolProgress | events.ToolFinished) -> list[notifications.Told]:
        match event:
            case events.ToolStarted(call_id, name, arguments):
                if not self._wanted(name):
                    return []
                self._told_calls.add(call_id)
                line = self._line(f"{MARKS.call} {name} {'' if arguments == '{}' else arguments}")
                return [
                    _told(
                        "tool.start",
                        notifications.ToolStart(call_id=call_id, name=name, arguments=arguments, line=line),
                    )
                ]
            case events.ToolFinished(call_id, name, ok, preview):
                if call_id not in self._told_calls:
                    return []
                self._told_calls.discard(call_id)
                first = next((line for line in preview.splitlines() if line.strip()), "")
                line = self._line(f"{MARKS.done if ok else MARKS.failed} {name}  {first}")
                done = notifications.ToolComplete(call_id=call_id, name=name, ok=ok, preview=preview, line=line)
                return [_told("tool.complete", done)]
            case events.ToolProgress(call_id, words):
                if self.options.tool_progress != "all" or call_id not in self._told_calls:
                    return []
                return [_status("tool.progress", words, data={"call_id": call_id})]
            case _:
                assert_never(event)

    def _wanted(self, name: str) -> bool:
        new, self._last_tool = name != self._last_tool, name
        return self.options.tool_progress == "all" or (new and self.options.tool_progress == "new")

    def _line(self, words: str) -> str:
        return safe_text.clipped(safe_text.safe(words).rstrip(), self.options.columns, MARKS.more)


def complete(result: events.TurnResult, uid: str | None) -> notifications.MessageComplete:
    """The end of a turn."""
    return notifications.MessageComplete(
        uid=uid,
        status=result.exit_reason,
        text=result.final_response,
        partial=result.partial,
        error=result.error,
        last_seq=max((each.seq for each in result.messages), default=None),
        api_calls=result.api_calls,
        usage=result.usage,
    )


def unfinished(uid: str | None, status: events.Exit | None, why: str) -> notifications.Told:
    """The end of a prompt that had no turn to its end: what it failed of, or that it was dropped."""
    ended = notifications.MessageComplete(uid=uid, status=status or "dropped", text="", error=why)
    return _told("message.complete", ended)


def asked(event: events.ApprovalAsked) -> notifications.Approval:
    return notifications.Approval(**msgspec.structs.asdict(event))


def _beside(
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
) -> list[notifications.Told]:
    """What is not the talk itself. A title is told with how the session stands."""
    match event:
        case events.TurnQueued(holder):
            return [_status("queued", "A turn of this conversation is running elsewhere.", data={"holder": holder})]
        case events.Notice(words, "error"):
            return [_told("error", notifications.Failure(text=words))]
        case events.Notice(words, level):
            return [_status("notice", words, level)]
        case events.Answer(words):
            return [_status("answer", words)]
        case events.ApprovalSettled(request_id, allowed, by):
            data = {"request_id": request_id, "allowed": allowed, "by": by}
            return [_status("approval.settled", f"{'Allowed' if allowed else 'Denied'} ({by}).", data=data)]
        case events.Compacted(_, cut_seq, before, after, model, remark):
            data = {"cut_seq": cut_seq, "before": before, "after": after, "model": model, "remark": remark}
            return [_status("compacted", event.text, data=data)]
        case events.MessageStored() | events.Titled() | events.Say() | events.Moved() | events.Quit():
            return []
        case _:
            assert_never(event)


def _told(type: str, payload: notifications.Payload) -> notifications.Told:
    return notifications.Told(type, payload)


def _status(
    kind: notifications.Beside, words: str, level: events.Level = "info", data: dict[str, object] | None = None
) -> notifications.Told:
    return _told("status", notifications.Status(kind=kind, text=words, level=level, data=data or {}))
