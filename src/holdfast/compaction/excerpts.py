"""Shorten messages for a request: keep the head and the tail of a text, and a pointer that recall can follow. Pure.

Stored messages are not changed. A shortened message keeps its seq, its role and the ids of its calls, so a valid
request stays valid. Signed reasoning and unknown parts are left as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast import types
from holdfast.compaction import cut, speaker
from holdfast.store import message_codec

HEAD_SHARE = 0.6
"""The share of the kept text that comes from its beginning."""
MIN_KEPT = 80
"""Fewer characters are not kept: the pointer is as long."""
RETRY_SHARES = (0.9, 0.8, 0.6, 0.3, 0.0)
"""The shares of the estimated length to try; the first one nearly always fits, the last keeps pointers only."""
# Messages are shortened in steps, to these fractions of the budget and to these numbers of tokens.
BUDGET_FRACTIONS, TOKEN_LEVELS = (8, 32), (1_024, 256, 64)


def shorten(message: types.Message, tokens: int, size: cut.Size) -> types.Message:
    """Return the message in at most `tokens` tokens, or as short as possible if the pointers alone take more."""
    if size(message) <= tokens:
        return message
    # Images stay if they fit together with the pointers.
    content = message.content
    has_images = isinstance(content, list) and any(part.get("type") == "image" for part in content)
    images = not has_images or size(_rewrite(message, 0, images=True)) <= tokens
    keep = _max_length(message)
    shorter = message if images else _rewrite(message, keep, images)
    for share in RETRY_SHARES:
        if size(shorter) <= tokens:
            return shorter
        keep = int(keep * share * min(1.0, tokens / size(shorter)))
        shorter = _rewrite(message, keep if keep > MIN_KEPT else 0, images)
    return shorter if size(shorter) < size(message) else message


def shorten_all(messages: Sequence[types.Message], size: cut.Size, budget: int) -> list[types.Message]:
    """Shorten the messages to at most `budget` tokens, as far as possible.

    Tool results come first, those before the last user message ahead of newer ones; then all messages but the summary.
    In each step, the oldest ones come first. The last user message stays, unless it alone exceeds the budget.
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
    """Return the steps: indexes of messages, and the tokens that each of them is shortened to."""
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
    by_budget = (max(TOKEN_LEVELS[-1], budget // fraction) for fraction in BUDGET_FRACTIONS)
    levels = sorted({*by_budget, *TOKEN_LEVELS}, reverse=True)
    return steps + [(places, level) for places in (old, new, others) for level in levels]


# --- one message -----------------------------------------------------------------------------------------


def _max_length(message: types.Message) -> int:
    content = message.content
    texts = [content] if isinstance(content, str) else [str(part.get("text", "")) for part in content]
    arguments = [call.arguments_text for call in message.tool_calls]
    return max(map(len, (*texts, *arguments)), default=0)


def _rewrite(message: types.Message, keep: int, images: bool) -> types.Message:
    """Return the message with at most `keep` characters of each text."""

    def shorten_text(text: str) -> str:
        return _shorten_text(text, keep, message.seq)

    def shorten_part(part: dict[str, Any]) -> dict[str, Any]:
        if part.get("type") == "image" and not images:
            return {"type": "text", "text": f"[An image is left out; recall message {message.seq}]"}
        text = part.get("text")
        # Reasoning stays: its provider accepts it only unchanged. Notes of the program are short.
        is_text = part.get("type") == "text" and isinstance(text, str)
        return {**part, "text": shorten_text(str(text))} if is_text else part

    content = message.content
    shorter = shorten_text(content) if isinstance(content, str) else [shorten_part(part) for part in content]
    calls = [_shorten_call(call, shorten_text) for call in message.tool_calls]
    body = message_codec.encode(shorter, calls, message.tool_call_id, message.model, message.usage)
    return types.Message(message.seq, message.uid, message.session_id, message.role, message.at, body)


def _shorten_text(text: str, keep: int, seq: int) -> str:
    head = int(keep * HEAD_SHARE)
    tail = keep - head
    left_out = len(text) - keep
    pointer = f"[… {left_out:,} characters left out; recall message {seq} …]"
    if left_out <= len(pointer):
        return text
    return "\n".join(piece for piece in (text[:head], pointer, text[len(text) - tail :]) if piece)


def _shorten_call(call: types.ToolCall, shorten_text: Callable[[str], str]) -> types.ToolCall:
    """Shorten the arguments to an object with the same names, which every provider accepts."""
    text = call.arguments_text
    if shorten_text(text) == text:
        return call
    try:
        arguments = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        arguments = {"text": text}
    values = {name: _encode(value) for name, value in arguments.items()}
    shorter = {name: short for name, value in values.items() if (short := shorten_text(value)) != value}
    # If there are very many short values, none of them can be shortened.
    replacement = {**arguments, **shorter} if shorter else {"shortened": shorten_text(text)}
    return msgspec.structs.replace(call, arguments=replacement)


def _encode(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
