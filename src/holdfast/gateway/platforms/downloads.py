"""Bounded downloads: the size of a file is a claim of its sender until the file was read; and notes about the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from holdfast.gateway import platform
from holdfast.store import titles

if TYPE_CHECKING:  # An extra of each platform that uses it.
    import aiohttp

CHUNK_BYTES = 65_536
MAX_NAME = 100


async def read_body(response: aiohttp.ClientResponse, max_bytes: int) -> bytes | None:
    """Return the body of a response; None, without reading the rest, if it is larger than `max_bytes`."""
    body = bytearray()
    async for chunk in response.content.iter_chunked(CHUNK_BYTES):
        body += chunk
        if len(body) > max_bytes:
            return None
    return bytes(body)


def add_files(incoming: platform.Incoming, found: Sequence[platform.Attachment | str]) -> platform.Incoming:
    """Return a message with its files, and with the notes about those that were not received."""
    notes = [each for each in found if isinstance(each, str)]
    attachments = tuple(each for each in found if isinstance(each, platform.Attachment))
    return msgspec.structs.replace(
        incoming, text="\n".join(filter(None, (incoming.text, *notes))), attachments=attachments
    )


def not_received(name: str, reason: str) -> str:
    """Return the text that replaces a file of a message. The name is user text, so it is quoted."""
    return f"[The file {titles.normalize(name)[:MAX_NAME]!r} was not received: {reason}.]"


def too_large(name: str, max_bytes: int) -> str:
    """Return the text that replaces a file that is larger than the limit."""
    return not_received(name, f"it is larger than {max_bytes:,} bytes")
