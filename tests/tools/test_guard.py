"""Whatever a command does to its supervisor, nothing it started outlives its call."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import process_info
from holdfast.tools.shell import background, shell, supervisor_client
from tests.support.polling import until, until_async
from tests.support.processes import Leash, PaperBook

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="orphans are only found on Linux")


class Sleeper:
    """A command that sleeps, known by its words: it may throw away its session and its environment."""

    def __init__(self) -> None:
        self.words = f"sleep 5000.{uuid.uuid4().int % 10**12}"
        self.daemon = f"setsid {self.words}"

    def running(self) -> list[int]:
        wanted = self.words.replace(" ", "\0")
        return [
            int(pid)
            for pid in os.listdir("/proc")
            if pid.isdigit() and wanted in process_info.read_text(f"/proc/{pid}/cmdline")
        ]


@pytest.fixture
def sleeper(leash: Leash) -> Iterator[Sleeper]:
    """A test that has this fails when anything of it is still running at its end, by its mark or by its words."""
    found = Sleeper()
    try:
        yield found
        until(lambda: not found.running() and not leash.at_large(), "nothing is left")
    finally:
        for pid in found.running():
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("tmp")
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


def state(pid: int) -> str:
    return process_info.read_text(f"/proc/{pid}/stat").rpartition(")")[2].strip()[:1]


# --- the program is there ----------------------------------------------------------------------------------

UNHARMED = "[killed after 1 s;"
TRICKS = {
    "kill -STOP $PPID": UNHARMED,
    "kill -HUP $PPID; kill -INT $PPID": UNHARMED,
    "kill -9 $PPID": "exit code is unknown",
    "kill -9 -$PPID": "exit code is unknown",
    "kill $PPID": "[killed]",
}


@pytest.mark.parametrize(("trick", "said"), TRICKS.items())
def test_nothing_is_left_when_the_call_returns(
    leash: Leash, sleeper: Sleeper, tmp_path: Path, trick: str, said: str
) -> None:
    command = f"{sleeper.daemon} & {sleeper.words} & {trick}; {sleeper.words}"
    told = asyncio.run(shell.run_tied(command, str(tmp_path), 1, leash.environment))
    assert (sleeper.running(), leash.at_large()) == ([], [])
    assert said in str(told.content)
    assert not told.ok


def test_one_that_never_lets_go_of_its_wardens_is_ended_from_outside(
    leash: Leash, sleeper: Sleeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "STOPPING", 0.5)
    again = "trap '' TERM; while :; do kill -STOP $PPID; done"
    command = f"{sleeper.daemon} & ({again}) & ({again}) & {again}"
    asyncio.run(shell.run_tied(command, str(tmp_path), 1, leash.environment))
    assert (sleeper.running(), leash.at_large()) == ([], [])


def test_one_that_holds_the_pipe_of_its_wardens_holds_up_nobody(
    leash: Leash, sleeper: Sleeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It kills both, and what it leaves still has the end of the pipe that says somebody is there."""
    monkeypatch.setattr(shell, "STOPPING", 2.0)
    # A child does it, as the command itself dies with its supervisor.
    kills = "kill -9 $PPID &"
    command = f"exec 7>/proc/$PPID/fd/1; setsid {sleeper.words} & {kills} {sleeper.words}"
    # On a busy machine its time may be up before it has done that: then there is more.
    told = (asyncio.run(shell.run_tied(command, str(tmp_path), each, leash.environment)) for each in (1, 30))
    assert any("exit code is unknown" in str(each.content) for each in told)
    assert (sleeper.running(), leash.at_large()) == ([], [])


async def test_a_call_is_cancelled_though_its_wardens_are_stopped(
    leash: Leash, sleeper: Sleeper, tmp_path: Path
) -> None:
    command = f"{sleeper.daemon} & kill -STOP $PPID; touch up; {sleeper.words}"
    call = asyncio.create_task(shell.run_tied(command, str(tmp_path), 600, leash.environment))
    await until_async((tmp_path / "up").exists, "it is up")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (sleeper.running(), leash.at_large()) == ([], [])


# --- the program dies --------------------------------------------------------------------------------------

