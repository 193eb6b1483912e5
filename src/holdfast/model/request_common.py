"""What all providers' requests share: names and ids they take, words for what is missing, JSON. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast import content_parts, types

OPENING = "(The conversation goes on from here.)"
GO_ON = "(Go on.)"
NO_RESULT = "(This call has no result yet.)"
NO_PICTURE = "(A picture that cannot be shown here.)"

_misfits = re.compile(r"[^a-zA-Z0-9_-]")


def fitting(name: str, limit: int = 64) -> str:
    """A name or an id in the characters all servers take; the same always becomes the same, no two become one.

    Up to a limit of 9, it is exactly so many letters and digits.
    """
    if 0 < len(name) <= limit and not _misfits.search(name) and (limit > 9 or (len(name) == 9 and name.isalnum())):
        return name
    digest = hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=5).hexdigest()
    return digest[:limit] if limit <= 9 else f"{_misfits.sub('_', name)[: limit - 11]}_{digest}"


def told(content: types.Content) -> str:
    """All that a model is told in a content, as one text: a note stands apart from what was said."""
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


def names(tools: Iterable[types.ToolSpec]) -> dict[str, str]:
    """What the tools are called here, by what they are called there."""
    return {fitting(tool.name): tool.name for tool in once(tools)}


def once(tools: Iterable[types.ToolSpec]) -> list[types.ToolSpec]:
    """The first tool of each name."""
    first: dict[str, types.ToolSpec] = {}
    for tool in tools:
        first.setdefault(tool.name, tool)
    return list(first.values())


def encoded(value: Any) -> msgspec.Raw:
    """A value as JSON, whatever text is in it."""
    try:
        return msgspec.Raw(msgspec.json.encode(value))
    except (UnicodeEncodeError, OverflowError):
        # Half a surrogate pair, from a file name perhaps, or a number beyond 64 bits, from a model.
        return msgspec.Raw(msgspec.json.encode(_mended(value)))


def _mended(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "replace").decode()
        case dict():
            return {_mended(key): _mended(item) for key, item in value.items()}
        case list() | tuple():
            return [_mended(item) for item in value]
        case int() if abs(value) >= 2**63:
            return msgspec.Raw(str(value).encode())
    return value
