"""Build messages without a store."""

from __future__ import annotations

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