PROGRAM = textwrap.dedent("""
    import asyncio, os, sys
    from holdfast.tools.shell import shell

    asyncio.run(shell.run_tied(sys.argv[1], sys.argv[2], 600, dict(os.environ)))
""")


@pytest.mark.parametrize("trick", [trick for trick in TRICKS if "-9" not in trick])
def test_nothing_is_left_when_the_program_is_killed_afterwards(
    leash: Leash, sleeper: Sleeper, tmp_path: Path, own_temporary_folder: Path, trick: str
) -> None:
    """The program itself is stopped first, so that it is not the one who helps."""
    command = (
        f"{sleeper.daemon} & {sleeper.words} & echo $PPID > pids; "
        f"while [ ! -e go ]; do :; done; touch done; {trick}; {sleeper.words}"
    )
    environment = {**leash.environment, "TMPDIR": str(own_temporary_folder)}
    line = [sys.executable, "-c", PROGRAM, command, str(tmp_path)]
    with subprocess.Popen(line, env=environment, start_new_session=True) as program:
        until(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text(), "it is up")
        until(lambda: len(sleeper.running()) == 2, "what it started is up")
        program.send_signal(signal.SIGSTOP)
        (tmp_path / "go").touch()
        until((tmp_path / "done").exists, "it begins")
        program.kill()
        program.wait()
    until(lambda: not sleeper.running() and not leash.at_large(), "everything is gone")
    # If the supervisor ended before the program did, nothing is left to clear up the folder.
    assert TRICKS[trick] != UNHARMED or os.listdir(own_temporary_folder) == []


# --- processes that go on ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trick", "ended"),
    [("kill -9 $PPID", "gone"), ("kill $PPID", "killed")],
)
async def test_a_process_that_kills_who_looks_after_it_is_over(
    leash: Leash, sleeper: Sleeper, tmp_path: Path, trick: str, ended: str
) -> None:
    known = background.BackgroundProcesses(
        PaperBook(tmp_path / "book"), str(tmp_path / "home"), lambda: leash.environment
    )
    command = f"{sleeper.daemon} & {trick}; {sleeper.words}"
    process = await known.start("c", command, str(tmp_path))
    assert (await known.wait(process, 20) or ("",))[0] == ended
    await until_async(lambda: not sleeper.running() and not leash.at_large(), "everything is gone")


async def test_a_supervisor_killed_before_it_reports_the_start_is_gone(
    sleeper: Sleeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def argv(_: str, folder: str, *__: object, **___: object) -> list[str]:
        return ["sh", "-c", f"mkfifo {folder}/control; {sleeper.daemon} & exit 1"]

    monkeypatch.setattr(supervisor_client, "argv", argv)
    known = background.BackgroundProcesses(PaperBook(tmp_path / "book"), str(tmp_path / "home"), os.environ.copy)
    process = await known.start("c", "true", str(tmp_path))
    await until_async(lambda: sleeper.running() != [], "its daemon is up")
    assert (await known.wait(process, 20) or ("",))[0] == "gone"
    await until_async(lambda: not sleeper.running(), "everything is gone")


async def test_a_process_whose_wardens_are_stopped_can_be_killed(
    leash: Leash, sleeper: Sleeper, tmp_path: Path
) -> None:
    known = background.BackgroundProcesses(
        PaperBook(tmp_path / "book"), str(tmp_path / "home"), lambda: leash.environment
    )
    # Starting resumes a supervisor that is stopped before it has reported the start.
    waits = "while [ ! -e started ]; do sleep 0.01; done"
    command = f"{sleeper.daemon} & {waits}; kill -STOP $PPID; echo $PPID; {sleeper.words}"
    process = await known.start("c", command, str(tmp_path))
    (tmp_path / "started").touch()
    await until_async(lambda: (tmp_path / "home").exists() and sleeper.running(), "it is up")
    await until_async(lambda: stopped(leash) == 1, "it is stopped")
    assert await known.stop(process) == ("killed", 143, "killed")
    await until_async(lambda: not sleeper.running() and not leash.at_large(), "everything is gone")


def stopped(leash: Leash) -> int:
    return [state(pid) for pid in process_info.find_by_env(leash.mark)].count("T")
