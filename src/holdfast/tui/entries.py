"""What a transcript is made of: messages, calls with their results, marks of compactions, and words beside them. Pure.

A call and its result are one entry, wherever the result stands. What only this terminal was told (the answer to a
command, a notice) is no message: it has the place behind the message that was the last one then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from holdfast import content_parts, errors, events, types

Kind = Literal["said", "answered", "thought", "tool", "told", "mark", "notice", "answer", "summary", "waiting"]
"""A person said it; the model answered, or thought; a tool was called; a program told it; a compaction; a word beside
the talk; what a command answers; a summary; a message that waits for its turn."""

Key = tuple[int, int]
"""Which entry it is: the number of its message, and its place among what that message has."""

CALLS = 2
"""The place of the first call of a message, behind its words and its thoughts."""
BESIDE = 1_000
"""Places from here on are of what stands behind a message and is none."""


class Entry(msgspec.Struct, frozen=True):
    """One thing to see."""

    key: Key
    kind: Kind
    text: str = ""
    name: str = ""
    """Of a tool, what it is called with behind it; of an answer, the model."""
    ok: bool | None = None
    """Of a tool: whether it did it; None while it runs, or where no result is stored."""
    at: float = 0.0
    level: events.Level = "info"
    taken_back: bool = False
    epoch: int = 0
    """Of a mark: the compaction."""


class Story(msgspec.Struct, frozen=True):
    """What is to be seen of a conversation: from one message to another, and what hangs on them."""

    last: int = 0
    first: int = 1
    hides: tuple[types.Hide, ...] = ()
    compactions: tuple[types.Compaction, ...] = ()
    in_force: int | None = None
    """The compaction the context stands on."""

    @property
    def chain(self) -> set[int]:
        """The compactions the one in force stands on, and itself: the others were taken back."""
        bases = {each.epoch: each.base_epoch for each in self.compactions}
        found, epoch = set[int](), self.in_force
        while epoch is not None and epoch not in found:
            found.add(epoch)
            epoch = bases.get(epoch)
        return found

    def begins(self, compaction: types.Compaction) -> int:
        """The first message that gave way to this compaction and not to an earlier one."""
        base = next((each for each in self.compactions if each.epoch == compaction.base_epoch), None)
        return base.cut_seq + 1 if base else 1

    def mark_beyond(self, first: int, last: int, step: int) -> types.Compaction | None:
        """The nearest compaction whose mark stands before the first message given, or behind the last one."""
        marks = sorted(self.compactions, key=mark_key)
        if step < 0:
            return next((each for each in reversed(marks) if each.cut_seq < first), None)
        return next((each for each in marks if last < each.cut_seq <= self.last), None)


def gathered(
    messages: Sequence[types.Message],
    story: Story,
    beside: Mapping[int, Sequence[Entry]] | None = None,
    within: tuple[int, int] | None = None,
) -> list[Entry]:
    """The entries of these messages, in order; only those that begin `within`, where that is given."""
    low, high = within or (0, story.last)
    hidden = [(each.from_seq, each.to_seq) for each in story.hides if each.shown_epoch is None]
    results = {each.tool_call_id: each for each in messages if each.role == "tool" and _readable(each)}
    called = {call.id for each in messages for call in _calls(each)}
    found = list((beside or {}).get(0, ())) if low <= 1 else []
    for message in messages:
        if not low <= message.seq <= high:
            continue
        back = any(start <= message.seq <= end for start, end in hidden)
        for entry in _of(message, results, called):
            found.append(msgspec.structs.replace(entry, taken_back=back))
        found += (beside or {}).get(message.seq, ())
        found += [_mark(each, story) for each in story.compactions if each.cut_seq == message.seq]
    return found


def _readable(message: types.Message) -> bool:
    try:
        return not message.redacted and message.content is not None
    except errors.StoreCorrupt:
        return False


def _calls(message: types.Message) -> Sequence[types.ToolCall]:
    return message.tool_calls if message.role == "assistant" and _readable(message) else ()


def called(messages: Sequence[types.Message], call_ids: set[str]) -> set[Key]:
    """The keys of these calls."""
    return {
        (message.seq, place)
        for message in messages
        for place, call in enumerate(_calls(message), CALLS)
        if call.id in call_ids
    }


def _of(message: types.Message, results: Mapping[str | None, types.Message], called: set[str]) -> Iterator[Entry]:
    seq = message.seq
    if message.redacted:
        yield Entry((seq, 0), "notice", f"Message {seq} was redacted.", at=message.at)
    elif not _readable(message):
        yield Entry((seq, 0), "notice", f"Message {seq} is damaged: run `holdfast doctor`.", level="error")
    elif message.role == "tool":
        if message.tool_call_id not in called:
            words = content_parts.text(message.content)
            yield Entry((seq, 0), "tool", words, "result", content_parts.is_success("", message.content), message.at)
    elif message.role == "assistant":
        yield from _answered(message, results)
    else:
        kind: Kind = "told" if message.role == "system" or content_parts.notice_kind(message.content) else "said"
        yield Entry((seq, 0), kind, _words(message.content), at=message.at)


def _answered(message: types.Message, results: Mapping[str | None, types.Message]) -> Iterator[Entry]:
    thought = "\n".join(
        each.text for each in content_parts.parse(message.content) if isinstance(each, content_parts.Reasoning)
    )
    if thought.strip():
        yield Entry((message.seq, 1), "thought", thought, at=message.at)
    if words := _words(message.content):
        yield Entry((message.seq, 0), "answered", words, message.model or "", at=message.at)
    for place, call in enumerate(message.tool_calls, CALLS):
        result = results.get(call.id)
        words = content_parts.text(result.content) if result else ""
        ok = None if result is None else content_parts.is_success(call.name, result.content)
        yield Entry((message.seq, place), "tool", words, f"{call.name} {arguments(call)}".rstrip(), ok, message.at)


def arguments(call: types.ToolCall) -> str:
    """What a tool was called with, on one line."""
    given = call.arguments if isinstance(call.arguments, str) else msgspec.json.encode(call.arguments).decode()
    return "" if given == "{}" else given


def _words(content: types.Content) -> str:
    pictures = sum(isinstance(each, content_parts.Image) for each in content_parts.parse(content))
    shown = "" if not pictures else "[picture]" if pictures == 1 else f"[{pictures} pictures]"
    return "\n".join(each for each in (content_parts.text(content).strip(), shown) if each)


def mark_key(compaction: types.Compaction) -> Key:
    """Which entry the mark of a compaction is."""
    return (compaction.cut_seq, BESIDE + compaction.epoch)


def _mark(compaction: types.Compaction, story: Story) -> Entry:
    span = f"messages {story.begins(compaction):,} to {compaction.cut_seq:,}"
    if compaction.epoch == story.in_force:
        # A summary goes on from the one before it: the model sees nothing else of all that was said up to here.
        told = f"compacted: a summary stands for messages 1 to {compaction.cut_seq:,}"
    elif compaction.epoch in story.chain:
        told = f"compacted: {span}"
    else:
        told = f"taken back: the compaction of {span}"
    back = compaction.epoch not in story.chain
    return Entry(mark_key(compaction), "mark", told, taken_back=back, epoch=compaction.epoch)
