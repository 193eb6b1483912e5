"""Transports for the MCP SDK: a server process under the common supervisor, and a bounded HTTP client."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import httpx2
from mcp.client.stdio import StdioServerParameters, stdio_client

from holdfast import errors
from holdfast.tools.shell import supervisor_client

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
TOO_LONG = f"sent an answer of more than {MAX_MESSAGE_BYTES // 1024 // 1024} MB"
CONNECT_TIMEOUT_SECONDS, READ_TIMEOUT_SECONDS = 30.0, 300.0
MAX_STDERR_BYTES = 8_000
STOP_TIMEOUT_SECONDS = 15.0

OnRefusal = Callable[[int, bool], None]
"""Called with the status of each request that failed, and whether it was part of a session."""


class ServerProcess:
    """A server that is a child process.

    The supervisor limits the length of lines, and stops the server with all its descendants when the connection or
    this program ends. `on_end` is called once when the server can no longer answer.
    """

    def __init__(self, command: str, args: tuple[str, ...], env: dict[str, str], cwd: str, on_end: Callable[[], None]):
        self._command, self._args, self._env, self._cwd, self._on_end = command, args, env, cwd, on_end
        self._stderr, self._reading = bytearray(), -1
        self._ended = asyncio.Event()

    @property
    def last_lines(self) -> list[str]:
        """The last line that the server wrote to standard error, and how it ended, as far as that is known."""
        lines = [line.strip() for line in self._stderr.decode("utf-8", "replace").splitlines() if line.strip()]
        return lines[-2:] if self._ended.is_set() else []

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[tuple[Any, Any]]:
        """Start the server and yield its streams; when left, no process of the server is running."""
        if shutil.which(self._command, path=self._env.get("PATH")) is None:
            raise errors.ToolFailed(f"there is no program {errors.quote(self._command)}")
        self._reading, writing = os.pipe()
        os.set_blocking(self._reading, False)
        argv = supervisor_client.stdio_argv(MAX_MESSAGE_BYTES, [self._command, *self._args])
        server = StdioServerParameters(
            command=argv[0], args=argv[1:], env=self._env, cwd=self._cwd, encoding_error_handler="replace"
        )
        with open(writing, "w", encoding="utf-8") as errlog:
            transport = stdio_client(server, errlog)
            try:
                streams = await transport.__aenter__()
            except (OSError, ValueError) as error:
                os.close(self._reading)
                reason = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
                raise errors.ToolFailed(f"{errors.quote(self._command)} cannot be started: {reason}") from None
        asyncio.get_running_loop().add_reader(self._reading, self._read_stderr)
        try:
            yield streams
        finally:
            try:
                await transport.__aexit__(*sys.exc_info())
            finally:
                await self._wait()

    async def _wait(self) -> None:
        """Wait until the supervisor has stopped everything; it continues without us if that takes too long."""
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_TIMEOUT_SECONDS):
                    await self._ended.wait()
        finally:
            if not self._ended.is_set():
                self._close()

    def _read_stderr(self) -> None:
        with suppress(BlockingIOError):
            data = os.read(self._reading, 65_536)
            self._stderr += data
            del self._stderr[:-MAX_STDERR_BYTES]
            if not data:
                self._close()

    def _close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._reading)
        os.close(self._reading)
        self._ended.set()
        self._on_end()


def http_client(
    headers: dict[str, str], timeout: float, on_refusal: OnRefusal, *, endless: bool = False
) -> httpx2.AsyncClient:
    """Build the HTTP client for one server. The body of an `endless` stream may pause for any time.

    The SDK limits the events of a stream; other bodies are limited here, after decompression.
    """

    async def check(response: httpx2.Response) -> None:
        if response.status_code >= 400 and response.request.method == "POST":
            on_refusal(response.status_code, "mcp-session-id" in response.request.headers)
        kind = response.headers.get("content-type", "").lower()
        is_stream = response.is_success and kind.startswith("text/event-stream")
        if response.request.method == "DELETE" or not is_stream:
            packed = httpx2.Response(
                response.status_code, headers=response.headers, stream=response.stream, request=response.request
            )
            response.stream = _LimitedStream(packed)
            response.headers.pop("content-encoding", None)

    read = None if endless else max(READ_TIMEOUT_SECONDS, timeout + CONNECT_TIMEOUT_SECONDS)
    limits = httpx2.Timeout(CONNECT_TIMEOUT_SECONDS, read=read)
    return httpx2.AsyncClient(headers=headers, timeout=limits, event_hooks={"response": [check]})


class _LimitedStream(httpx2.AsyncByteStream):
    """The decompressed body of a response, which fails when it is too long."""

    def __init__(self, packed: httpx2.Response) -> None:
        self._packed = packed

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async with aclosing(self._packed.aiter_bytes()) as pieces:
            async for piece in pieces:
                size += len(piece)
                if size > MAX_MESSAGE_BYTES:
                    # After this kind of error the SDK fails the call and keeps the connection.
                    raise httpx2.StreamError(TOO_LONG)
                yield piece

    async def aclose(self) -> None:
        await self._packed.aclose()
