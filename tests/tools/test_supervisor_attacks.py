"""A command that attacks its supervisor leaves no process running."""

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
from holdfast.tools.shell import shell, supervisor_client
from tests.support.polling import until, until_async
from tests.support.processes import BackgroundProgram, Leash

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="orphans are only found on Linux"),
    pytest.mark.usefixtures("temporary_folder"),
]


class Sleeper:
    """A sleep that is found by its command line, even without its session and environment."""

    def __init__(self, leash: Leash) -> None:
        self.words = f"sleep 5000.{uuid.uuid4().int % 10**12}"
        self.daemon = f"setsid {self.words}"
        self._leash = leash

    def running(self) -> list[int]:
        wanted = self.words.replace(" ", "\0")
        return [
            int(pid)
            for pid in os.listdir("/proc")
            if pid.isdigit() and wanted in process_info.read_text(f"/proc/{pid}/cmdline")
        ]

    def is_gone(self) -> bool:
        return not self.running() and not self._leash.at_large()


@pytest.fixture
def sleeper(leash: Leash) -> Iterator[Sleeper]:
    """Fail the test if a process of it is left."""
    found = Sleeper(leash)
    try:
        yield found
        until(found.is_gone, "no process is left")
    finally:
        for pid in found.running():
            os.kill(pid, signal.SIGKILL)


# --- the program runs --------------------------------------------------------------------------------------

UNHARMED = "[killed after 0.5 s;"
ATTACKS = {
    "kill -STOP $PPID": UNHARMED,
    "kill -HUP $PPID; kill -INT $PPID": UNHARMED,
    "kill -9 $PPID": "exit code is unknown",
    "kill -9 -$PPID": "exit code is unknown",
    "kill $PPID": "[killed]",
}


@pytest.mark.parametrize(("attack", "result"), ATTACKS.items())
async def test_no_process_is_left_when_the_call_returns(
    leash: Leash, sleeper: Sleeper, tmp_path: Path, attack: str, result: str
) -> None:
    command = f"{sleeper.daemon} & {sleeper.words} & {attack}; {sleeper.words}"
    # An attack that ends the command has enough time on a busy machine, too.
    seconds = 0.5 if result == UNHARMED else 60
    told = await shell.run_tied(command, str(tmp_path), seconds, leash.environment)
    assert sleeper.is_gone()
    assert result in str(told.content)
    assert not told.ok


async def test_command_that_stops_its_supervisor_forever_is_killed(
    leash: Leash, sleeper: Sleeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "STOPPING", 0.5)
    attack = "trap '' TERM; while :; do kill -STOP $PPID; done"
    command = f"{sleeper.daemon} & ({attack}) & ({attack}) & {attack}"
    await shell.run_tied(command, str(tmp_path), 0.5, leash.environment)
    assert sleeper.is_gone()


async def test_call_returns_although_a_daemon_holds_the_pipe_of_the_killed_supervisor(
    leash: Leash, sleeper: Sleeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The supervisor is stopped early in the first round; on a busy machine, the attack has more time in the second.
    monkeypatch.setattr(shell, "STOPPING", 1.0)
    # A child kills the supervisor, as the command itself dies with it.
    command = f"exec 7>/proc/$PPID/fd/1; setsid {sleeper.words} & kill -9 $PPID & {sleeper.words}"
    for seconds in (0.5, 30):
        told = await shell.run_tied(command, str(tmp_path), seconds, leash.environment)
        assert sleeper.is_gone()
        if "exit code is unknown" in str(told.content):
            return
    pytest.fail("the supervisor was not killed")


async def test_call_with_a_stopped_supervisor_can_be_cancelled(leash: Leash, sleeper: Sleeper, tmp_path: Path) -> None:
    command = f"{sleeper.daemon} & kill -STOP $PPID; touch up; {sleeper.words}"
    call = asyncio.create_task(shell.run_tied(command, str(tmp_path), 600, leash.environment))
    await until_async((tmp_path / "up").exists, "it is up")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert sleeper.is_gone()


# --- the program dies --------------------------------------------------------------------------------------

PROGRAM = textwrap.dedent("""
    import asyncio, os, sys
    from holdfast.tools.shell import shell

    asyncio.run(shell.run_tied(sys.argv[1], sys.argv[2], 600, dict(os.environ)))
""")


@pytest.mark.parametrize("attack", [attack for attack in ATTACKS if "-9" not in attack])
def test_no_process_is_left_when_the_program_is_killed_after_an_attack(
    leash: Leash, sleeper: Sleeper, tmp_path: Path, temporary_folder: Path, attack: str
) -> None:
    """The program is stopped first, so that it cannot continue its supervisor."""
    command = (
        f"{sleeper.daemon} & {sleeper.words} & touch up; "
        f"while [ ! -e go ]; do :; done; {attack}; touch done; {sleeper.words}"
    )
    environment = {**leash.environment, "TMPDIR": str(temporary_folder)}
    line = [sys.executable, "-c", PROGRAM, command, str(tmp_path)]
    with subprocess.Popen(line, env=environment, start_new_session=True) as program:
        until((tmp_path / "up").exists, "it is up")
        until(lambda: len(sleeper.running()) == 2, "its processes are up")
        program.send_signal(signal.SIGSTOP)
        (tmp_path / "go").touch()
        # The death of the program continues a supervisor that is stopped by then, and none that is stopped later.
        until(lambda: (tmp_path / "done").exists() or not sleeper.running(), "the attack is over")
        program.kill()
    until(sleeper.is_gone, "no process is left")
    # A supervisor that ended before the program leaves the folder to it.
    assert ATTACKS[attack] != UNHARMED or os.listdir(temporary_folder) == []


# --- background processes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("attack", "ended"), [("kill -9 $PPID", "gone"), ("kill $PPID", "killed")])
async def test_background_process_that_kills_its_supervisor_ends(
    program: BackgroundProgram, sleeper: Sleeper, attack: str, ended: str
) -> None:
    process = await program.start(f"{sleeper.daemon} & {attack}; {sleeper.words}")
    assert (await program.processes.wait(process, 20) or ("",))[0] == ended
    await until_async(sleeper.is_gone, "no process is left")


async def test_supervisor_killed_before_it_reports_the_start_is_gone(
    program: BackgroundProgram, sleeper: Sleeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build_argv(_: str, folder: str, *__: object, **___: object) -> list[str]:
        return ["sh", "-c", f"mkfifo {folder}/control; {sleeper.daemon} & exit 1"]

    monkeypatch.setattr(supervisor_client, "argv", build_argv)
    process = await program.start("true")
    await until_async(lambda: sleeper.running() != [], "its daemon is up")
    assert (await program.processes.wait(process, 20) or ("",))[0] == "gone"
    await until_async(sleeper.is_gone, "no process is left")


async def test_background_process_with_a_stopped_supervisor_can_be_killed(
    program: BackgroundProgram, sleeper: Sleeper, tmp_path: Path
) -> None:
    # Starting resumes a supervisor that is stopped before it has reported the start.
    wait = "while [ ! -e started ]; do sleep 0.01; done"
    process = await program.start(f"{sleeper.daemon} & {wait}; kill -STOP $PPID; touch stopped; {sleeper.words}")
    (tmp_path / "started").touch()
    await until_async(lambda: (tmp_path / "stopped").exists() and sleeper.running(), "its supervisor is stopped")
    assert await program.processes.stop(process) == ("killed", 143, "killed")
    await until_async(sleeper.is_gone, "no process is left")
