"""The MCP reference servers from npm: server-filesystem and server-everything."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
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


async def call(connected: servers.McpServers, name: str, **arguments: Any) -> Any:
    offer = await connected.offer()
    tools = {tool.spec.name: tool for tool in offer.tools}
    assert name in tools, (sorted(tools), offer.remarks)
    plan = await tools[name].run(arguments)
    assert isinstance(plan, base.Plan)
    with base.calling(base.Calling("1", say=[].append)):
        return await plan.go()


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


@contextmanager
def http_server(folder: Path) -> Iterator[settings.ServerConfig]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log, env = folder / "http.log", {**os.environ, "PORT": str(port)}
    starting = command("server-everything", "streamableHttp")
    with (
        log.open("wb") as out,
        subprocess.Popen(starting, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out) as process,
    ):
        try:
            polling.until(lambda: "listening" in log.read_text() or process.poll() is not None, seconds=PATIENCE)
            assert process.poll() is None, log.read_text()
            yield settings.ServerConfig(name="every", url=f"http://127.0.0.1:{port}/mcp", timeout=30.0)
        finally:
            process.kill()


@pytest.mark.parametrize("way", ["stdio", "http"])
async def test_tools_of_the_reference_server_are_listed_called_and_refused(way: str, tmp_path: Path) -> None:
    with http_server(tmp_path) if way == "http" else nullcontext(as_process("every", "server-everything")) as config:
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
