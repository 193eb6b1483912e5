"""Nothing of a server is left running, however it behaves and however we end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import mcp_servers, polling


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are looked for in /proc")


@linux
async def test_a_server_that_will_not_end_is_ended_with_all_it_started(tmp_path: Path) -> None:
    async with mcp_servers.running(mcp_servers.raw("stubborn", tmp_path / "log")) as all_of_them:
        assert await mcp_servers.call(all_of_them, "raw__echo") == "{}"
    pids = list(map(int, (tmp_path / "log.pids").read_text().split()))
    assert len(pids) == 2
    await polling.until_async(lambda: all(map(gone, pids)))


@linux
async def test_a_process_whose_first_thread_ended_is_ended_too(tmp_path: Path) -> None:
    async with mcp_servers.running(mcp_servers.raw("headless", tmp_path / "log")) as all_of_them:
        assert await mcp_servers.call(all_of_them, "raw__echo") == "{}"
        pid = int((tmp_path / "log.pids").read_text())
        await polling.until_async(lambda: gone(pid))  # It looks so.
        assert len(os.listdir(f"/proc/{pid}/task")) == 2
    await polling.until_async(lambda: not Path(f"/proc/{pid}").exists())


@linux
async def test_processes_that_make_others_faster_than_they_are_counted_are_ended(tmp_path: Path) -> None:
    """Each lives for less than a look at all processes takes: only one that is stopped is still there to be killed."""
    held = tmp_path / "held"
    os.mkfifo(held)
    reading = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    try:
        async with mcp_servers.running(mcp_servers.raw("breeding", held)) as all_of_them:
            assert await mcp_servers.call(all_of_them, "raw__echo") == "{}"
            first = int((tmp_path / "held.pids").read_text())
            await polling.until_async(lambda: gone(first))
            with pytest.raises(BlockingIOError):
                os.read(reading, 1)
        async with asyncio.timeout(60):
            while not ended(reading):
                await asyncio.sleep(0.01)
    finally:
        os.close(reading)


def ended(reading: int) -> bool:
    """Whether nobody has the other end any more."""
    try:
        return os.read(reading, 1) == b""
    except BlockingIOError:
        return False


@linux
async def test_a_server_whose_keeper_is_killed_dies_with_it() -> None:
    async with mcp_servers.running(mcp_servers.raw()) as all_of_them:
        pid = int(await mcp_servers.call(all_of_them, "raw__pid"))
        keeper = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        assert "supervisor.py" in Path(f"/proc/{keeper}/cmdline").read_text()
        os.kill(keeper, signal.SIGKILL)
        await polling.until_async(lambda: gone(pid))
        await polling.until_async(lambda: all_of_them.servers[0].state == "down")
        assert int(await mcp_servers.call(all_of_them, "raw__pid")) != pid


@linux
def test_when_this_program_is_killed_its_servers_and_their_children_die(tmp_path: Path) -> None:
    code = """
import asyncio, sys
from pathlib import Path
from tests.support import mcp_servers as stage

async def work():
    async with stage.running(stage.raw("stubborn", Path(sys.argv[1]))) as all_of_them:
        await all_of_them.offer()
        print("there", flush=True)
        await asyncio.sleep(600)

stage.run(work)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "log")]
    root = Path(__file__).parents[3]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        pids = list(map(int, (tmp_path / "log.pids").read_text().split()))
        assert not any(map(gone, pids))
        process.kill()
    until = time.monotonic() + mcp_servers.PATIENCE
    while not all(map(gone, pids)):
        assert time.monotonic() < until
        time.sleep(0.01)
