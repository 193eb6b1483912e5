"""Events of a run as messages for one client, by the options of its session."""

from __future__ import annotations

import msgspec

from holdfast import events, safe_text
from holdfast.rpc_server import wire_types
from holdfast.runtime import wording
from holdfast.terminal import event_text

MARKS = event_text.Marks()


class EventMessageBuilder:
    """Builds the messages of one session.

    It remembers which calls of the turn were sent: the end of a call that was not sent is not sent either.
    """

    def __init__(self, options: wire_types.SessionOptions) -> None:
        self.options = options
        self._last_tool: str | None = None
        self._sent_calls = set[str]()

    def build(self, event: events.AnyEvent, uid: str | None = None) -> wire_types.EventPayload | None:
        """Return the message of an event, None if it has none; `uid` is that of the prompt whose turn it belongs to.

        A title has none, as it is sent with session.info.
        """
        match event:
            case events.TurnStarted(_, _, text, seq, notice):
                self._last_tool = None
                self._sent_calls.clear()
                return wire_types.MessageStart(uid=uid, seq=seq, text=text, notice=notice)
            case events.TextDelta(text):
                return wire_types.MessageDelta(kind="text", text=text)
            case events.ReasoningDelta(text) if self.options.show_reasoning:
                return wire_types.MessageDelta(kind="reasoning", text=text)
            case events.TurnFinished(result):
                return _complete(result, uid)
            case events.ToolStarted(call_id, name, arguments) if self._should_send(name):
                self._sent_calls.add(call_id)
                line = self._line(MARKS.call, wording.tool_started(event))
                return wire_types.ToolStart(call_id=call_id, name=name, arguments=arguments, line=line)
            case events.ToolFinished(call_id, name, ok, preview) if call_id in self._sent_calls:
                self._sent_calls.discard(call_id)
                line = self._line(MARKS.done if ok else MARKS.failed, wording.tool_finished(event))
                return wire_types.ToolComplete(call_id=call_id, name=name, ok=ok, preview=preview, line=line)
            case events.ToolProgress(call_id, text) if call_id in self._sent_calls:
                return _status("tool.progress", text, call_id=call_id) if self.options.tool_progress == "all" else None
            case _:
                return _build_notice(event)

    def _should_send(self, name: str) -> bool:
        is_new, self._last_tool = name != self._last_tool, name
        return self.options.tool_progress == "all" or (is_new and self.options.tool_progress == "new")

    def _line(self, mark: str, sentence: wording.EventSentence) -> str:
        text = safe_text.safe(f"{mark} {sentence.text}").rstrip()
        return safe_text.clip(text, self.options.columns, MARKS.more)


def _build_notice(event: events.AnyEvent) -> wire_types.EventPayload | None:
    """Return the message of an event that is not part of the reply."""
    match event:
        case events.ApprovalAsked():
            return approval_request(event)
        case events.ApprovalSettled():
            return _status("approval.settled", wording.approval_settled(event).text, **msgspec.structs.asdict(event))
        case events.TurnQueued(holder):
            return _status("queued", wording.turn_queued(event).text, holder=holder)
        case events.Compacted(_, cut_seq, before, after, model, remark):
            data = {"cut_seq": cut_seq, "before": before, "after": after, "model": model, "remark": remark}
            return _status("compacted", wording.compacted(event).text, **data)
        case events.Notice(text, "error"):
            return wire_types.ErrorNotice(text=text)
        case events.Notice(text, level):
            return wire_types.StatusNotice(kind="notice", text=text, level=level)
        case events.Answer(text):
            return _status("answer", text)
        case _:
            return None


def unfinished_prompt(uid: str, status: events.Exit | None, error: str) -> wire_types.MessageComplete:
    """Return the end of a prompt without a finished turn: its failure, or that it was dropped."""
    return wire_types.MessageComplete(uid=uid, status=status or "dropped", text="", error=error)


def approval_request(event: events.ApprovalAsked) -> wire_types.ApprovalRequest:
    return wire_types.ApprovalRequest(**msgspec.structs.asdict(event))


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


def _status(kind: wire_types.StatusKind, text: str, **data: object) -> wire_types.StatusNotice:
    return wire_types.StatusNotice(kind=kind, text=text, data=data)
