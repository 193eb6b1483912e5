"""MCP servers of the editor belong to its session and end with it."""

from __future__ import annotations

import asyncio
import json
import queue
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from acp import schema

from holdfast import errors, types
from holdfast.acp import mcp_servers
from holdfast.tools import base
from holdfast.tools.mcp import servers as mcp
from tests.support import mcp_http_server, polling, processes
from tests.support import mcp_servers as stage


@pytest.fixture
def leash() -> Iterator[processes.Leash]:
    with processes.leashed() as found:
        yield found


def raw(name: str = "raw", *more: str, **env: str) -> schema.McpServerStdio:
    given = [schema.EnvVariable(name=key, value=value) for key, value in env.items()]
    args = ["-I", str(stage.HERE / "mcp_raw_server.py"), *(more or ("plain",))]
    return schema.McpServerStdio(name=name, command=sys.executable, args=args, env=given)


async def wait_tool(source: mcp.McpServers | None, name: str) -> dict[str, base.Tool]:
    """Return the tools as soon as this one is among them."""
    assert source is not None
    async with asyncio.timeout(stage.PATIENCE):
        while name not in (found := await stage.tools(source)):
            await asyncio.sleep(0.02)
    return found


async def run(tool: base.Tool, **arguments: Any) -> types.Content | base.Result:
    plan = await tool.run(arguments)
    assert isinstance(plan, base.Plan)
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
    several = mcp_servers.convert_servers([raw("a b"), raw("a b"), raw("a b-2"), raw("c")])
    assert [each.name for each in several] == ["a b", "a b-2", "a b-2-2", "c"]
    for given in ([], None):
        async with mcp_servers.open_servers(given, tmp_path) as none:
            assert none is None


async def test_servers_of_the_settings_keep_their_names_and_are_not_duplicated(tmp_path: Path) -> None:
    own = mcp_servers.convert_servers([raw("raw"), raw("other", "ten")])
    (known,) = mcp_servers.convert_servers([raw("as the editor calls it"), raw("raw", "ten", "elsewhere")], own)
    assert known.name == "raw-2"
    async with mcp_servers.open_servers([raw("raw", "ten", str(tmp_path / "log"))], tmp_path, own[:1]) as both:
        tools = await wait_tool(both, "raw-2__t1")
        tools = await wait_tool(both, "raw__echo") | tools
        assert await run(tools["raw__echo"], text="a") == '{"text": "a"}'


async def test_prompts_of_a_server_are_commands(tmp_path: Path) -> None:
    async with mcp_servers.open_servers([raw()], tmp_path) as brought:
        await wait_tool(brought, "raw__echo")
        assert brought is not None
        assert "raw:greet" in {each.name for each in brought.listed()}
        assert await brought.text("raw:greet", "who=you") is not None


async def test_unavailable_server_is_reported_and_blocks_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    through = schema.AcpMcpServer(type="acp", name="through", server_id="1")
    broken = schema.McpServerStdio(name="broken", command=str(tmp_path / "nothing"), args=[], env=[])
    async with mcp_servers.open_servers([through, broken, raw()], tmp_path) as source:
        assert await run((await wait_tool(source, "raw__echo"))["raw__echo"], text="a") == '{"text": "a"}'
        assert source is not None
        assert any("broken" in remark for remark in (await source.offer()).remarks)
    assert "through" in caplog.text


async def test_http_server_gets_its_headers(tmp_path: Path) -> None:
    with mcp_http_server.serving() as there:
        given = schema.HttpMcpServer(
            type="http", name="web", url=there.url, headers=[schema.HttpHeader(name="x-key", value="secret-value")]
        )
        (known,) = mcp_servers.convert_servers([given])
        assert (known.headers, known.given) == ({"x-key": "secret-value"}, (("x-key", "secret-value"),))
        async with mcp_servers.open_servers([given], tmp_path) as source:
            assert await run((await wait_tool(source, "web__ok"))["web__ok"]) == "fine"


class Events(BaseHTTPRequestHandler):
    """A server with the SSE transport: the responses to requests are events of one stream."""

    protocol_version = "HTTP/1.1"
    said: queue.Queue[Any]
    keys: list[str | None]

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        self.keys.append(self.headers.get("x-key"))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.close_connection = True
        self.wfile.write(b"event: endpoint\ndata: /messages?sessionId=1\n\n")
        while (message := self.said.get()) is not None:
            self.wfile.write(f"event: message\ndata: {json.dumps(message)}\n\n".encode())

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.keys.append(self.headers.get("x-key"))
        self.send_response(202)
        self.send_header("content-length", "0")
        self.end_headers()
        if "id" in message:
            self.said.put({"jsonrpc": "2.0", "id": message["id"], **answer(message["method"])})


def answer(method: str) -> dict[str, Any]:
    match method:
        case "initialize":
            info = {"name": "old", "version": "1"}
            return {"result": {"protocolVersion": "2024-11-05", "capabilities": {"tools": {}}, "serverInfo": info}}
        case "tools/list":
            return {"result": {"tools": [{"name": "ok", "inputSchema": mcp_http_server.ANY}]}}
        case "tools/call":
            return {"result": {"content": [{"type": "text", "text": "fine"}]}}
    return {"error": {"code": -32601, "message": "no"}}


@contextmanager
def events() -> Iterator[tuple[str, type[Events]]]:
    bound = type("Bound", (Events,), {"said": queue.Queue(), "keys": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), bound)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/sse", bound
    finally:
        bound.said.put(None)
        server.shutdown()
        thread.join()
        server.server_close()


async def test_sse_server_is_connected_again_when_its_stream_ends(tmp_path: Path) -> None:
    with events() as (url, there):
        headers = [schema.HttpHeader(name="x-key", value="secret-value")]
        given = schema.SseMcpServer(type="sse", name="old", url=url, headers=headers)
        async with mcp_servers.open_servers([given], tmp_path) as source:
            tool = (await wait_tool(source, "old__ok"))["old__ok"]
            assert await run(tool) == "fine"
            assert set(there.keys) == {"secret-value"}
            there.said.put(None)
            async with asyncio.timeout(stage.PATIENCE):
                while await attempt(lambda: run(tool)) != "fine":
                    await asyncio.sleep(0.02)


async def attempt(call: Callable[[], Awaitable[object]]) -> object:
    try:
        return await call()
    except errors.ToolFailed as error:
        return error
