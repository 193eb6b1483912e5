"""Bounded downloads: the size of a file is a claim of its sender until the file was read."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # An extra of each platform that uses it.
    import aiohttp

CHUNK_BYTES = 65_536


async def read_body(response: aiohttp.ClientResponse, max_bytes: int) -> bytes | None:
    """Return the body of a response; None, without reading the rest, if it is larger than `max_bytes`."""
    body = bytearray()
    async for chunk in response.content.iter_chunked(CHUNK_BYTES):
        body += chunk
        if len(body) > max_bytes:
            return None
    return bytes(body)
