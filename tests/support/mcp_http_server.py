"""An MCP server over HTTP that can misbehave."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route, Router

from holdfast.gateway.platforms.http import server
from holdfast.tools.mcp import settings

ANY = {"type": "object", "properties": {}}
TOOLS = ("ok", "status", "flood", "stream", "bomb", "refuse")
MEGABYTE = 1024 * 1024
FLOOD = 200


class McpHttpServer:
    """The server and its state, which a test may change."""

    def __init__(self, port: int) -> None:
        self.config = settings.ServerConfig(name="web", url=f"http://127.0.0.1:{port}/mcp", timeout=30.0)
        self.began = 0
        """Number of sessions that were opened."""
        self.sent = 0
        """Megabytes of a flood that were sent."""
        self.status = 500
        self._forgotten: Response | None = None
        """The response to an older session."""

    @property
    def _session(self) -> str:
        return f"session-{self.began}"

    def forget(self, status: int, body: dict[str, Any] | None) -> None:
        """Forget all sessions, as after a restart."""
        error = {**body, "jsonrpc": "2.0", "id": None} if body else None
        self._forgotten = JSONResponse(error, status) if error else Response(status_code=status)
        self.began += 1

    async def respond(self, request: Request) -> Response:
        message, session = await request.json(), request.headers.get("mcp-session-id")
        if session not in (None, self._session) and self._forgotten:
            return self._forgotten
        if "id" not in message:
            return Response(status_code=202)
        answer = {"jsonrpc": "2.0", "id": message["id"]}
        match message["method"]:
            case "initialize":
                self.began += 1
                info = {"name": "web", "version": "1"}
                can = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
                return JSONResponse({**answer, "result": can}, headers={"mcp-session-id": self._session})
            case "tools/list":
                listed = [{"name": name, "inputSchema": ANY} for name in TOOLS]
                return JSONResponse({**answer, "result": {"tools": listed}})
            case "tools/call":
                return self._call(message["params"]["name"], answer)
        return JSONResponse({**answer, "error": {"code": -32601, "message": "no"}})

    def _call(self, tool: str, answer: dict[str, Any]) -> Response:
        match tool:
            case "status":
                return Response(status_code=self.status)
            case "refuse":
                return JSONResponse({**answer, "error": {"code": -32602, "message": "not so"}}, 400)
            case "flood":
                return StreamingResponse(self._flood(b"["), media_type="application/json")
            case "stream":
                return StreamingResponse(self._flood(b"data: "), media_type="text/event-stream")
        text = "x" * (20 * MEGABYTE) if tool == "bomb" else "fine"
        result = {**answer, "result": {"content": [{"type": "text", "text": text}]}}
        packed = gzip.compress(msgspec.json.encode(result), 1)
        return Response(packed, media_type="application/json", headers={"content-encoding": "gzip"})

    async def _flood(self, begin: bytes) -> AsyncIterator[bytes]:
        """Send a body until the client closes the connection."""
        yield begin
        for self.sent in range(FLOOD):
            yield b"x" * MEGABYTE
            await asyncio.sleep(0)  # A closed connection is noticed by another task.


@asynccontextmanager
async def serving() -> AsyncIterator[McpHttpServer]:
    listening = server.bind("127.0.0.1", 0, has_tokens=False)
    web = McpHttpServer(listening.getsockname()[1])
    async with server.serve(Router([Route("/mcp", web.respond, methods=["POST"])]), listening):
        yield web
