"""No process of an MCP server is left, however the server, its supervisor or the program ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import process_info
from tests.support.mcp_servers import call, raw, running
from tests.support.polling import until, until_async

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are looked for in /proc")


def is_gone(pid: int) -> bool:
    return not process_info.start_ticks(pid)


async def test_server_that_ignores_its_end_is_killed_with_its_children(tmp_path: Path) -> None:
    async with running(raw("stubborn", tmp_path / "log")) as started:
        assert await call(started, "raw__echo") == "{}"
    pids = list(map(int, (tmp_path / "log.pids").read_text().split()))
    assert len(pids) == 2
    await until_async(lambda: all(map(is_gone, pids)))


async def test_process_whose_first_thread_has_ended_is_killed(tmp_path: Path) -> None:
    async with running(raw("headless", tmp_path / "log")) as started:
        assert await call(started, "raw__echo") == "{}"
        pid = int((tmp_path / "log.pids").read_text())
        await until_async(lambda: is_gone(pid))  # It looks like a zombie.
        assert len(os.listdir(f"/proc/{pid}/task")) == 2
    await until_async(lambda: not Path(f"/proc/{pid}").exists())


async def test_processes_that_fork_faster_than_they_are_listed_are_killed(tmp_path: Path) -> None:
    """Each lives for less time than a listing takes: only a stopped one is still there to be killed."""
    held = tmp_path / "held"
    os.mkfifo(held)
    reading = os.open(held, os.O_RDONLY | os.O_NONBLOCK)

    def is_closed() -> bool:
        try:
            return os.read(reading, 1) == b""
        except BlockingIOError:
            return False

    try:
        async with running(raw("breeding", held)) as started:
            assert await call(started, "raw__echo") == "{}"
            first = int((tmp_path / "held.pids").read_text())
            await until_async(lambda: is_gone(first))
            assert not is_closed()
        await until_async(is_closed)
    finally:
        os.close(reading)


async def test_server_dies_with_its_supervisor_and_is_started_again() -> None:
    async with running(raw()) as plain:
        pid = int(await call(plain, "raw__pid"))
        supervisor = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        assert "supervisor.py" in Path(f"/proc/{supervisor}/cmdline").read_text()
        os.kill(supervisor, signal.SIGKILL)
        await until_async(lambda: is_gone(pid))
        await until_async(lambda: plain.servers[0].state == "down")
        assert int(await call(plain, "raw__pid")) != pid


PROGRAM = """
import asyncio, sys
from pathlib import Path
from tests.support import mcp_servers

async def main():
    async with mcp_servers.running(mcp_servers.raw("stubborn", Path(sys.argv[1]))) as started:
        await started.offer()
        print("ready", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


def test_servers_die_with_a_killed_program(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "log")]
    with subprocess.Popen(command, cwd=Path(__file__).parents[3], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        pids = list(map(int, (tmp_path / "log.pids").read_text().split()))
        assert not any(map(is_gone, pids))
        process.kill()
    until(lambda: all(map(is_gone, pids)), "no process is left")
