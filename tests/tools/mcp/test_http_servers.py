"""MCP servers over HTTP: answers are bounded, and a failed call does not end the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast import errors
from holdfast.tools.mcp import servers
from tests.support import agents, mcp_http_server
from tests.support.mcp_servers import call, running
from tests.support.polling import until_async


@pytest.fixture
async def web() -> AsyncIterator[mcp_http_server.McpHttpServer]:
    async with mcp_http_server.serving() as started:
        yield started


@pytest.mark.parametrize(
    ("tool", "reason"),
    [("flood", "web sent an answer of more than 16"), ("bomb", "web sent an answer of more"), ("stream", "stopped")],
)
async def test_long_answer_is_refused(web: mcp_http_server.McpHttpServer, tool: str, reason: str) -> None:
    async with running(web.config) as started:
        with pytest.raises(errors.ToolFailed, match=reason):
            await call(started, f"web__{tool}")
        # The server could send only as much as was read, and buffered by the system.
        assert web.sent < mcp_http_server.FLOOD / 2
        assert await call(started, "web__ok") == "fine"
        assert tool == "stream" or web.began == 1


@pytest.mark.parametrize(
    ("tool", "status", "reason"),
    [
        ("status", 401, "refused: HTTP status 401"),
        ("status", 404, "connects again"),  # By the protocol, the session is over.
        ("status", 503, "refused: HTTP status 503"),
        ("refuse", 200, "refused: not so"),
    ],
)
async def test_refused_call_does_not_end_the_server(
    web: mcp_http_server.McpHttpServer, tool: str, status: int, reason: str
) -> None:
    web.status = status
    async with running(web.config) as started:
        for _ in range(servers.MAX_ENDS + 1):
            with pytest.raises(errors.ToolFailed, match=reason):
                await call(started, f"web__{tool}")
        assert await call(started, "web__ok") == "fine"
        assert status == 404 or web.began == 1


@pytest.mark.parametrize(
    ("status", "body"),
    [(404, None), (400, {"error": {"code": -32000, "message": "Bad Request: No valid session ID provided"}})],
)
async def test_forgotten_session_is_opened_again(web: mcp_http_server.McpHttpServer, status: int, body: Any) -> None:
    async with running(web.config) as started:
        for _ in range(servers.MAX_ENDS + 1):
            assert await call(started, "web__ok") == "fine"
            web.forget(status, body)
            with pytest.raises(errors.ToolFailed, match="does not know us any more"):
                await call(started, "web__ok")
        assert await call(started, "web__ok") == "fine"


async def test_unreachable_server_is_tried_after_growing_pauses_and_then_left_alone() -> None:
    async with mcp_http_server.serving() as web:
        config = web.config
    clock, pauses = agents.LoopClock(), (0.0, 1_000.0, 2_000.0)
    async with running(config, backoff=pauses) as started:
        server = started.servers[0]
        for pause in pauses[1:]:
            await until_async(lambda: server.state == "down")
            waiting = asyncio.create_task(server.connect())
            await until_async(lambda: server.state == "starting")
            clock.advance(pause - 100.0)
            await asyncio.sleep(0)
            assert (server.state, waiting.done()) == ("starting", False)
            clock.advance(100.0)
            with pytest.raises(errors.ToolFailed, match="connection failed"):
                await waiting
        with pytest.raises(errors.ToolFailed, match="left alone for a while"):
            await server.connect()
