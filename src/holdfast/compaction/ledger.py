"""The ledger of a compaction: an index of the messages that left the context. Pure.

It is stored with the compaction. Its size is bounded: it points to the log and does not copy it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast import types
from holdfast.compaction import must_keep, sentences

MAX_RANGES, MAX_TOOLS, MAX_FILES, MAX_ASKS, MAX_NOTES = 64, 64, 128, 32, 16
MAX_LENGTH = 320


class Ledger(msgspec.Struct, frozen=True, omit_defaults=True):
    """The messages that a compaction removed from the context."""

    messages: int = 0
    ranges: tuple[tuple[int, int], ...] = ()
    """The first and the last seq of each range of messages, both inclusive."""
    tools: dict[str, int] = {}
    """The number of calls of each tool, the most used one first."""
    files: tuple[str, ...] = ()
    """The files named most recently, the last one at the end."""
    asks: tuple[str, ...] = ()
    """The open requests, verbatim."""
    notes: tuple[str, ...] = ()
    """Why earlier summaries were rejected."""


def build(messages: Sequence[types.Message], notes: Sequence[str] = ()) -> dict[str, Any]:
    """Build the ledger of the removed messages, as it is stored."""
    messages = sentences.drop_summaries(messages)
    spoken = sentences.split_messages(messages)
    calls = Counter(call.name[:MAX_LENGTH] for message in messages for call in message.tool_calls)
    ledger = Ledger(
        len(messages),
        _join_ranges(message.seq for message in messages),
        dict(calls.most_common(MAX_TOOLS)),
        tuple(must_keep.find_named_files(messages, spoken)[-MAX_FILES:]),
        tuple(each.text for each in must_keep.find_open_requests(spoken, ())[-MAX_ASKS:]),
        tuple(map(clip_note, notes[:MAX_NOTES])),
    )
    return msgspec.json.decode(msgspec.json.encode(ledger), type=dict[str, Any])


def clip_note(note: str) -> str:
    """Make a note short, redacted and storable: a summarizer may raise any text."""
    return sentences.clip(sentences.fold(sentences.redact(note)), MAX_LENGTH).encode(errors="replace").decode()


def _join_ranges(seqs: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return the ranges of consecutive seqs; if there are too many, the last one reaches to the end."""
    ranges: list[tuple[int, int]] = []
    for seq in sorted(set(seqs)):
        if ranges and (ranges[-1][1] == seq - 1 or len(ranges) == MAX_RANGES):
            ranges[-1] = (ranges[-1][0], seq)
        else:
            ranges.append((seq, seq))
    return tuple(ranges)
