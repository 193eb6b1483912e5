"""A command somebody waits for: bounded in every way, and over when its call is over."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import re
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import content_parts, errors, process_info, types
from holdfast.tools import base, registry
from holdfast.tools.permissions import risks
from holdfast.tools.shell import shell, supervisor_client
from tests.support.polling import until, until_async
from tests.support.processes import Leash, everything

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="daemons are only found on Linux")


async def called(leash: Leash, root: Path, command: str, **more: Any) -> base.Result:
    tool = shell.shell([str(root)], lambda: leash.environment)
    return await registry.Registry([tool], everything).run(types.ToolCall("x", "shell", {"command": command, **more}))


def told(leash: Leash, root: Path, command: str, **more: Any) -> str:
    """What the model is told; that it went well is said of what ended with 0, and of nothing else."""
    result = asyncio.run(called(leash, root, command, **more))
    assert result.ok == str(result.content).endswith("[exit code 0]"), result
    assert content_parts.is_success("shell", result.content) == result.ok
    return str(result.content)


def spools() -> set[str]:
    return {name for name in os.listdir(os.environ["TMPDIR"]) if name.startswith("holdfast-")}


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("tmp")))
    monkeypatch.setattr("tempfile.tempdir", None)


# --- what the model is told --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("echo hello; exit 3", "hello\n[exit code 3]"),
        ("true", "[no output]\n[exit code 0]"),
        ("echo a >&2; echo b", "a\nb\n[exit code 0]"),
        ("printf '\\377\\376x'", "\ufffd\ufffdx\n[exit code 0]"),
        ("read x || echo end", "end\n[exit code 0]"),
        ("(cat /dev/tty) 2>/dev/null || echo none", "none\n[exit code 0]"),
        ("kill -9 $$", "[no output]\n[exit code 137]"),
        ("echo '$(x)' \"it's\"", "$(x) it's\n[exit code 0]"),
    ],
)
def test_output_comes_with_its_exit_code(leash: Leash, tmp_path: Path, command: str, said: str) -> None:
    assert told(leash, tmp_path, command) == said
    assert spools() == set()


def test_it_runs_in_the_folder_it_was_told(leash: Leash, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    assert told(leash, tmp_path, "pwd").startswith(f"{tmp_path}\n")
    assert told(leash, tmp_path, "pwd", folder="sub").startswith(f"{tmp_path}/sub\n")
    for wrong in ("..", "/", "none"):
        assert not asyncio.run(called(leash, tmp_path, "pwd", folder=wrong)).ok


@pytest.mark.parametrize("wrong", [{"timeout": 0}, {"timeout": -1}, {"timeout": float("nan")}, {"command": " "}])
def test_wrong_arguments_start_nothing(leash: Leash, tmp_path: Path, wrong: dict[str, Any]) -> None:
    tool = shell.shell([str(tmp_path)], lambda: leash.environment)
    with pytest.raises(errors.ToolFailed):
        asyncio.run(tool.run({"command": f"touch {tmp_path}/ran", **wrong}))  # type: ignore[arg-type]
    assert not (tmp_path / "ran").exists()


def test_what_it_leaves_is_stopped_and_told(leash: Leash, tmp_path: Path) -> None:
    said = told(leash, tmp_path, "sleep 1000 & setsid sleep 1001 & echo up")
    note = "[2 processes it left were stopped; use start_process for processes that should continue.]"
    assert said == f"up\n{note}\n[exit code 0]"
    assert leash.at_large() == []


def test_one_that_never_ends_is_stopped_in_time(leash: Leash, tmp_path: Path) -> None:
    # On a busy machine it may be killed before it says anything: then there is more time.
    said = [told(leash, tmp_path, "echo begun; sleep 1000", timeout=0.5)]
    while "begun" not in said[-1] and len(said) < 5:
        said.append(told(leash, tmp_path, "echo begun; sleep 1000", timeout=2.5 ** len(said)))
    assert re.match(r"begun\n\[killed after [0-9.]+ s;", said[-1])
    assert all("[killed after" in each for each in said)


@pytest.mark.parametrize(("given", "meant"), [(0.5, 0.5), (600, 600), (601, 600), (1e300, 600), (float("inf"), 600)])
def test_no_command_may_run_longer_than_the_longest(given: float, meant: float) -> None:
    assert shell.limit_timeout(given) == meant


def test_a_flood_costs_neither_memory_nor_disk(leash: Leash, tmp_path: Path) -> None:
    before, largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0

    async def story() -> base.Result:
        nonlocal largest
        call = asyncio.create_task(called(leash, tmp_path, "yes 123456789", timeout=2))
        while not call.done():
            await asyncio.sleep(0.02)
            for name in spools():
                largest = max(largest, sum(sizes(Path(os.environ["TMPDIR"]) / name)))
        return await call

    result = asyncio.run(story())
    assert "[killed after 2 s;" in str(result.content)
    assert "bytes of its output were dropped" in str(result.content)
    assert len(str(result.content)) < 31_000
    # One part may be on its way out while the next begins.
    assert 0 < largest <= 3 * shell.PART
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60_000


def sizes(folder: Path) -> list[int]:
    """Of the files there; what goes while it is looked at has none."""
    found = list[int]()
    with contextlib.suppress(FileNotFoundError):
        for path in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                found.append(path.stat().st_size)
    return found


async def test_people_see_output_as_it_comes(leash: Leash, tmp_path: Path) -> None:
    said: list[str] = []
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    with base.calling(base.Calling("x", "c", said.append)):
        call = asyncio.create_task(called(leash, tmp_path, f"echo one; read x < {fifo}; echo two"))
        await until_async(lambda: said, "the first line is shown")
        await asyncio.to_thread(fifo.write_text, "x\n")
        assert str((await call).content) == "one\ntwo\n[exit code 0]"
    assert said[0] == "one\n"


def test_a_command_finds_its_environment_and_no_terminal_size(leash: Leash, tmp_path: Path) -> None:
    leash.environment["HOLDFAST_SESSION_ID"] = "s1"
    assert told(leash, tmp_path, "echo $HOLDFAST_SESSION_ID").startswith("s1\n")


# --- permission --------------------------------------------------------------------------------------------


def test_nothing_runs_before_it_is_allowed(leash: Leash, tmp_path: Path) -> None:
    tool = shell.shell([str(tmp_path)], lambda: leash.environment)
    call = types.ToolCall("x", "shell", {"command": f"touch {tmp_path}/ran"})
    result = asyncio.run(registry.Registry([tool]).run(call))
    assert not result.ok
    assert "Not allowed" in str(result.content)
    assert not (tmp_path / "ran").exists()


def test_what_is_asked_for_is_what_runs(leash: Leash, tmp_path: Path) -> None:
    hostile = "echo \x1b[2K\u202e hidden"
    made = asyncio.run(shell.shell([str(tmp_path)], dict).run({"command": hostile}))  # type: ignore[arg-type]
    assert isinstance(made, base.Plan)
    act = made.act
    assert (act.tool, act.kind, act.paths) == ("shell", "run", (str(tmp_path),))
    assert (act.commands, act.danger) == risks.describe(hostile)
    assert act.detail == hostile
    assert act.summary.isprintable()


# --- cancelling, and the end of the program ------------------------------------------------------------------

STUBBORN = "trap '' TERM; (trap '' TERM; setsid sleep 1001) & touch up; while :; do sleep 1000; done"


@pytest.mark.parametrize("command", ["setsid sleep 1001 & sleep 1000 & touch up; wait", STUBBORN])
async def test_a_cancelled_call_has_ended_its_command_when_it_returns(
    leash: Leash, tmp_path: Path, command: str
) -> None:
    call = asyncio.create_task(called(leash, tmp_path, command))
    await until_async((tmp_path / "up").exists, "it is up")
    call.cancel()
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert leash.at_large() == []
    assert spools() == set()


def test_a_call_cancelled_at_any_moment_leaves_nothing(leash: Leash, tmp_path: Path) -> None:
    async def story(steps: int) -> None:
        call = asyncio.create_task(called(leash, tmp_path, "sleep 1000 & sleep 1000"))
        for _ in range(steps):
            await asyncio.sleep(0.002)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert leash.at_large() == []

    for steps in range(0, 40, 3):
        asyncio.run(story(steps))
    assert spools() == set()


def test_with_a_killed_warden_the_call_ends_and_nothing_is_left(leash: Leash, tmp_path: Path) -> None:
    async def story() -> str:
        call = asyncio.create_task(called(leash, tmp_path, "setsid sleep 1001 & echo $PPID > up; wait"))
        await until_async(lambda: (tmp_path / "up").exists() and (tmp_path / "up").read_text(), "it is up")
        os.kill(int((tmp_path / "up").read_text()), signal.SIGKILL)
        return str((await call).content)

    assert "exit code is unknown" in asyncio.run(story())
    assert leash.at_large() == []


PROGRAM = textwrap.dedent("""
    import asyncio, os, sys
    from holdfast.tools.shell import shell

    asyncio.run(shell.run_tied(sys.argv[1], sys.argv[2], 600, dict(os.environ)))
