"""The entries of a transcript: messages, tool calls with their results, compactions and notices. Pure.

A call and its result are one entry, wherever the result is stored. Notices and answers of commands are not messages:
they belong behind the message that was the last one when they came.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from holdfast import content_parts, errors, events, types

Kind = Literal["user", "reply", "reasoning", "tool", "program", "compaction", "notice", "answer", "summary", "queued"]
"""A person's message; a reply; reasoning of the model; a tool call; a message of a program; the line of a compaction; a
notice; the answer of a command; a summary; a message that waits for its turn."""

Key = tuple[int, int]
"""Identifies an entry: the seq of its message, and its place within that message."""

FIRST_CALL = 2
"""The place of the first tool call of a message, behind its text and reasoning."""
BEHIND_MESSAGE = 1_000
"""Places from here on belong to entries behind a message."""


class Entry(msgspec.Struct, frozen=True):
    """One entry of a transcript."""

    key: Key
    kind: Kind
    text: str = ""
    name: str = ""
    """For a tool its name and arguments, for a reply the model."""
    ok: bool | None = None
    """Whether a tool succeeded; None while it runs, or if no result is stored."""
    at: float = 0.0
    level: events.Level = "info"
    hidden: bool = False
    """Whether the message was hidden, or the compaction undone."""
    epoch: int = 0
    """The epoch of a compaction."""


class TranscriptRange(msgspec.Struct, frozen=True):
    """A range of messages, with the hides and compactions of the conversation."""

    last: int = 0
    first: int = 1
    hides: tuple[types.Hide, ...] = ()
    compactions: tuple[types.Compaction, ...] = ()
    active_epoch: int | None = None
    """The compaction that the context is based on."""

    @property
    def active_epochs(self) -> set[int]:
        """The epochs of the active compaction and those it is based on; the others were undone."""
        bases = {each.epoch: each.base_epoch for each in self.compactions}
        found, epoch = set[int](), self.active_epoch
        while epoch is not None and epoch not in found:
            found.add(epoch)
            epoch = bases.get(epoch)
        return found

    def first_seq(self, compaction: types.Compaction) -> int:
        """Return the first message that this compaction replaced and no earlier one."""
        base = next((each for each in self.compactions if each.epoch == compaction.base_epoch), None)
        return base.cut_seq + 1 if base else 1


def build_entries(
    messages: Sequence[types.Message],
    shown: TranscriptRange,
    notices: Mapping[int, Sequence[Entry]] | None = None,
    within: tuple[int, int] | None = None,
) -> list[Entry]:
    """Return the entries of these messages in order; only those that start `within` two seqs, if given."""
    low, high = within or (0, shown.last)
    hidden = [(each.from_seq, each.to_seq) for each in shown.hides if each.shown_epoch is None]
    results = {each.tool_call_id: each for each in messages if each.role == "tool" and _is_readable(each)}
    call_ids = {call.id for each in messages for call in _tool_calls(each)}
    found = list((notices or {}).get(0, ())) if low <= 1 else []
    for message in messages:
        if not low <= message.seq <= high:
            continue
        is_hidden = any(start <= message.seq <= end for start, end in hidden)
        for entry in _message_entries(message, results, call_ids):
            found.append(msgspec.structs.replace(entry, hidden=is_hidden))
        found += (notices or {}).get(message.seq, ())
        found += [_compaction_entry(each, shown) for each in shown.compactions if each.cut_seq == message.seq]
    return found


def _is_readable(message: types.Message) -> bool:
    try:
        return not message.redacted and message.content is not None
    except errors.StoreCorrupt:
        return False


def _tool_calls(message: types.Message) -> Sequence[types.ToolCall]:
    return message.tool_calls if message.role == "assistant" and _is_readable(message) else ()


def call_keys(messages: Sequence[types.Message], call_ids: set[str]) -> set[Key]:
    return {
        (message.seq, place)
        for message in messages
        for place, call in enumerate(_tool_calls(message), FIRST_CALL)
        if call.id in call_ids
    }


def _message_entries(
    message: types.Message, results: Mapping[str | None, types.Message], call_ids: set[str]
) -> Iterator[Entry]:
    seq = message.seq
    if message.redacted:
        yield Entry((seq, 0), "notice", f"Message {seq} was redacted.", at=message.at)
    elif not _is_readable(message):
        yield Entry((seq, 0), "notice", f"Message {seq} is damaged. Run `holdfast doctor`.", level="error")
    elif message.role == "tool":
        if message.tool_call_id not in call_ids:
            text = content_parts.text(message.content)
            yield Entry((seq, 0), "tool", text, "result", content_parts.is_success("", message.content), message.at)
    elif message.role == "assistant":
        yield from _reply_entries(message, results)
    else:
        kind: Kind = "program" if message.role == "system" or content_parts.notice_kind(message.content) else "user"
        yield Entry((seq, 0), kind, _text(message.content), at=message.at)


def _reply_entries(message: types.Message, results: Mapping[str | None, types.Message]) -> Iterator[Entry]:
    reasoning = "\n".join(
        each.text for each in content_parts.parse(message.content) if isinstance(each, content_parts.Reasoning)
    )
    if reasoning.strip():
        yield Entry((message.seq, 1), "reasoning", reasoning, at=message.at)
    if text := _text(message.content):
        yield Entry((message.seq, 0), "reply", text, message.model or "", at=message.at)
    for place, call in enumerate(message.tool_calls, FIRST_CALL):
        result = results.get(call.id)
        text = content_parts.text(result.content) if result else ""
        ok = None if result is None else content_parts.is_success(call.name, result.content)
        yield Entry((message.seq, place), "tool", text, f"{call.name} {_arguments(call)}".rstrip(), ok, message.at)


def _arguments(call: types.ToolCall) -> str:
    given = call.arguments if isinstance(call.arguments, str) else msgspec.json.encode(call.arguments).decode()
    return "" if given == "{}" else given


def _text(content: types.Content) -> str:
    images = sum(isinstance(each, content_parts.Image) for each in content_parts.parse(content))
    shown = "" if not images else "[image]" if images == 1 else f"[{images} images]"
    return "\n".join(each for each in (content_parts.text(content).strip(), shown) if each)


def compaction_key(compaction: types.Compaction) -> Key:
    return (compaction.cut_seq, BEHIND_MESSAGE + compaction.epoch)


def _compaction_entry(compaction: types.Compaction, shown: TranscriptRange) -> Entry:
    span = f"messages {shown.first_seq(compaction):,} to {compaction.cut_seq:,}"
    is_undone = compaction.epoch not in shown.active_epochs
    if compaction.epoch == shown.active_epoch:
        # A summary includes the one before it: the model sees nothing else of the messages up to here.
        text = f"compacted: a summary replaces messages 1 to {compaction.cut_seq:,}"
    else:
        text = f"undone: the compaction of {span}" if is_undone else f"compacted: {span}"
    return Entry(compaction_key(compaction), "compaction", text, hidden=is_undone, epoch=compaction.epoch)
