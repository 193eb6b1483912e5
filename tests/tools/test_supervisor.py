"""The supervisor stores the output and the end of a command, and leaves no process, even if it is attacked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.tools.shell import shell, supervisor_client
from tests.support.polling import cancel, start, until, until_async
from tests.support.processes import TIED_PROGRAM, BackgroundProgram, Leash

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="daemons are only found on Linux"),
    pytest.mark.usefixtures("temporary_folder"),
]


class SupervisorRunner:
    def __init__(self, leash: Leash, folder: Path) -> None:
        self.leash, self.folder = leash, folder
        folder.mkdir()

    @property
    def output(self) -> str:
        return supervisor_client.read(str(self.folder)).text

    @property
    def status(self) -> supervisor_client.CommandStatus | None:
        return supervisor_client.status(str(self.folder))

    def start_tied(self, command: str, *prefix: str, **given: float) -> subprocess.Popen[bytes]:
        options: dict[str, float] = {"size": 100_000, "seconds": 60, **given}
        line = supervisor_client.argv("tied", str(self.folder), command, **options)  # type: ignore[arg-type]
        environment = self.leash.environment
        return subprocess.Popen([*prefix, *line], stdin=subprocess.PIPE, env=environment, start_new_session=True)

    def run_tied(self, command: str, *prefix: str, **given: float) -> supervisor_client.CommandStatus:
        with self.start_tied(command, *prefix, **given) as supervisor:
            assert supervisor.wait(60) == 0
        return self.status

    def start_kept(self, command: str) -> bool:
        line = supervisor_client.argv("kept", str(self.folder), command, size=100_000)
        environment = self.leash.environment
        return subprocess.run(line, stdin=subprocess.DEVNULL, env=environment, check=False).returncode == 0


@pytest.fixture
def runner(leash: Leash, tmp_path: Path) -> SupervisorRunner:
    return SupervisorRunner(leash, tmp_path / "f")


# --- output and end ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        ("echo out; echo err >&2; exit 3", 3, "out\nerr\n"),
        ("kill -SEGV $$", 139, ""),
        ("cat; test -t 0 || test -t 1 || echo none", 0, "none\n"),
        ("printf 'a\\0b\\377c'", 0, "ab\ufffdc"),
        ("kill -9 0", 137, ""),
        ("echo first; (read -t 0.05 <> <(:); echo last) &", 0, "first\nlast\n"),  # children may finish
    ],
)
def test_output_and_exit_code_are_stored(runner: SupervisorRunner, command: str, code: int, text: str) -> None:
    status = runner.run_tied(command)
    assert (status.exit_code, status.why, status.left, status.lost) == (code, "", 0, 0)
    assert runner.output == text


def test_command_continues_when_its_output_cannot_be_stored(runner: SupervisorRunner) -> None:
    limit = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))"
    prefix = (sys.executable, "-c", f"{limit}; os.execv(sys.argv[1], sys.argv[1:])")
    status = runner.run_tied("head -c 50000 /dev/zero; exit 4", *prefix)
    assert (status.exit_code, status.bytes, status.lost) == (4, 2000, 48_000)


# --- descendants -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        ("trap 'echo no' TERM; echo up; while :; do sleep 1000; done", 137, "no"),
        ("trap 'echo bye; exit 5' TERM; echo up; sleep 1000 & wait", 5, "up\nbye\n"),
        ("sleep 1000 & setsid sleep 1001 & echo up; wait", 143, "up\n"),
    ],
    ids=["ignores SIGTERM", "handles SIGTERM", "has children"],
)
def test_terminated_supervisor_stops_its_command(runner: SupervisorRunner, command: str, code: int, text: str) -> None:
    with runner.start_tied(command) as supervisor:
        until(lambda: runner.output, "it is up")
        supervisor.terminate()
        assert supervisor.wait(60) == 0
    status = runner.status
    assert (status.why, status.exit_code, status.stuck) == ("asked", code, 0)
    assert text in runner.output
    assert runner.leash.at_large() == []


def test_stopped_command_is_killed_after_the_timeout(runner: SupervisorRunner) -> None:
    assert runner.run_tied("kill -STOP $$", seconds=0.2).why == "time"


@pytest.mark.parametrize(
    "command",
    [
        "b() { trap '' TERM; [ $1 -gt 7 ] && exec sleep 1000; b $(($1+1)) & b $(($1+1)) & wait; }; b 0",
        "while :; do setsid sleep 1000 & read -t 0.005 <> <(:); done",
    ],
    ids=["tree", "loop"],
)
def test_command_with_too_many_processes_is_killed(runner: SupervisorRunner, command: str) -> None:
    status = runner.run_tied(command, max_processes=40)
    assert (status.why, status.stuck) == ("processes", 0)


def test_folder_has_one_supervisor_only(runner: SupervisorRunner, tmp_path: Path) -> None:
    folder = str(runner.folder)
    assert runner.start_kept("echo one; sleep 1000")
    until(lambda: runner.output, "it is up")
    assert not runner.start_kept(f"echo two > {tmp_path}/two")
    assert not supervisor_client.prevent_start(folder)
    assert supervisor_client.send(folder, b"k")
    until(lambda: runner.status, "it has ended")
    assert runner.output == "one\n"
    assert {entry.stat().st_mode & 0o777 for entry in os.scandir(runner.folder)} == {0o600}
    assert not (tmp_path / "two").exists()
    until(lambda: not supervisor_client.send(folder), "the supervisor is gone")
    assert supervisor_client.is_claimed(folder)


# --- attacks of a command on its supervisor ----------------------------------------------------------------


def list_sleeps(leash: Leash) -> list[str]:
    return [line for line in leash.at_large() if line.startswith("sleep")]


UNHARMED = "[killed after 0.5 s;"
ATTACKS = {
    "kill -STOP $PPID": UNHARMED,
    "kill -HUP $PPID; kill -INT $PPID": UNHARMED,
    "kill -9 $PPID": "exit code is unknown",
    "kill -9 -$PPID": "exit code is unknown",
    "kill $PPID": "[killed]",
}


@pytest.mark.parametrize(("attack", "result"), ATTACKS.items())
async def test_no_process_is_left_when_the_call_returns(leash: Leash, tmp_path: Path, attack: str, result: str) -> None:
    command = f"setsid sleep 1001 & sleep 1000 & {attack}; sleep 1000"
    # An attack that ends the command has enough time on a busy machine, too.
    seconds = 0.5 if result == UNHARMED else 60
    ended = await shell.run_tied(command, str(tmp_path), seconds, leash.environment)
    assert leash.at_large() == []
    assert result in str(ended.content)
    assert not ended.ok


async def test_command_that_stops_its_supervisor_forever_is_killed(
    leash: Leash, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "STOPPING", 0.5)
    attack = "trap '' TERM; while :; do kill -STOP $PPID; done"
    command = f"setsid sleep 1001 & ({attack}) & ({attack}) & {attack}"
    await shell.run_tied(command, str(tmp_path), 0.5, leash.environment)
    assert leash.at_large() == []


async def test_call_returns_although_a_daemon_holds_the_pipe_of_the_killed_supervisor(
    leash: Leash, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The supervisor is stopped early in the first round; on a busy machine, the attack has more time in the second.
    monkeypatch.setattr(shell, "STOPPING", 1.0)
    # A child kills the supervisor, as the command itself dies with it.
    command = "exec 7>/proc/$PPID/fd/1; setsid sleep 1001 & kill -9 $PPID & sleep 1000"
    for seconds in (0.5, 30):
        ended = await shell.run_tied(command, str(tmp_path), seconds, leash.environment)
        assert leash.at_large() == []
        if "exit code is unknown" in str(ended.content):
            return
    pytest.fail("the supervisor was not killed")


async def test_call_with_a_stopped_supervisor_can_be_cancelled(leash: Leash, tmp_path: Path) -> None:
    command = "setsid sleep 1001 & kill -STOP $PPID; touch up; sleep 1000"
    work = shell.run_tied(command, str(tmp_path), 600, leash.environment)
    await cancel(await start(work, (tmp_path / "up").exists, "it is up"))
    assert leash.at_large() == []


@pytest.mark.parametrize("kill", [os.kill, os.killpg])
@pytest.mark.parametrize("attack", ["trap '' TERM", *(attack for attack in ATTACKS if "-9" not in attack)])
def test_no_process_is_left_when_the_program_is_killed_after_an_attack(
    leash: Leash, tmp_path: Path, temporary_folder: Path, attack: str, kill: Callable[[int, int], None]
) -> None:
    """The program is stopped first, so that it cannot continue its supervisor."""
    command = (
        f"setsid sleep 1001 & sleep 1000 & touch up; while [ ! -e go ]; do :; done; {attack}; touch done; sleep 1000"
    )
    environment = {**leash.environment, "TMPDIR": str(temporary_folder)}
    line = [sys.executable, "-c", TIED_PROGRAM, command, str(tmp_path)]
    with subprocess.Popen(line, env=environment, start_new_session=True) as program:
        until((tmp_path / "up").exists, "it is up")
        until(lambda: len(list_sleeps(leash)) == 2, "its processes are up")
        program.send_signal(signal.SIGSTOP)
        (tmp_path / "go").touch()
        # The death of the program continues a supervisor that is stopped by then, and none that is stopped later.
        until(lambda: (tmp_path / "done").exists() or not list_sleeps(leash), "the attack is over")
        kill(program.pid, signal.SIGKILL)
    until(lambda: not leash.at_large(), "no process is left")
    # A supervisor that ended before the program leaves the folder to it.
    assert ATTACKS.get(attack) == "[killed]" or os.listdir(temporary_folder) == []


async def test_supervisor_killed_at_start_is_gone(program: BackgroundProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    def build_argv(_: str, folder: str, *__: object, **___: object) -> list[str]:
        return ["sh", "-c", f"mkfifo {folder}/control; setsid sleep 1001 & exit 1"]

    monkeypatch.setattr(supervisor_client, "argv", build_argv)
    process = await program.start("true")
    await until_async(lambda: list_sleeps(program.leash), "its daemon is up")
    assert (await program.processes.wait(process, 20) or ("",))[0] == "gone"


async def test_process_with_a_stopped_supervisor_can_be_killed(program: BackgroundProgram, tmp_path: Path) -> None:
    # Starting resumes a supervisor that is stopped before it has reported the start.
    wait = "while [ ! -e started ]; do sleep 0.01; done"
    process = await program.start(f"setsid sleep 1001 & {wait}; kill -STOP $PPID; touch stopped; sleep 1000")
    (tmp_path / "started").touch()
    await until_async(lambda: (tmp_path / "stopped").exists() and list_sleeps(program.leash), "it is stopped")
    assert await program.processes.stop(process) == ("killed", 143, "killed")
