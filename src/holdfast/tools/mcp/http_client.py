"""How a server is spoken to that is an address: an HTTP client that holds no answer larger than one may be.

The protocol's library bounds the events of a stream; every other body it reads whole, and that is bounded here, as it
is once unpacked. Proxies and certificates of the environment hold, as for everything that speaks HTTP.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

import httpx2

LONGEST = 16 * 1024 * 1024
TOO_LONG = f"sent an answer of more than {LONGEST // 1024 // 1024} MB"
CONNECTING, QUIET = 30.0, 300.0
SESSION = "mcp-session-id"

Refused = Callable[[int, bool], None]
"""Told the status of each request that was refused, and whether it was one within a session."""


def client(headers: dict[str, str], timeout: float, refused: Refused, *, endless: bool = False) -> httpx2.AsyncClient:
    """A client for one server; `timeout` is how long a call may be silent. An `endless` stream may be so for ever."""

    async def looked_at(response: httpx2.Response) -> None:
        if response.status_code >= 400 and response.request.method == "POST":
            refused(response.status_code, SESSION in response.request.headers)
        if not _is_stream(response):
            _bound(response)

    waits = httpx2.Timeout(CONNECTING, read=None if endless else max(QUIET, timeout + CONNECTING))
    return httpx2.AsyncClient(headers=headers, timeout=waits, event_hooks={"response": [looked_at]})


def _is_stream(response: httpx2.Response) -> bool:
    """Whether it is read event by event, for as long as it goes on."""
    kind = response.headers.get("content-type", "").lower()
    return bool(response.is_success and response.request.method != "DELETE" and kind.startswith("text/event-stream"))


def _bound(response: httpx2.Response) -> None:
    """Have its body end in an error when it is too long. What is counted is unpacked: a little may hold a lot."""
    packed = httpx2.Response(
        response.status_code, headers=response.headers, stream=response.stream, request=response.request
    )
    response.stream = _Bounded(packed)
    response.headers.pop("content-encoding", None)


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, packed: httpx2.Response) -> None:
        self._packed = packed

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async with aclosing(self._packed.aiter_bytes()) as pieces:
            async for piece in pieces:
                size += len(piece)
                if size > LONGEST:
                    # The library answers for this kind of error: the call fails, and the connection goes on.
                    raise httpx2.StreamError(TOO_LONG)
                yield piece

    async def aclose(self) -> None:
        await self._packed.aclose()
