"""Build messages without a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast import types


def message(seq: int, role: types.Role, content: types.Content = "", **body: Any) -> types.Message:
    written = msgspec.json.encode(types.Body(content=content, **body)).decode()
    return types.Message(seq, f"m{seq}", "s", role, 0.0, written)


def calling(seq: int, name: str, **given: str) -> types.Message:
    call = types.ToolCall(f"c{seq}", name, msgspec.json.encode(given).decode())
    return message(seq, "assistant", tool_calls=(call,))


def talk(*texts: str, begin: int = 1) -> list[types.Message]:
    """Return messages of a user and an assistant in turns."""
    roles: tuple[types.Role, types.Role] = ("user", "assistant")
    return [message(seq, roles[index % 2], text) for index, (seq, text) in enumerate(enumerate(texts, start=begin))]


def order_errors(messages: Sequence[types.Message]) -> list[str]:
    """Return the errors of a strict provider: results not next to their calls, calls without results, a wrong start."""
    found, open_calls = [], set[str]()
    if messages and messages[0].role != "user":
        found.append("does not begin with the user")
    for message in messages:
        if message.role == "tool":
            if message.tool_call_id not in open_calls:
                found.append(f"message {message.seq} is a result of nothing before it")
            open_calls.discard(message.tool_call_id or "")
        elif open_calls:
            found.append(f"message {message.seq} comes before the results of {sorted(open_calls)}")
            open_calls = set()
        if message.role == "assistant":
            open_calls = {call.id for call in message.tool_calls}
    if open_calls:
        found.append(f"ends without the results of {sorted(open_calls)}")
    return found
