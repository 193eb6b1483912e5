"""What a server's answer becomes for the model: text and pictures. Pure.

Everything here was made by the server. It is put into the form of a message, bounded, and never looked into.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from holdfast import content_parts, types
from holdfast.tools.mcp import names

PICTURES = 8
LARGEST_PICTURE = 5_000_000
MOST_TEXT = 1_000_000
_SHOWN = ("image/png", "image/jpeg", "image/gif", "image/webp")


def of_result(blocks: Iterable[Any], structured: object, clean: Callable[[str], str]) -> types.Content:
    """The content of a result. Structured content is repeated in the text by most servers; it stands in for none.

    All text is passed through `clean` before anything is cut, for half a secret is one too.
    """
    gathered = _Gathered(clean)
    for block in blocks:
        gathered.add(block)
    if not gathered.found and structured is not None:
        gathered.text(msgspec.json.encode(structured).decode())
    return gathered.content()


def words(content: types.Content) -> str:
    """The text of a content, for a sentence."""
    return content_parts.text(content).strip()


class _Gathered:
    """Texts that follow each other are one, so that what bounds a text bounds them all."""

    def __init__(self, clean: Callable[[str], str]) -> None:
        self._clean = clean
        self.found: list[content_parts.Part] = []
        self._pictures = 0
        self._room = MOST_TEXT

    def add(self, block: Any) -> None:
        match block.type:
            case "text":
                self.text(block.text)
            case "image":
                self._picture(block.mime_type, block.data)
            case "audio":
                self.text(f"[audio of type {names.line(block.mime_type, 60)}, left out]")
            case "resource_link":
                self.text(f"[resource {self._line(block.name, 100)}: {self._line(str(block.uri), 500)}]")
            case "resource":
                self._resource(block.resource)
            case other:
                self.text(f"[{names.line(str(other), 60)}, left out]")

    def text(self, text: str) -> None:
        if self._room <= 0:
            return
        text = self._clean(text)
        text, self._room = text[: self._room], self._room - len(text) - 1
        last = self.found[-1] if self.found else None
        if isinstance(last, content_parts.Text):
            self.found[-1] = content_parts.Text(f"{last.text}\n{text}")
        else:
            self.found.append(content_parts.Text(text))

    def _line(self, text: str, limit: int) -> str:
        return names.line(self._clean(text), limit)

    def _resource(self, resource: Any) -> None:
        where = self._line(str(resource.uri), 500)
        if getattr(resource, "text", None) is not None:
            self.text(f"[resource {where}]\n{resource.text}")
        elif resource.mime_type in _SHOWN:
            self._picture(resource.mime_type, resource.blob)
        else:
            kind = names.line(resource.mime_type or "an unknown type", 60)
            self.text(f"[resource {where} of {kind}, {len(resource.blob) * 3 // 4:,} bytes, left out]")

    def _picture(self, kind: str, data: str) -> None:
        self._pictures += 1
        why = _unfit(kind, data) if self._pictures <= PICTURES else f"more than {PICTURES} pictures"
        if why:
            self.text(f"[a picture was left out: {why}]")
        else:
            self.found.append(content_parts.Image(media_type=kind, data=data))

    def content(self) -> types.Content:
        return content_parts.encode(self.found) or "[The server answered with nothing.]"


def _unfit(kind: str, data: str) -> str:
    """Why a picture cannot be passed on: one that the model's provider refuses would stop the conversation."""
    if kind not in _SHOWN:
        return f"its type is {names.line(kind, 60)}"
    if len(data) > LARGEST_PICTURE:
        return "it is too large"
    try:
        begins = base64.b64decode(data, validate=True)[:12]
    except (binascii.Error, ValueError):
        return "it is not base64"
    return "" if _looks_like(begins) == kind else "it is not of the type it says"


def _looks_like(begins: bytes) -> str:
    if begins.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if begins.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if begins.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    return "image/webp" if begins[:4] == b"RIFF" and begins[8:12] == b"WEBP" else ""
