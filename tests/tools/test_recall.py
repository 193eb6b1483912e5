"""The recall tool: all a message holds, in words, from any character on; and what was left out is said."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast import types
from holdfast.tools import recall


def message(seq: int, content: Any = "", calls: Sequence[types.ToolCall] = ()) -> types.Message:
    body = msgspec.json.encode(types.Body(content=content, tool_calls=list(calls))).decode()
    return types.Message(seq, str(seq), "s", "assistant" if calls else "user", 0.0, body)


def asked(log: Sequence[types.Message], **arguments: int) -> str:
    async def fetch(first: int, last: int) -> Sequence[types.Message]:
        return [each for each in log if first <= each.seq <= last]

    return str(asyncio.run(recall.recall(fetch).run(arguments)))  # type: ignore[arg-type]


def test_parts_that_are_no_text_are_named() -> None:
    content = [
        {"type": "reasoning", "text": "hidden"},
        {"type": "text", "text": "Look."},
        {"type": "image", "url": "https://example.org/a.png"},
        {"type": "image", "media_type": "image/gif", "blob": "ab" * 32},
        {"type": "hologram"},
    ]
    assert asked([message(1, content)], first=1).splitlines()[1:] == [
        "Look.",
        "[image, https://example.org/a.png]",
        f"[image/gif, attachment {'ab' * 32}]",
        "[hologram]",
    ]


def test_arguments_of_calls_are_read_from_any_character_on() -> None:
    """They are shortened in the context, and what is shortened there says to look here."""
    long = "x" * 5_000 + "END"
    log = [message(1, "Writing.", [types.ToolCall("c", "write_file", {"text": long})])]
    assert '[calls write_file {"text":"xxx' in asked(log, first=1)
    late = asked(log, first=1, from_character=5_000)
    assert late.endswith('END"}]')
    assert len(late) < 200


def test_more_messages_than_are_told_at_once_are_said_to_be_there() -> None:
    log = [message(seq, f"text {seq}") for seq in range(1, 31)]
    told = asked(log, first=1, last=30)
    assert "text 20\n\n[20 messages per call; continue from 21.]" in told
    for first, last in ((1, 20), (21, 99), (1, 1)):
        assert "at once" not in asked(log, first=first, last=last)
