"""The supervisor stores the output and the end of a command, and leaves no process running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from holdfast import process_info
from holdfast.tools.shell import supervisor_client
from tests.support.polling import until
from tests.support.processes import Leash

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="daemons are only found on Linux")

# Forks twice and opens a session of its own, as daemons do, and then writes its process id.
DAEMON = textwrap.dedent("""
    import os, signal, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    open(sys.argv[1], "w").write(str(os.getpid()))
    time.sleep(1000)
""")


class SupervisorRunner:
    """Starts supervisors in one folder."""

    def __init__(self, leash: Leash, folder: Path) -> None:
        self.leash, self.folder = leash, folder
        folder.mkdir()

    @property
    def output(self) -> str:
        return supervisor_client.read(str(self.folder)).text

    @property
    def status(self) -> supervisor_client.CommandStatus:
        found = supervisor_client.status(str(self.folder))
        assert found is not None
        return found

    def start_tied(self, command: str, *prefix: str, **given: float) -> subprocess.Popen[bytes]:
        options: dict[str, float] = {"size": 100_000, "seconds": 60, **given}
        line = supervisor_client.argv("tied", str(self.folder), command, **options)  # type: ignore[arg-type]
        environment = self.leash.environment
        return subprocess.Popen([*prefix, *line], stdin=subprocess.PIPE, env=environment, start_new_session=True)

    def run_tied(self, command: str, *prefix: str, **given: float) -> supervisor_client.CommandStatus:
        with self.start_tied(command, *prefix, **given) as supervisor:
            assert supervisor.wait(60) == 0
        return self.status

    def terminate_tied(self, command: str) -> supervisor_client.CommandStatus:
        """Ask the supervisor to end when the command has written something."""
        with self.start_tied(command) as supervisor:
            until(lambda: self.output, "it is up")
            supervisor.terminate()
            assert supervisor.wait(60) == 0
        return self.status

    def start_kept(self, command: str, *, input: bool = False) -> bool:
        line = supervisor_client.argv("kept", str(self.folder), command, size=100_000, input=input)
        environment = self.leash.environment
        return subprocess.run(line, stdin=subprocess.DEVNULL, env=environment, check=False).returncode == 0

    def wait(self) -> None:
        until(lambda: supervisor_client.status(str(self.folder)), "it has ended")


@pytest.fixture
def runner(leash: Leash, tmp_path: Path) -> SupervisorRunner:
    return SupervisorRunner(leash, tmp_path / "f")


# --- output and end ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        ("echo out; echo err >&2; exit 3", 3, "out\nerr\n"),
        ("kill -SEGV $$", 139, ""),
        ("-x", 127, "bash: line 1: -x: command not found\n"),
        ("cat; test -t 0 || test -t 1 || echo none", 0, "none\n"),
        ("(exec 2>/dev/null; echo x >/dev/tty) || echo none", 0, "none\n"),
        ("printf 'a\\0b\\377c'", 0, "ab\ufffdc"),
        ("yes | head -n 2", 0, "y\ny\n"),
        ("kill -9 0", 137, ""),
    ],
)
def test_output_and_exit_code_are_stored(runner: SupervisorRunner, command: str, code: int, text: str) -> None:
    status = runner.run_tied(command)
    assert (status.exit_code, status.why, status.left, status.lost) == (code, "", 0, 0)
    assert runner.output == text


def test_flood_is_kept_in_two_parts_and_ends_with_the_timeout(runner: SupervisorRunner) -> None:
    status = runner.run_tied("yes 123456789", size=50_000, seconds=0.2)
    parts = sorted(int(entry.name[4:]) for entry in os.scandir(runner.folder) if entry.name.startswith("out."))
    assert (status.why, status.bytes > 150_000) == ("time", True)
    assert (len(parts), parts[1] - parts[0]) == (2, 50_000)
    assert sum(entry.stat().st_size for entry in os.scandir(runner.folder)) < 110_000
    piece = supervisor_client.read(str(runner.folder))
    assert (piece.begin, piece.end, piece.total) == (parts[0], status.bytes, status.bytes)
    # Offsets are those of the whole output.
    assert piece.text[-piece.begin % 10 :].startswith("123456789\n123456789\n")


def test_command_continues_when_its_output_cannot_be_stored(runner: SupervisorRunner) -> None:
    limit = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))"
    prefix = (sys.executable, "-c", f"{limit}; os.execv(sys.argv[1], sys.argv[1:])")
    status = runner.run_tied("head -c 50000 /dev/zero; exit 4", *prefix)
    assert (status.exit_code, status.bytes, status.lost) == (4, 2000, 48_000)


# --- descendants -------------------------------------------------------------------------------------------


def test_children_may_finish_by_themselves(runner: SupervisorRunner) -> None:
    status = runner.run_tied("echo first; (read -t 0.05 <> <(:); echo last) &")
    assert (status.exit_code, status.left) == (0, 0)
    assert runner.output == "first\nlast\n"


def test_daemon_that_ignores_signals_is_killed_and_counted(runner: SupervisorRunner, tmp_path: Path) -> None:
    (tmp_path / "daemon.py").write_text(DAEMON)
    pid = tmp_path / "pid"
    start = f"{sys.executable} {tmp_path}/daemon.py {pid}; while [ ! -s {pid} ]; do :; done"
    status = runner.run_tied(f"{start}; echo up")
    assert runner.output == "up\n"
    assert (status.exit_code, status.left, status.stuck) == (0, 1, 0)
    assert runner.leash.at_large() == []
    assert not process_info.start_ticks(int(pid.read_text()))


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
    status = runner.terminate_tied(command)
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


def test_closed_pipe_of_the_caller_stops_the_command_and_deletes_the_folder(runner: SupervisorRunner) -> None:
    with runner.start_tied("sleep 1000 & setsid sleep 1001 & echo up; wait") as supervisor:
        until(lambda: runner.output, "it is up")
        assert supervisor.stdin is not None
        supervisor.stdin.close()
        supervisor.wait(60)
    assert runner.leash.at_large() == []
    assert not runner.folder.exists()


def test_processes_of_a_killed_supervisor_are_found_by_their_mark(runner: SupervisorRunner) -> None:
    mark = runner.leash.environment[supervisor_client.MARK] = runner.leash.mark
    with runner.start_tied("setsid sleep 1001 & echo up; wait") as supervisor:
        until(lambda: runner.output, "it is up")
        until(lambda: any("sleep" in line for line in runner.leash.at_large()), "its child is up")
        _, command = map(int, (runner.folder / "pids").read_text().split())
        supervisor.send_signal(signal.SIGKILL)
        supervisor.wait(60)
    until(lambda: not process_info.start_ticks(command), "the command is gone")
    assert supervisor_client.status(str(runner.folder)) is None
    assert supervisor_client.kill_leftovers(mark) == 1


# --- kept --------------------------------------------------------------------------------------------------


def test_folder_has_one_supervisor_only(runner: SupervisorRunner, tmp_path: Path) -> None:
    folder = str(runner.folder)
    assert runner.start_kept("echo one; sleep 1000")
    until(lambda: runner.output, "it is up")
    assert not runner.start_kept(f"echo two > {tmp_path}/two")
    assert not supervisor_client.prevent_start(folder)
    assert supervisor_client.send(folder, b"k")
    runner.wait()
    assert runner.output == "one\n"
    assert not (tmp_path / "two").exists()
    until(lambda: not supervisor_client.send(folder), "the supervisor is gone")
    assert supervisor_client.is_claimed(folder)


def test_prevented_supervisor_starts_nothing(runner: SupervisorRunner, tmp_path: Path) -> None:
    assert supervisor_client.prevent_start(str(runner.folder))
    assert not runner.start_kept(f"echo > {tmp_path}/ran")
    assert not supervisor_client.send(str(runner.folder), b"k")
    assert not (tmp_path / "ran").exists()


def test_input_arrives_until_it_is_closed(runner: SupervisorRunner) -> None:
    assert runner.start_kept("read x; echo got $x; cat; echo end", input=True)
    (runner.folder / "in").write_text("one\n")
    until(lambda: runner.output == "got one\n", "the line arrives")
    (runner.folder / "in").write_text("two\n")
    assert supervisor_client.send(str(runner.folder), b"e")
    runner.wait()
    assert runner.output == "got one\ntwo\nend\n"
    assert not (runner.folder / "in").exists()
    assert {entry.stat().st_mode & 0o777 for entry in os.scandir(runner.folder)} == {0o600}
