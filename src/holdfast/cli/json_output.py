"""Convert values to the objects that --json prints."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast import events, types

conversation = compaction = hide = audited = msgspec.structs.asdict


def session(value: types.Session) -> dict[str, Any]:
    return {**msgspec.structs.asdict(value), "live": value.live, "message_count": value.message_count}


def message(value: types.Message) -> dict[str, Any]:
    names = ("seq", "uid", "session_id", "role", "at", "content", "tool_calls", "tool_call_id", "metadata", "redacted")
    return {name: getattr(value, name) for name in names} | {"tool_calls": msgspec.to_builtins(value.tool_calls)}


def turn(value: events.TurnResult) -> dict[str, Any]:
    """Convert the result of a turn, with its messages."""
    fields = msgspec.structs.asdict(value)
    del fields["output"]  # a Python object of embedders
    return {
        **fields,
        "messages": [message(each) for each in value.messages],
        "usage": msgspec.structs.asdict(value.usage),
        "truncated": msgspec.to_builtins(value.truncated),
    }


def event(value: events.AnyEvent) -> dict[str, Any]:
    """Convert an event to its `type` and its fields."""
    if isinstance(value, events.TurnFinished):
        return {"type": value.__struct_config__.tag, "result": turn(value.result)}
    found: dict[str, Any] = msgspec.to_builtins(value)
    return found


def failed(error: str) -> dict[str, Any]:
    """Return the result of a turn that did not begin."""
    return turn(result("", error))


def result(
    text: str, error: str | None, interrupted: bool = False, session_id: str = "", conversation_id: str = ""
) -> events.TurnResult:
    """Return a TurnResult for something that was not a turn, such as a command."""
    return events.TurnResult(
        final_response=text,
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
