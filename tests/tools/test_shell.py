"""The shell tool bounds the time and output of a command, and no process outlives the call."""

from __future__ import annotations

import asyncio
import os
import pty
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import content_parts, errors, process_info, types
from holdfast.tools import base, registry
from holdfast.tools.permissions import risks
from holdfast.tools.shell import shell, supervisor_client
from tests.support.polling import cancel, start, until, until_async
from tests.support.processes import TIED_PROGRAM, Leash, allow_all

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="daemons are only found on Linux")


class ShellRunner:
    """Calls the shell tool; a result is successful if and only if the exit code is 0."""

    def __init__(self, leash: Leash, root: Path, spools: Path) -> None:
        self.leash, self.root, self._spools = leash, root, spools
        self.tool = shell.shell([str(root)], lambda: leash.environment)

    async def __call__(self, command: str, **more: Any) -> str:
        call = types.ToolCall("x", "shell", {"command": command, **more})
        result = await registry.Registry([self.tool], allow_all).run(call)
        assert result.ok == str(result.content).endswith("[exit code 0]"), result
        assert content_parts.is_success("shell", result.content) == result.ok
        return str(result.content)

    @property
    def spools(self) -> list[Path]:
        return list(self._spools.glob("holdfast-*"))


@pytest.fixture
def run(leash: Leash, tmp_path: Path, temporary_folder: Path) -> ShellRunner:
    return ShellRunner(leash, tmp_path, temporary_folder)


async def test_command_runs_in_the_given_folder_with_the_given_environment(run: ShellRunner) -> None:
    (run.root / "sub").mkdir()
    run.leash.environment["HOLDFAST_SESSION_ID"] = "s1"
    first = await run(f"pwd; echo $HOLDFAST_SESSION_ID ${supervisor_client.MARK}")
    second = await run(f"pwd; echo $HOLDFAST_SESSION_ID ${supervisor_client.MARK}", folder="sub")
    assert first.startswith(f"{run.root}\ns1 ")
    assert second.startswith(f"{run.root}/sub\ns1 ")
    # The mark that identifies the processes of a call is unique.
    assert len({each.splitlines()[1] for each in (first, second)}) == 2
    assert "outside of the workspace" in await run("pwd", folder="..")


@pytest.mark.parametrize("wrong", [{"timeout": 0}, {"timeout": float("nan")}, {"command": " "}])
async def test_invalid_arguments_start_nothing(run: ShellRunner, wrong: dict[str, Any]) -> None:
    with pytest.raises(errors.ToolFailed):
        await run.tool.run({"command": f"touch {run.root}/ran", **wrong})
    assert not (run.root / "ran").exists()
    assert [shell.limit_timeout(given) for given in (0.5, 601, float("inf"))] == [0.5, 600, 600]


async def test_left_processes_are_stopped_and_counted(run: ShellRunner) -> None:
    note = "[2 processes it left were stopped; use start_process for processes that should continue.]"
    assert await run("sleep 1000 & setsid sleep 1001 & echo up") == f"up\n{note}\n[exit code 0]"
    # A process cannot escape by ignoring signals and changing its environment.
    daemon = "(trap '' TERM; env -i setsid sleep 1001 & echo $! > pid)"
    assert "1 process it left was" in await run(f"{daemon}; echo up")
    assert not process_info.start_ticks(int((run.root / "pid").read_text()))
    assert run.leash.at_large() == []


async def test_flood_is_killed_at_the_timeout_and_uses_little_memory_and_disk(run: ShellRunner) -> None:
    before, largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0

    def measure() -> int:
        usage = subprocess.run(["du", "-cb", *run.spools], capture_output=True, text=True, check=False)
        return int(usage.stdout.splitlines()[-1].split()[0]) if run.spools else 0

    call = asyncio.create_task(run("yes 123456789", timeout=0.5))
    while not call.done():
        await asyncio.sleep(0.02)
        largest = max(largest, await asyncio.to_thread(measure))
    result = await call
    assert "[killed after 0.5 s;" in result
    assert "bytes of its output were dropped" in result
    assert len(result) < 31_000
    # The next part may be created before the oldest is deleted.
    assert largest <= 3 * shell.PART + 100_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60_000


async def test_output_is_shown_while_the_command_runs(run: ShellRunner) -> None:
    shown: list[str] = []
    fifo = run.root / "go"
    os.mkfifo(fifo)
    with base.calling(base.Calling("x", "c", shown.append)):
        call = asyncio.create_task(run(f"echo one; read x < {fifo}; echo two"))
        await until_async(lambda: shown, "the first line is shown")
        await asyncio.to_thread(fifo.write_text, "x\n")
        assert await call == "one\ntwo\n[exit code 0]"
    assert shown[0] == "one\n"


async def test_approval_shows_the_command_that_runs(run: ShellRunner) -> None:
    hostile = "echo \x1b[2K\u202e hidden"
    plan = await run.tool.run({"command": hostile})
    act = plan.act
    assert (act.tool, act.kind, act.paths) == ("shell", "run", (str(run.root),))
    assert (act.commands, act.danger) == risks.describe(hostile)
    assert act.detail == hostile
    assert act.summary.isprintable()


STUBBORN = "trap '' TERM; (trap '' TERM; setsid sleep 1001) & touch up; while :; do sleep 1000; done"


@pytest.mark.parametrize("command", ["setsid sleep 1001 & sleep 1000 & touch up; wait", STUBBORN])
async def test_cancelled_call_returns_after_its_command_has_ended(run: ShellRunner, command: str) -> None:
    call = await start(run(command), (run.root / "up").exists, "it is up")
    call.cancel()
    await asyncio.sleep(0)
    await cancel(call)
    assert run.leash.at_large() == []
    assert run.spools == []


async def test_call_cancelled_at_any_moment_leaves_nothing(run: ShellRunner) -> None:
    for pause in (0, 0.006, 0.012, 0.024, 0.048):
        call = asyncio.create_task(run("sleep 1000 & sleep 1000"))
        await asyncio.sleep(pause)
        await cancel(call)
        assert run.leash.at_large() == []
    assert run.spools == []


def test_command_cannot_reach_the_terminal_of_the_program(leash: Leash, tmp_path: Path) -> None:
    command = "(echo stolen > /dev/tty; read x < /dev/tty) 2>/dev/null; echo $? > code"
    child, terminal = pty.fork()
    if not child:
        os.execve(sys.executable, [sys.executable, "-c", TIED_PROGRAM, command, str(tmp_path)], leash.environment)
    os.write(terminal, b"typed\n")
    until(lambda: (tmp_path / "code").exists() and (tmp_path / "code").read_text(), "the command ends")
    os.waitpid(child, 0)
    assert b"stolen" not in os.read(terminal, 10_000)
    os.close(terminal)
    assert (tmp_path / "code").read_text() == "1\n"
