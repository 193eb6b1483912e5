"""Pair tool calls with their results, so that any model provider accepts the messages.

Providers require the result of a tool call directly after the call. In the log, which several processes write, another
message may come between the two, the call may have been compacted away before its result was stored, and a process may
have died before it stored a result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast import types
from holdfast.store import message_codec

NO_RESULT = "[No result: the process that ran this call ended before it finished.]"
LATE_RESULT = "[Result of an earlier tool call, {id}]\n"
# The prefix of the uid of such a message. Users may type the text above, but cannot choose the uid.
_LATE_UID = "late:"


def arrange(messages: Sequence[types.Message], turn_began: int | None) -> tuple[list[types.Message], frozenset[str]]:
    """Put each result after its call; return the messages, and the ids of the calls that are still running.

    `turn_began` is the last seq before the turn that holds the lease, or None if no turn runs. A later call without a
    result is still running; an earlier one was interrupted and gets a synthetic result.
    """
    groups, running = _group(messages), set[str]()
    arranged: list[types.Message] = []
    for message, results in groups:
        arranged.append(message)
        for call in message.tool_calls if message.role == "assistant" else ():
            if call.id in results:
                arranged.append(results[call.id])
            elif turn_began is not None and message.seq > turn_began:
                running.add(call.id)
            else:
                uid, body = f"{message.uid}:{call.id}", message_codec.encode_synthetic(NO_RESULT, tool_call_id=call.id)
                arranged.append(types.Message(message.seq, uid, message.session_id, "tool", message.at, body))
    return arranged, frozenset(running)


def has_calls(messages: Iterable[types.Message]) -> bool:
    """Return whether there are tool calls or results. It looks at the start of a body only, which is faster."""
    return any(message.role == "tool" or message.body.startswith('{"tool_calls') for message in messages)


Group = tuple[types.Message, dict[str, types.Message]]


def _group(messages: Sequence[types.Message]) -> list[Group]:
    """Return each message with the results of its calls; a result without a call becomes a user message."""
    groups: list[Group] = []
    waiting: dict[str, dict[str, types.Message]] = {}
    for message in messages:
        if message.role == "tool":
            results = waiting.pop(message.tool_call_id or "", None)
            if results is not None:
                results[message.tool_call_id or ""] = message
                continue
            groups.append((_late_result(message), {}))
            continue
        group: Group = (message, {})
        groups.append(group)
        if message.role == "assistant":
            waiting.update({call.id: group[1] for call in message.tool_calls})
    return groups


def _late_result(message: types.Message) -> types.Message:
    """Return a user message with the result of a call that is not in the context."""
    note = LATE_RESULT.format(id=message.tool_call_id or "unknown")
    content = message.content
    parts = note + content if isinstance(content, str) else [{"type": "text", "text": note}, *content]
    uid, body = f"{_LATE_UID}{message.uid}", message_codec.encode_synthetic(parts)
    return types.Message(message.seq, uid, message.session_id, "user", message.at, body)


def is_late(message: types.Message) -> bool:
    """Return whether this user message contains the result of a call that is not in the context."""
    return message.role == "user" and message.uid.startswith(_LATE_UID)
