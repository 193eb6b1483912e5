"""Showing less of a message: its head, its tail, and a pointer that recall follows. Pure, and for views only.

What is stored stays as it is. A shortened message keeps its place, its role and the ids of its calls, so that
a request that was valid stays valid. What a provider signed, and what this version does not know, is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast import types
from holdfast.compaction import cut, speaker
from holdfast.store import message_codec

# Of what is shown, so much is the head: beginnings say what a text is, ends say what came of it.
HEAD = 0.6
# A text is not worth shortening below this many characters: the pointer is as long.
SHORT = 80
# Each try keeps so much of what should just fit: the first nearly always does, the last keeps pointers only.
STEPS = (0.9, 0.8, 0.6, 0.3, 0.0)
# Down to so many tokens messages are brought, step by step, until all fit; what is huge comes first.
SHARES, LEVELS = (8, 32), (1_024, 256, 64)

_TEXTS = ("text", "note", "cut")


def shorten(message: types.Message, tokens: int, size: cut.Size) -> types.Message:
    """The message in at most so many tokens; with fewer than the pointers take, as short as it gets."""
    if size(message) <= tokens:
        return message
    # Images stay where at least the pointers have room beside them.
    images = not _has_images(message) or size(_rewritten(message, 0, images=True)) <= tokens
    keep = _longest(message)
    shorter = message if images else _rewritten(message, keep, images)
    for share in STEPS:
        if size(shorter) <= tokens:
            return shorter
        keep = int(keep * share * min(1.0, tokens / size(shorter)))
        shorter = _rewritten(message, keep if keep > SHORT else 0, images)
    return shorter if size(shorter) < size(message) else message


def shortened(messages: Sequence[types.Message], size: cut.Size, budget: int) -> list[types.Message]:
    """The messages in at most `budget` tokens, as far as shortening gets there.

    Outputs of tools go first, those before the last ask ahead of the newer ones; then everything else but the
    summary. At each step the big ones, oldest first. The last ask is untouched, unless it alone is too big.
    """
    shown = list(messages)
    over = sum(map(size, shown)) - budget
    for places, tokens in _steps(shown, size, budget):
        for place in places:
            if over <= 0:
                return shown
            shorter = shorten(shown[place], tokens, size)
            over -= size(shown[place]) - size(shorter)
            shown[place] = shorter
    return shown


def _steps(messages: Sequence[types.Message], size: cut.Size, budget: int) -> list[tuple[Sequence[int], int]]:
    """Which messages are brought down to how many tokens, in turn."""
    ask = next((place for place in reversed(range(len(messages))) if speaker.is_ask(messages[place])), -1)
    outputs = [place for place, message in enumerate(messages) if message.role == "tool"]
    others = [
        place
        for place, message in enumerate(messages)
        if message.role != "tool" and place != ask and not speaker.is_summary(message)
    ]
    old, new = [place for place in outputs if place < ask], [place for place in outputs if place > ask]
    steps: list[tuple[Sequence[int], int]] = []
    if ask >= 0 and size(messages[ask]) > budget:
        steps.append(([ask], budget // 2))
    levels = sorted({*(max(LEVELS[-1], budget // share) for share in SHARES), *LEVELS}, reverse=True)
    return steps + [(places, level) for places in (old, new, others) for level in levels]


# --- one message, with no text longer than so many characters --------------------------------------------


def _has_images(message: types.Message) -> bool:
    return isinstance(message.content, list) and any(part.get("type") == "image" for part in message.content)


def _longest(message: types.Message) -> int:
    content = message.content
    said = [content] if isinstance(content, str) else [str(part.get("text", "")) for part in content]
    called = [_spelled(call.arguments) for call in message.tool_calls]
    return max(map(len, (*said, *called)), default=0)


def _rewritten(message: types.Message, keep: int, images: bool) -> types.Message:
    def less(text: str) -> str:
        return _less(text, keep, message.seq)

    def part_of(part: dict[str, Any]) -> dict[str, Any]:
        if part.get("type") == "image" and not images:
            return {"type": "text", "text": f"[An image is left out; recall message {message.seq}]"}
        text = part.get("text")
        # Of reasoning nothing is left out: its provider takes it back whole or not at all.
        return {**part, "text": less(text)} if part.get("type") in _TEXTS and isinstance(text, str) else part

    content = message.content
    said = less(content) if isinstance(content, str) else [part_of(part) for part in content]
    calls = [_call(call, less) for call in message.tool_calls]
    body = message_codec.encode(said, calls, message.tool_call_id, message.model, message.usage)
    return types.Message(message.seq, message.uid, message.session_id, message.role, message.at, body)


def _less(text: str, keep: int, seq: int) -> str:
    head = int(keep * HEAD)
    tail = keep - head
    left_out = len(text) - keep
    pointer = f"[… {left_out:,} characters left out; recall message {seq} …]"
    if left_out <= len(pointer):
        return text
    return "\n".join(piece for piece in (text[:head], pointer, text[len(text) - tail :]) if piece)


def _call(call: types.ToolCall, less: Callable[[str], str]) -> types.ToolCall:
    """Shortened arguments are an object with the same names, which is what every provider takes."""
    text = _spelled(call.arguments)
    if less(text) == text:
        return call
    given = _decoded(text)
    shorter = {name: _value(value, less) for name, value in given.items()}
    # Very many short values: none of them can give anything.
    return msgspec.structs.replace(call, arguments=shorter if shorter != given else {"shortened": less(text)})


def _spelled(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _decoded(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        return {"text": text}


def _value(value: Any, less: Callable[[str], str]) -> Any:
    text = _spelled(value)
    shorter = less(text)
    return value if shorter == text else shorter
