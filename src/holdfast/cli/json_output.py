"""Values of the store as the objects that --json prints."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast import events, types


def session(value: types.Session) -> dict[str, Any]:
    return {**msgspec.structs.asdict(value), "live": value.live, "message_count": value.message_count}


def conversation(value: types.Conversation) -> dict[str, Any]:
    return msgspec.structs.asdict(value)


def compaction(value: types.Compaction) -> dict[str, Any]:
    return msgspec.structs.asdict(value)


def hide(value: types.Hide) -> dict[str, Any]:
    return msgspec.structs.asdict(value)


def message(value: types.Message) -> dict[str, Any]:
    return {
        "seq": value.seq,
        "uid": value.uid,
        "session_id": value.session_id,
        "role": value.role,
        "at": value.at,
        "content": value.content,
        "tool_calls": msgspec.to_builtins(value.tool_calls),
        "tool_call_id": value.tool_call_id,
        "metadata": value.metadata,
        "redacted": value.redacted,
    }


def audited(value: types.Audited) -> dict[str, Any]:
    return msgspec.structs.asdict(value)


def turn(value: events.TurnResult) -> dict[str, Any]:
    """What became of a turn: every field but `output`, with its messages as above."""
    fields = msgspec.structs.asdict(value)
    del fields["output"]
    return {
        **fields,
        "messages": [message(each) for each in value.messages],
        "usage": msgspec.structs.asdict(value.usage),
        "truncated": msgspec.to_builtins(value.truncated),
    }


def failed(error: str) -> dict[str, Any]:
    """The same of a turn that never began."""
    return turn(result("", error))


def result(
    said: str, error: str | None, interrupted: bool = False, *, session_id: str = "", conversation_id: str = ""
) -> events.TurnResult:
    """What became of something that was no turn, as the result of one."""
    return events.TurnResult(
        final_response=said,
        messages=(),
        api_calls=0,
        completed=error is None,
        failed=error is not None and not interrupted,
        partial=False,
        interrupted=interrupted,
        error=error,
        exit_reason="completed" if error is None else "interrupted" if interrupted else "failed",
        usage=types.Usage(),
        session_id=session_id,
        conversation_id=conversation_id,
    )


def event(value: events.AnyEvent) -> dict[str, Any]:
    """An event: its `type`, and its fields."""
    if isinstance(value, events.TurnFinished):
        return {"type": value.__struct_config__.tag, "result": turn(value.result)}
    found: dict[str, Any] = msgspec.to_builtins(value)
    return found
