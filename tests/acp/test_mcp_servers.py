"""MCP servers of the editor belong to its session and end with it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from acp import schema
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route, Router

from holdfast import errors, types
from holdfast.acp import mcp_servers
from holdfast.gateway.platforms.http import server
from holdfast.tools import base
from holdfast.tools.mcp import servers as mcp
from tests.support import mcp_http_server, polling, processes
from tests.support import mcp_servers as stage


def raw(name: str = "raw", *more: str, **env: str) -> schema.McpServerStdio:
    given = [schema.EnvVariable(name=key, value=value) for key, value in env.items()]
    args = ["-I", str(stage.HERE / "mcp_raw_server.py"), *(more or ("plain",))]
    return schema.McpServerStdio(name=name, command=sys.executable, args=args, env=given)


async def wait_tool(source: mcp.McpServers | None, name: str) -> dict[str, base.Tool]:
    """Return the tools as soon as this one is among them."""
    async with asyncio.timeout(stage.PATIENCE):
        while name not in (found := await stage.tools(source)):
            await asyncio.sleep(0.02)
    return found


async def run(tool: base.Tool, **arguments: Any) -> types.Content | base.Result:
    plan = await tool.run(arguments)
    assert plan.act.kind == "reach"
    return await plan.go()


async def test_server_program_ends_with_its_session(tmp_path: Path, leash: processes.Leash) -> None:
    mark = leash.environment[processes.NAME]
    async with mcp_servers.open_servers([raw(**{processes.NAME: mark})], tmp_path) as source:
        tools = await wait_tool(source, "raw__echo")
        assert await run(tools["raw__echo"], text="a") == '{"text": "a"}'
        assert leash.at_large()
    polling.until(lambda: not leash.at_large(), "it is gone")


async def test_servers_have_unique_names_and_their_secrets_are_not_shown(tmp_path: Path) -> None:
    (known,) = mcp_servers.convert_servers([raw(API_KEY="hunter2-hunter2")])
    assert known.given == (("API_KEY", "hunter2-hunter2"),)
    assert "hunter2" not in repr(known)
    headers = [schema.HttpHeader(name="x-key", value="hunter2-hunter2")]
    given = schema.HttpMcpServer(type="http", name="web", url="https://w", headers=headers)
    (web,) = mcp_servers.convert_servers([given])
    assert (web.headers, web.given) == ({"x-key": "hunter2-hunter2"}, (("x-key", "hunter2-hunter2"),))
    several = mcp_servers.convert_servers([raw("a b"), raw("a b"), raw("a b-2"), raw("c")])
    assert [each.name for each in several] == ["a b", "a b-2", "a b-2-2", "c"]
    for nothing in ([], None):
        async with mcp_servers.open_servers(nothing, tmp_path) as none:
            assert none is None


async def test_servers_of_the_settings_keep_their_names_and_are_not_duplicated(tmp_path: Path) -> None:
    own = mcp_servers.convert_servers([raw("raw"), raw("other", "ten")])
    (known,) = mcp_servers.convert_servers([raw("as the editor calls it"), raw("raw", "ten", "elsewhere")], own)
    assert known.name == "raw-2"
    async with mcp_servers.open_servers([raw("raw", "ten", str(tmp_path / "log"))], tmp_path, own[:1]) as both:
        tools = await wait_tool(both, "raw-2__t1")
        tools = await wait_tool(both, "raw__echo") | tools
        assert await run(tools["raw__echo"], text="a") == '{"text": "a"}'


async def test_missing_server_is_reported_and_blocks_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    through = schema.AcpMcpServer(type="acp", name="through", server_id="1")
    broken = schema.McpServerStdio(name="broken", command=str(tmp_path / "nothing"), args=[], env=[])
    async with mcp_servers.open_servers([through, broken, raw()], tmp_path) as source:
        assert await run((await wait_tool(source, "raw__echo"))["raw__echo"], text="a") == '{"text": "a"}'
        assert any("broken" in remark for remark in (await source.offer()).remarks)
    assert "through" in caplog.text


class SseServer:
    """A server with the SSE transport: the responses to requests are events of one stream."""

    def __init__(self) -> None:
        self.outbound, self.keys = asyncio.Queue[Any](), set[str | None]()
        routes = [Route("/sse", self._stream), Route("/messages", self._take, methods=["POST"])]
        self.app = Router(routes)

    async def _events(self) -> AsyncIterator[str]:
        yield "event: endpoint\ndata: /messages?sessionId=1\n\n"
        while (message := await self.outbound.get()) is not None:
            yield f"event: message\ndata: {json.dumps(message)}\n\n"

    async def _stream(self, request: Request) -> Response:
        self.keys.add(request.headers.get("x-key"))
        return StreamingResponse(self._events(), media_type="text/event-stream")

    async def _take(self, request: Request) -> Response:
        self.keys.add(request.headers.get("x-key"))
        message = await request.json()
        if "id" in message:
            unknown = {"error": {"code": -32601, "message": "no"}}
            self.outbound.put_nowait({"jsonrpc": "2.0", "id": message["id"], **ANSWERS.get(message["method"], unknown)})
        return Response(status_code=202)


HELLO = {"protocolVersion": "2024-11-05", "capabilities": {"tools": {}}, "serverInfo": {"name": "old", "version": "1"}}
ANSWERS: dict[str, dict[str, Any]] = {
    "initialize": {"result": HELLO},
    "tools/list": {"result": {"tools": [{"name": "ok", "inputSchema": mcp_http_server.ANY}]}},
    "tools/call": {"result": {"content": [{"type": "text", "text": "fine"}]}},
}


async def test_sse_server_is_connected_again_when_its_stream_ends(tmp_path: Path) -> None:
    there, listening = SseServer(), server.bind("127.0.0.1", 0, has_tokens=False)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/sse"
    headers = [schema.HttpHeader(name="x-key", value="secret-value")]
    given = schema.SseMcpServer(type="sse", name="old", url=url, headers=headers)

    async def is_connected() -> bool:
        with suppress(errors.ToolFailed):
            return await run(tool) == "fine"
        return False

    async with server.serve(there.app, listening), mcp_servers.open_servers([given], tmp_path) as source:
        tool = (await wait_tool(source, "old__ok"))["old__ok"]
        assert await run(tool) == "fine"
        assert there.keys == {"secret-value"}
        there.outbound.put_nowait(None)
        await polling.until_async(is_connected, seconds=stage.PATIENCE)
        there.outbound.put_nowait(None)
