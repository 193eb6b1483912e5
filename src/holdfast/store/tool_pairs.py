"""Makes a stretch of the log valid for any model provider. Pure: messages in, messages out.

Providers want every tool call followed at once by its result. The log is in the order things were
written, by several processes: between a call and its result another message may stand, a result may
come after its call was compacted away, and a process may have died before any result came.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast import types
from holdfast.store import message_codec

NO_RESULT = "[No result: the process that ran this call ended before it finished.]"
LATE_RESULT = "[Result of an earlier tool call, {id}]\n"
# How the uid of such a result begins: a person can type the words above, but no uid.
_LATE = "late:"


def arrange(messages: Sequence[types.Message], turn_began: int | None) -> tuple[list[types.Message], frozenset[str]]:
    """Results next to their calls, dead calls closed; and the ids of calls that are still running.

    turn_began is the last seq before the turn that holds the lease (None: no turn runs): a call after
    it without a result is running and stays open, an older one is dead and gets a synthetic result.
    """
    groups, running = _grouped(messages), set[str]()
    arranged: list[types.Message] = []
    for message, results in groups:
        arranged.append(message)
        for call in message.tool_calls if message.role == "assistant" else ():
            if call.id in results:
                arranged.append(results[call.id])
            elif turn_began is not None and message.seq > turn_began:
                running.add(call.id)
            else:
                arranged.append(_closed(message, call))
    return arranged, frozenset(running)


def has_calls(messages: Iterable[types.Message]) -> bool:
    """Whether there is anything to arrange; told from how bodies begin, so that none need be decoded."""
    return any(message.role == "tool" or message.body.startswith('{"tool_calls') for message in messages)


Group = tuple[types.Message, dict[str, types.Message]]


def _grouped(messages: Sequence[types.Message]) -> list[Group]:
    """Each message with the results that belong to it; results without a call become notes."""
    groups: list[Group] = []
    waiting: dict[str, dict[str, types.Message]] = {}
    for message in messages:
        if message.role == "tool":
            results = waiting.pop(message.tool_call_id or "", None)
            if results is not None:
                results[message.tool_call_id or ""] = message
                continue
            groups.append((_as_note(message), {}))
            continue
        group: Group = (message, {})
        groups.append(group)
        if message.role == "assistant":
            waiting.update({call.id: group[1] for call in message.tool_calls})
    return groups


def _as_note(message: types.Message) -> types.Message:
    """A result whose call is not in view: still in the context, as something that was said."""
    note = LATE_RESULT.format(id=message.tool_call_id or "unknown")
    content = message.content
    parts = note + content if isinstance(content, str) else [{"type": "text", "text": note}, *content]
    uid, body = f"{_LATE}{message.uid}", message_codec.written(parts)
    return types.Message(message.seq, uid, message.session_id, "user", message.at, body)


def is_late(message: types.Message) -> bool:
    """Whether this is a result that stands as a note, since its call is not in view."""
    return message.role == "user" and message.uid.startswith(_LATE)


def _closed(message: types.Message, call: types.ToolCall) -> types.Message:
    body = message_codec.written(NO_RESULT, tool_call_id=call.id)
    return types.Message(message.seq, f"{message.uid}:{call.id}", message.session_id, "tool", message.at, body)
