"""Servers of tools an editor brings along: one session has them, and nobody after it."""

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
from tests.support import mcp_http_server, polling
from tests.support import mcp_servers as stage
from tests.support import processes as leashes


@pytest.fixture
def leash() -> Iterator[leashes.Leash]:
    with leashes.leashed() as found:
        yield found


def raw(name: str = "raw", *more: str, **env: str) -> schema.McpServerStdio:
    given = [schema.EnvVariable(name=key, value=value) for key, value in env.items()]
    args = ["-I", str(stage.HERE / "mcp_raw_server.py"), *(more or ("plain",))]
    return schema.McpServerStdio(name=name, command=sys.executable, args=args, env=given)


async def ready(all_of_them: mcp.McpServers | None, name: str) -> dict[str, base.Tool]:
    """The tools, as soon as this one is among them."""
    assert all_of_them is not None
    async with asyncio.timeout(stage.PATIENCE):
        while name not in (found := await stage.tools(all_of_them)):
            await asyncio.sleep(0.02)
    return found


async def called(tool: base.Tool, **arguments: Any) -> types.Content | base.Result:
    plan = await tool.run(arguments)
    assert isinstance(plan, base.Plan)
    assert plan.act.kind == "reach"
    return await plan.go()


async def test_a_program_of_the_editors_is_there_for_its_session_and_gone_with_it(
    tmp_path: Path, leash: leashes.Leash
) -> None:
    mark = leash.environment[leashes.NAME]
    async with mcp_servers.open_servers([raw(**{leashes.NAME: mark})], tmp_path) as source:
        tools = await ready(source, "raw__echo")
        assert await called(tools["raw__echo"], text="a") == '{"text": "a"}'
        assert leash.at_large()
    polling.until(lambda: not leash.at_large(), "it is gone")


def test_what_it_was_given_in_confidence_is_not_told() -> None:
    (known,) = mcp_servers.convert_servers([raw(API_KEY="hunter2-hunter2")])
    assert known.given == (("API_KEY", "hunter2-hunter2"),)
    assert "hunter2" not in repr(known)


async def test_nothing_is_started_where_nothing_is_brought(tmp_path: Path) -> None:
    for given in ([], None):
        async with mcp_servers.open_servers(given, tmp_path) as none:
            assert none is None


def test_two_of_one_name_are_told_apart() -> None:
    known = mcp_servers.convert_servers([raw("a b"), raw("a b"), raw("a b-2"), raw("c")])
    assert [each.name for each in known] == ["a b", "a b-2", "a b-2-2", "c"]


async def test_those_of_the_settings_keep_their_names_and_are_not_had_twice(tmp_path: Path) -> None:
    own = mcp_servers.convert_servers([raw("raw"), raw("other", "ten")])
    (known,) = mcp_servers.convert_servers([raw("as the editor calls it"), raw("raw", "ten", "elsewhere")], own)
    assert known.name == "raw-2"
    async with mcp_servers.open_servers([raw("raw", "ten", str(tmp_path / "log"))], tmp_path, own[:1]) as both:
        tools = await ready(both, "raw-2__t1")
        tools = await ready(both, "raw__echo") | tools
        assert await called(tools["raw__echo"], text="a") == '{"text": "a"}'


async def test_prompts_of_the_editors_servers_are_commands_of_the_session(tmp_path: Path) -> None:
    async with mcp_servers.open_servers([raw()], tmp_path) as brought:
        await ready(brought, "raw__echo")
        assert brought is not None
        assert "raw:greet" in {each.name for each in brought.listed()}
        assert await brought.text("raw:greet", "who=you") is not None


async def test_one_that_cannot_be_had_is_told_and_keeps_nothing_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    through = schema.AcpMcpServer(type="acp", name="through", server_id="1")
    broken = schema.McpServerStdio(name="broken", command=str(tmp_path / "nothing"), args=[], env=[])
    async with mcp_servers.open_servers([through, broken, raw()], tmp_path) as source:
        assert await called((await ready(source, "raw__echo"))["raw__echo"], text="a") == '{"text": "a"}'
        assert source is not None
        assert any("broken" in remark for remark in (await source.offer()).remarks)
    assert "through" in caplog.text


async def test_an_address_is_spoken_to_with_its_headers(tmp_path: Path) -> None:
    with mcp_http_server.serving() as there:
        given = schema.HttpMcpServer(
            type="http", name="web", url=there.url, headers=[schema.HttpHeader(name="x-key", value="secret-value")]
        )
        (known,) = mcp_servers.convert_servers([given])
        assert (known.headers, known.given) == ({"x-key": "secret-value"}, (("x-key", "secret-value"),))
        async with mcp_servers.open_servers([given], tmp_path) as source:
            assert await called((await ready(source, "web__ok"))["web__ok"]) == "fine"


# --- the older way ---------------------------------------------------------------------------------------


class Events(BaseHTTPRequestHandler):
    """An address of the older way: one stream of events, and requests beside it that are answered there."""

    protocol_version = "HTTP/1.1"
    said: queue.Queue[Any]
    keys: list[str | None]

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody wants to read it."""

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


async def test_an_address_of_the_older_way_is_spoken_to_and_tried_again_when_its_stream_ends(tmp_path: Path) -> None:
    with events() as (url, there):
        headers = [schema.HttpHeader(name="x-key", value="secret-value")]
        given = schema.SseMcpServer(type="sse", name="old", url=url, headers=headers)
        async with mcp_servers.open_servers([given], tmp_path) as source:
            tool = (await ready(source, "old__ok"))["old__ok"]
            assert await called(tool) == "fine"
            assert set(there.keys) == {"secret-value"}
            there.said.put(None)
            async with asyncio.timeout(stage.PATIENCE):
                while await attempt(lambda: called(tool)) != "fine":
                    await asyncio.sleep(0.02)


async def attempt(call: Callable[[], Awaitable[object]]) -> object:
    try:
        return await call()
    except errors.ToolFailed as error:
        return error
