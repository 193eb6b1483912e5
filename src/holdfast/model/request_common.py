"""The common part of the request builders: turns, names, texts, JSON. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from holdfast import content_parts, types
from holdfast.model import base

OPENING = "(The conversation continues here.)"
GO_ON = "(Continue.)"
NO_RESULT = "(This call has no result yet.)"
NO_PICTURE = "(An image that cannot be shown here.)"

_UNSAFE = re.compile(r"[^a-zA-Z0-9_-]")

Results = list[types.Message | None]
"""The results of the calls of a message, in their order; None where there is no result yet."""


def arrange(
    messages: Iterable[types.Message], encode: Callable[[types.Message], object | None]
) -> tuple[list[list[types.Message]], dict[int, Results]]:
    """Return turns that every API accepts: roles alternate, the user comes first and last, results follow their calls.

    A turn is a list of messages of one role; only its last message has calls. Their results are returned by the index
    of the turn. `encode` returns None for an empty message, which is left out. A result whose call is not in the
    context, or has a result already, is a message of the user. A long conversation is arranged again for every request,
    so hardly any objects are created.
    """
    turns: list[list[types.Message]] = []
    results: dict[int, Results] = {}
    waiting: dict[str, list[tuple[Results, int]]] = {}
    is_open = was_reply = False
    for message in messages:
        role = message.role
        if role == "tool" and (places := waiting.get(message.tool_call_id or "")):
            calls_results, place = places.pop(0)
            calls_results[place] = message
            continue
        if encode(message) is None:
            continue
        is_reply = role == "assistant"
        if is_open and is_reply == was_reply:
            turns[-1].append(message)
        else:
            turns.append([message])
        is_open, was_reply = True, is_reply
        if is_reply and message.tool_calls:
            is_open = False
            found: Results = [None] * len(message.tool_calls)
            results[len(turns) - 1] = found
            waiting.update({call.id: [] for call in message.tool_calls})
            for place, call in enumerate(message.tool_calls):
                waiting[call.id].append((found, place))
    if is_open and was_reply:
        turns.append([_synthesize(GO_ON)])
    if not turns or turns[0][0].role == "assistant":
        turns.insert(0, [_synthesize(OPENING)])
        results = {place + 1: found for place, found in results.items()}
    return turns, results


def _synthesize(text: str) -> types.Message:
    return types.Message(0, "", "", "user", 0.0, msgspec.json.encode(types.Body(content=text)).decode())


def choose_ids(calls: Iterable[types.ToolCall], used: dict[str, int], limit: int = 64) -> list[str]:
    """Return ids for calls that are not in `used`, and add them: some servers number the calls of each reply from 0."""
    ids: list[str] = []
    for call in calls:
        safe = chosen = safe_name(call.id, limit)
        while chosen in used:
            used[safe] += 1
            chosen = safe_name(f"{call.id}_{used[safe]}", limit)
        used[chosen] = 1
        ids.append(chosen)
    return ids


def safe_name(name: str, limit: int = 64) -> str:
    """Return a name or id in the characters that every server accepts. Equal names stay equal, others stay different.

    With a limit of up to 9, the result has exactly that many letters and digits.
    """
    if 0 < len(name) <= limit and not _UNSAFE.search(name) and (limit > 9 or (len(name) == 9 and name.isalnum())):
        return name
    digest = hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=5).hexdigest()
    return digest[:limit] if limit <= 9 else f"{_UNSAFE.sub('_', name)[: limit - 11]}_{digest}"


def content_text(content: types.Content) -> str:
    """Return the text of a content as the model sees it: notes first, in paragraphs of their own."""
    if isinstance(content, str):
        return content
    notes = [_join_texts([each]) for each in content if each.get("type") == "note"]
    said = _join_texts([each for each in content if each.get("type") != "note"])
    return "\n\n".join(text for text in (*notes, said) if text)


def _join_texts(content: types.Content) -> str:
    return "".join(part.text for part in content_parts.parse(content) if isinstance(part, content_parts.Text))


def system_texts(request: base.Request) -> tuple[list[str], Sequence[types.Message]]:
    """Return the texts of the system prompt, including leading system messages, and the other messages."""
    messages = request.messages
    first = next((place for place, message in enumerate(messages) if message.role != "system"), len(messages))
    texts = [request.system, *(content_text(message.content) for message in messages[:first])]
    return [text for text in texts if text.strip()], messages[first:]


def wrap_system(message: types.Message) -> str:
    """Return a system message within the conversation as text for a user message; APIs have no other place for it."""
    text = content_text(message.content)
    return f"<system>\n{text}\n</system>" if text.strip() else ""


def original_names(tools: Iterable[types.ToolSpec]) -> dict[str, str]:
    """Map the names sent to the provider to the names of the tools."""
    return {safe_name(tool.name): tool.name for tool in tools}


def encode_arguments(arguments: str | dict[str, Any]) -> msgspec.Raw:
    """Return the arguments of a call as a JSON object; text that is none is sent back as `invalid_json`."""
    if isinstance(arguments, str):
        if not arguments.strip():
            return msgspec.Raw(b"{}")
        if is_json_object(arguments):
            return msgspec.Raw(arguments.strip().encode())
        arguments = {"invalid_json": arguments}
    return encode(arguments)


def is_json_object(text: str) -> bool:
    """Whether the text is a JSON object."""
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False


def encode(value: Any) -> msgspec.Raw:
    """Encode a value as JSON. Unpaired surrogates are replaced; integers beyond 64 bits are allowed."""
    try:
        return msgspec.Raw(msgspec.json.encode(value))
    except (UnicodeEncodeError, OverflowError):
        return msgspec.Raw(msgspec.json.encode(_make_encodable(value)))


def _make_encodable(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "replace").decode()
        case dict():
            return {_make_encodable(key): _make_encodable(item) for key, item in value.items()}
        case list() | tuple():
            return [_make_encodable(item) for item in value]
        case int() if abs(value) >= 2**63:
            return msgspec.Raw(str(value).encode())
    return value
