"""The results of a server as message content: text and images, bounded and without the secrets it was given.

A configured value is a secret by its name or its form, and is removed from everything that the server sends. Other
values, such as a folder or a region, are removed only from errors and logs: results need them.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from holdfast import content_parts, redaction, types
from holdfast.tools.files import images
from holdfast.tools.mcp import names
from holdfast.tools.permissions import secret_names

MAX_IMAGES = 8
MAX_IMAGE_LENGTH = 5_000_000
MAX_TEXT = 1_000_000
MIN_SECRET = 8
"""Shorter values occur in ordinary text."""


class SecretFilter:
    """Removes the values that a server was given from text that it sends."""

    def __init__(self, given: Iterable[tuple[str, str]]) -> None:
        given = tuple(given)
        self._all = _longest_first(value for _, value in given)
        self._secret = _longest_first(value for name, value in given if _is_secret(name, value))

    def redact(self, text: str) -> str:
        """Remove secrets, for the model, for people and for the store."""
        return _remove(text, self._secret)

    def redact_all(self, text: str) -> str:
        """Remove all configured values, for errors and logs."""
        return _remove(text, self._all)


def _is_secret(name: str, value: str) -> bool:
    pair = f"{name}: {value}"
    return secret_names.is_secret_variable(name, value) or redaction.redact(pair) != pair


def _longest_first(values: Iterable[str]) -> tuple[str, ...]:
    """Return the values and the words in them, the longest first."""
    words = {word for value in values for word in (value, *value.split()) if len(word) >= MIN_SECRET}
    return tuple(sorted(words, key=lambda word: (-len(word), word)))


def _remove(text: str, values: Iterable[str]) -> str:
    for value in values:
        text = text.replace(value, redaction.MARK)
    return text


def convert_result(blocks: Iterable[Any], structured: object, redact: Callable[[str], str]) -> types.Content:
    """Return the content of a result. Structured content is used only if there is no other: most servers repeat it.

    Text is redacted before it is cut, so that no half of a secret is left.
    """
    found = _ContentBuilder(redact)
    for block in blocks:
        found.add(block)
    if not found.parts and structured is not None:
        found.add_text(msgspec.json.encode(structured).decode())
    return content_parts.encode(found.parts) or "[The server answered with nothing.]"


class _ContentBuilder:
    """Collects parts. Consecutive texts are joined."""

    def __init__(self, redact: Callable[[str], str]) -> None:
        self._redact = redact
        self.parts: list[content_parts.Part] = []
        self._images = 0
        self._left = MAX_TEXT

    def add(self, block: Any) -> None:
        match block.type:
            case "text":
                self.add_text(block.text)
            case "image":
                self._add_image(block.mime_type, block.data)
            case "resource_link":
                self.add_text(f"[resource {self._line(block.name, 100)}: {self._line(str(block.uri), 500)}]")
            case "resource":
                self._add_resource(block.resource)
            case other:
                kind = getattr(block, "mime_type", None) or str(other)
                self.add_text(f"[content of type {names.one_line(kind, 60)}, left out]")

    def add_text(self, text: str) -> None:
        if self._left <= 0:
            return
        text = self._redact(text)
        text, self._left = text[: self._left], self._left - len(text) - 1
        last = self.parts[-1] if self.parts else None
        if isinstance(last, content_parts.Text):
            self.parts[-1] = content_parts.Text(f"{last.text}\n{text}")
        else:
            self.parts.append(content_parts.Text(text))

    def _line(self, text: str, limit: int) -> str:
        return names.one_line(self._redact(text), limit)

    def _add_resource(self, resource: Any) -> None:
        where = self._line(str(resource.uri), 500)
        if getattr(resource, "text", None) is not None:
            self.add_text(f"[resource {where}]\n{resource.text}")
        elif resource.mime_type in images.MEDIA_TYPES:
            self._add_image(resource.mime_type, resource.blob)
        else:
            kind = names.one_line(resource.mime_type or "an unknown type", 60)
            self.add_text(f"[resource {where} of {kind}, {len(resource.blob) * 3 // 4:,} bytes, left out]")

    def _add_image(self, kind: str, data: str) -> None:
        self._images += 1
        reason = _check_image(kind, data) if self._images <= MAX_IMAGES else f"more than {MAX_IMAGES} images"
        if reason:
            self.add_text(f"[an image was left out: {reason}]")
        else:
            self.parts.append(content_parts.Image(media_type=kind, data=data))


def _check_image(kind: str, data: str) -> str:
    """Return why an image cannot be passed on: one that the provider refuses would block the conversation."""
    if kind not in images.MEDIA_TYPES:
        return f"its type is {names.one_line(kind, 60)}"
    if len(data) > MAX_IMAGE_LENGTH:
        return "it is too large"
    try:
        decoded = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return "it is not base64"
    return "" if images.media_type(decoded[:12]) == kind else "its data are of another type"