""")


@pytest.mark.parametrize("kill", [os.kill, os.killpg])
def test_when_the_program_is_killed_its_command_dies_with_all_it_started(
    leash: Leash, tmp_path: Path, kill: Callable[[int, int], None]
) -> None:
    environment = {**leash.environment, "TMPDIR": os.environ["TMPDIR"]}
    line = [sys.executable, "-c", PROGRAM, STUBBORN, str(tmp_path)]
    with subprocess.Popen(line, env=environment, start_new_session=True) as program:
        until((tmp_path / "up").exists, "it is up")
        assert len(leash.at_large()) > 3
        kill(program.pid, signal.SIGKILL)
        program.wait()
    until(lambda: not leash.at_large(), "everything is gone")
    assert spools() == set()


def test_a_command_cannot_reach_the_terminal_of_the_program(leash: Leash, tmp_path: Path) -> None:
    """The program has a terminal here, and what is typed there is not for a command to read."""
    command = "(echo stolen > /dev/tty; read x < /dev/tty) 2>/dev/null; echo $? > code"
    child, terminal = pty.fork()
    if not child:
        os.execve(sys.executable, [sys.executable, "-c", PROGRAM, command, str(tmp_path)], leash.environment)
    os.write(terminal, b"typed\n")
    until(lambda: (tmp_path / "code").exists() and (tmp_path / "code").read_text(), "the command ends")
    os.waitpid(child, 0)
    assert b"stolen" not in os.read(terminal, 10_000)
    os.close(terminal)
    assert (tmp_path / "code").read_text() == "1\n"


def test_a_command_cannot_escape_by_changing_its_environment(leash: Leash, tmp_path: Path) -> None:
    escaping = f"env -i setsid sleep 1001 & echo $! > {tmp_path}/pid; echo up"
    assert "1 process it left" in told(leash, tmp_path, escaping)
    assert not process_info.start_ticks(int((tmp_path / "pid").read_text()))


def test_the_marks_of_two_calls_differ(leash: Leash, tmp_path: Path) -> None:
    first, second = (told(leash, tmp_path, f"echo ${supervisor_client.MARK}") for _ in range(2))
    assert first != second
    assert len(first.splitlines()[0]) > 8


def test_many_calls_at_once_do_not_get_into_each_others_way(leash: Leash, tmp_path: Path) -> None:
    async def story() -> list[base.Result]:
        return await asyncio.gather(*(called(leash, tmp_path, f"echo {n}; exit {n}") for n in range(12)))

    results = asyncio.run(story())
    assert [str(each.content) for each in results] == [f"{n}\n[exit code {n}]" for n in range(12)]


def test_embedders_get_the_tool_with_defaults(tmp_path: Path) -> None:
    (tool,) = shell.shell_tools(tmp_path)
    plan = asyncio.run(tool.run({"command": "echo hello; pwd"}))  # type: ignore[arg-type]
    assert isinstance(plan, base.Plan)
    assert plan.act.kind == "run"
    result = asyncio.run(plan.go())  # type: ignore[arg-type]
    assert isinstance(result, base.Result)
    assert result.content == f"hello\n{tmp_path}\n[exit code 0]"
