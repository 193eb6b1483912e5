"""Servers of the Model Context Protocol that nobody here wrote: npm's server-filesystem and server-everything."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import errors
from holdfast.tools import base
from holdfast.tools.mcp import servers, settings
from tests.acceptance import npm
from tests.acceptance.conftest import PATIENCE

VERSION = "2026.8.31"


def command(package: str, *arguments: str) -> list[str]:
    node, place = npm.installed(f"@modelcontextprotocol/{package}", VERSION)
    return [*node.node, str(place / "dist" / "index.js"), *arguments]


def as_process(name: str, package: str, *arguments: str) -> settings.ServerConfig:
    program, *rest = command(package, *arguments)
    return settings.ServerConfig(name=name, command=program, args=tuple(rest), timeout=30.0)


def told(wanted: settings.ServerConfig, story: Callable[[servers.McpServers], Awaitable[None]], folder: Path) -> None:
    async def tell() -> None:
        async with servers.McpServers([wanted], str(folder), patience=PATIENCE, backoff=(0.0,)) as all_of_them:
            await story(all_of_them)

    asyncio.run(tell())


async def call(all_of_them: servers.McpServers, name: str, heard: list[str] | None = None, **arguments: Any) -> Any:
    offer = await all_of_them.offer()
    tools = {tool.spec.name: tool for tool in offer.tools}
    assert name in tools, (sorted(tools), offer.remarks)
    plan = await tools[name].run(arguments)
    assert isinstance(plan, base.Plan)
    with base.calling(base.Calling("1", say=[].append if heard is None else heard.append)):
        return await plan.go()


# --- server-filesystem ---------------------------------------------------------------------------------


def test_files_are_listed_read_and_written_and_what_is_outside_is_refused(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "a.txt").write_text("Hello, file.")

    async def story(all_of_them: servers.McpServers) -> None:
        assert await call(all_of_them, "fs__read_text_file", path=str(inside / "a.txt")) == "Hello, file."
        assert "[FILE] a.txt" in await call(all_of_them, "fs__list_directory", path=str(inside))
        await call(all_of_them, "fs__write_file", path=str(inside / "b.txt"), content="new")
        assert (inside / "b.txt").read_text() == "new"
        with pytest.raises(errors.ToolFailed, match=r"fs: .*denied"):
            await call(all_of_them, "fs__read_text_file", path="/etc/passwd")
        with pytest.raises(errors.ToolFailed, match="fs: "):
            await call(all_of_them, "fs__read_text_file", path=str(inside / "absent.txt"))

    told(as_process("fs", "server-filesystem", str(inside)), story, inside)


# --- server-everything, both ways ----------------------------------------------------------------------


@contextmanager
def listening(place: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Starts the server at one address, again and again; all are gone in the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        log = place / f"http{len(started)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                command("server-everything", "streamableHttp"),
                env={**os.environ, "PORT": str(number)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        started.append(process)
        until = time.monotonic() + PATIENCE
        while b"listening" not in log.read_bytes():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.02)
        return process

    start.url = f"http://127.0.0.1:{number}/mcp"  # type: ignore[attr-defined]
    try:
        yield start
    finally:
        for process in started:
            process.kill()
            process.wait()


@contextmanager
def everything(way: str, place: Path) -> Iterator[settings.ServerConfig]:
    if way == "stdio":
        yield as_process("every", "server-everything")
        return
    with listening(place) as start:
        start()
        yield settings.ServerConfig(name="every", url=start.url, timeout=30.0)  # type: ignore[attr-defined]


ways = pytest.mark.parametrize("way", ["stdio", "http"])


@ways
def test_everything_is_listed_called_and_refused(way: str, tmp_path: Path) -> None:
    async def story(all_of_them: servers.McpServers) -> None:
        names = {tool.spec.name for tool in (await all_of_them.offer()).tools}
        assert {"every__echo", "every__get-sum", "every__get-tiny-image"} <= names
        assert await call(all_of_them, "every__echo", message="hi") == "Echo: hi"
        assert "42" in await call(all_of_them, "every__get-sum", a=40, b=2)
        with pytest.raises(errors.ToolFailed, match="every"):
            await call(all_of_them, "every__get-sum", a=1)
        picture = await call(all_of_them, "every__get-tiny-image")
        assert [part["media_type"] for part in picture if part["type"] == "image"] == ["image/png"]
        said = await all_of_them.text("every:args-prompt", "city=Lisbon")
        assert said is not None
        assert "Lisbon" in said

    with everything(way, tmp_path) as wanted:
        told(wanted, story, tmp_path)


@ways
def test_a_long_operation_tells_how_far_it_is(way: str, tmp_path: Path) -> None:
    async def story(all_of_them: servers.McpServers) -> None:
        heard: list[str] = []
        name = "every__trigger-long-running-operation"
        said = await call(all_of_them, name, heard, duration=2, steps=4)
        assert "completed" in said.lower()
        assert heard[0].startswith("every: 1 of 4")
        assert len(heard) >= 2

    with everything(way, tmp_path) as wanted:
        told(wanted, story, tmp_path)


def test_the_workspace_is_the_only_root(tmp_path: Path) -> None:
    async def story(all_of_them: servers.McpServers) -> None:
        assert tmp_path.as_uri() in await call(all_of_them, "every__get-roots-list")

    told(as_process("every", "server-everything"), story, tmp_path)


# --- killed in the middle ------------------------------------------------------------------------------


async def began(heard: list[str]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not heard:
            await asyncio.sleep(0.01)


def test_a_process_killed_in_mid_call_is_told_and_started_again(tmp_path: Path) -> None:
    async def story(all_of_them: servers.McpServers) -> None:
        heard: list[str] = []
        name = "every__trigger-long-running-operation"
        calling = asyncio.create_task(call(all_of_them, name, heard, duration=60, steps=120))
        await began(heard)
        os.kill(await asyncio.to_thread(process_of, "server-everything"), signal.SIGKILL)
        with pytest.raises(errors.ToolFailed, match="stopped in the middle of the call"):
            await calling
        assert await call(all_of_them, "every__echo", message="again") == "Echo: again"

    told(as_process("every", "server-everything"), story, tmp_path)


def process_of(package: str) -> int:
    """The server below this process, behind its keeper."""
    listed = subprocess.run(["ps", "-ww", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    rows = [re.split(r"\s+", line.strip(), maxsplit=2) for line in listed.splitlines()]
    parents = {pid: parent for pid, parent, _ in rows}

    def below(pid: str) -> bool:
        while pid in parents:
            pid = parents[pid]
            if pid == str(os.getpid()):
                return True
        return False

    (found,) = [pid for pid, _, args in rows if package in args and "supervisor.py" not in args and below(pid)]
    return int(found)


def test_an_address_that_dies_in_mid_call_is_told_and_found_again(tmp_path: Path) -> None:
    with listening(tmp_path) as start:
        process = start()

        async def story(all_of_them: servers.McpServers) -> None:
            heard: list[str] = []
            name = "every__trigger-long-running-operation"
            calling = asyncio.create_task(call(all_of_them, name, heard, duration=60, steps=120))
            await began(heard)
            process.kill()
            with pytest.raises(errors.ToolFailed, match="every"):
                await calling
            await asyncio.to_thread(start)
            assert await call(all_of_them, "every__echo", message="again") == "Echo: again"

        told(settings.ServerConfig(name="every", url=start.url, timeout=30.0), story, tmp_path)  # type: ignore[attr-defined]
