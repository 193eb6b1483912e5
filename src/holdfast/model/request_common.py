"""What the request builders of all APIs share: names, texts, JSON. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast import content_parts, types
from holdfast.model import base

OPENING = "(The conversation continues here.)"
GO_ON = "(Continue.)"
NO_RESULT = "(This call has no result yet.)"
NO_PICTURE = "(An image that cannot be shown here.)"

_UNSAFE = re.compile(r"[^a-zA-Z0-9_-]")


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
    notes = [
        part.text
        for each in content
        if each.get("type") == "note"
        for part in content_parts.parse([each])
        if isinstance(part, content_parts.Text)
    ]
    return "\n\n".join(text for text in (*notes, content_parts.text(content)) if text)


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
    return {safe_name(tool.name): tool.name for tool in unique_tools(tools)}


def unique_tools(tools: Iterable[types.ToolSpec]) -> list[types.ToolSpec]:
    """Return the first tool of each name."""
    first: dict[str, types.ToolSpec] = {}
    for tool in tools:
        first.setdefault(tool.name, tool)
    return list(first.values())


def is_json_object(text: str) -> bool:
    """Whether the text is a JSON object."""
    try:
        msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
    return True


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
