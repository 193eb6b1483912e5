"""The MCP reference servers from npm: server-filesystem and server-everything."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import errors
from holdfast.tools import base
from holdfast.tools.mcp import servers, settings
from tests.acceptance import npm
from tests.acceptance.installation import PATIENCE
from tests.support import polling

VERSION = "2026.8.31"


def command(package: str, *arguments: str) -> list[str]:
    node, place = npm.installed(f"@modelcontextprotocol/{package}", VERSION)
    return [*node.node, str(place / "dist" / "index.js"), *arguments]


def as_process(name: str, package: str, *arguments: str) -> settings.ServerConfig:
    program, *rest = command(package, *arguments)
    return settings.ServerConfig(name=name, command=program, args=tuple(rest), timeout=30.0)


def connect(config: settings.ServerConfig, folder: Path) -> servers.McpServers:
    return servers.McpServers([config], str(folder), patience=PATIENCE, backoff=(0.0,))


async def call(connected: servers.McpServers, name: str, progress: list[str] | None = None, **arguments: Any) -> Any:
    offer = await connected.offer()
    tools = {tool.spec.name: tool for tool in offer.tools}
    assert name in tools, (sorted(tools), offer.remarks)
    plan = await tools[name].run(arguments)
    assert isinstance(plan, base.Plan)
    with base.calling(base.Calling("1", say=[].append if progress is None else progress.append)):
        return await plan.go()


# --- server-filesystem ---------------------------------------------------------------------------------


async def test_filesystem_server_reads_and_writes_inside_the_root_only(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "a.txt").write_text("Hello, file.")

    async with connect(as_process("fs", "server-filesystem", str(inside)), inside) as connected:
        assert await call(connected, "fs__read_text_file", path=str(inside / "a.txt")) == "Hello, file."
        assert "[FILE] a.txt" in await call(connected, "fs__list_directory", path=str(inside))
        await call(connected, "fs__write_file", path=str(inside / "b.txt"), content="new")
        assert (inside / "b.txt").read_text() == "new"
        with pytest.raises(errors.ToolFailed, match=r"fs: .*denied"):
            await call(connected, "fs__read_text_file", path="/etc/passwd")
        with pytest.raises(errors.ToolFailed, match="fs: "):
            await call(connected, "fs__read_text_file", path=str(inside / "absent.txt"))


# --- server-everything, both ways ----------------------------------------------------------------------


@contextmanager
def http_server(folder: Path) -> Iterator[tuple[settings.ServerConfig, Callable[[], subprocess.Popen[bytes]]]]:
    """Yield the address of a server and the function that starts it, again after a kill; stop all at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    with ExitStack() as processes:

        def start() -> subprocess.Popen[bytes]:
            log, env = folder / "http.log", {**os.environ, "PORT": str(port)}
            with log.open("wb") as out:
                starting = command("server-everything", "streamableHttp")
                process = subprocess.Popen(starting, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
            processes.enter_context(process)
            processes.callback(process.kill)
            polling.until(lambda: "listening" in log.read_text() or process.poll() is not None, seconds=PATIENCE)
            assert process.poll() is None, log.read_text()
            return process

        yield settings.ServerConfig(name="every", url=f"http://127.0.0.1:{port}/mcp", timeout=30.0), start


@pytest.mark.parametrize("way", ["stdio", "http"])
async def test_tools_of_the_reference_server_are_listed_called_and_refused(way: str, tmp_path: Path) -> None:
    with http_server(tmp_path) as (server, start):
        if way == "http":
            start()
        config = server if way == "http" else as_process("every", "server-everything")
        async with connect(config, tmp_path) as connected:
            names = {tool.spec.name for tool in (await connected.offer()).tools}
            assert {"every__echo", "every__get-sum", "every__get-tiny-image"} <= names
            assert await call(connected, "every__echo", message="hi") == "Echo: hi"
            assert "42" in await call(connected, "every__get-sum", a=40, b=2)
            with pytest.raises(errors.ToolFailed, match="every"):
                await call(connected, "every__get-sum", a=1)
            picture = await call(connected, "every__get-tiny-image")
            assert [part["media_type"] for part in picture if part["type"] == "image"] == ["image/png"]
            prompt = await connected.text("every:args-prompt", "city=Lisbon")
            assert prompt is not None
            assert "Lisbon" in prompt


# --- killed in the middle ------------------------------------------------------------------------------


async def test_http_server_lost_during_a_call_is_reconnected(tmp_path: Path) -> None:
    with http_server(tmp_path) as (config, start):
        process = start()
        async with connect(config, tmp_path) as connected:
            progress: list[str] = []
            name = "every__trigger-long-running-operation"
            calling = asyncio.create_task(call(connected, name, progress, duration=60, steps=120))
            await polling.until_async(lambda: progress, seconds=PATIENCE)
            process.kill()
            with pytest.raises(errors.ToolFailed, match="every"):
                await calling
            await asyncio.to_thread(start)
            assert await call(connected, "every__echo", message="again") == "Echo: again"
