"""The warden: what a command wrote and how it ended is kept, and nothing of it is left running."""

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

# Forks twice and opens a session of its own, as daemons do; then it says that it is there.
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


def tied(
    leash: Leash, folder: Path, command: str, *, size: int = 100_000, seconds: float = 60, most: int = 1_000
) -> supervisor_client.CommandStatus:
    """How a command ended that somebody waited for."""
    with begun(leash, folder, command, size=size, seconds=seconds, most=most) as warden:
        assert warden.wait(60) == 0
    found = supervisor_client.status(str(folder))
    assert found is not None
    return found


def begun(
    leash: Leash, folder: Path, command: str, *, size: int = 100_000, seconds: float = 60, most: int = 1_000
) -> subprocess.Popen[bytes]:
    folder.mkdir(exist_ok=True)
    line = supervisor_client.argv("tied", str(folder), command, size=size, seconds=seconds, max_processes=most)
    return subprocess.Popen(line, stdin=subprocess.PIPE, env=leash.environment, start_new_session=True)


def kept(leash: Leash, folder: Path, command: str, *, input: bool = False) -> bool:
    folder.mkdir(exist_ok=True)
    line = supervisor_client.argv("kept", str(folder), command, size=100_000, input=input)
    return subprocess.run(line, stdin=subprocess.DEVNULL, env=leash.environment, check=False).returncode == 0


def written(folder: Path) -> str:
    return supervisor_client.read(str(folder)).text


# --- output and end ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        ("echo out; echo err >&2; exit 3", 3, "out\nerr\n"),
        ("true", 0, ""),
        ("kill -SEGV $$", 139, ""),
        ("no-such-program-here", 127, "bash: line 1: no-such-program-here: command not found\n"),
        ("-x", 127, "bash: line 1: -x: command not found\n"),
        ("cat", 0, ""),
        ("test -t 0 || test -t 1 || echo none", 0, "none\n"),
        ("(exec 2>/dev/null; echo x >/dev/tty) || echo none", 0, "none\n"),
        ("printf 'a\\0b\\377c'", 0, "ab\ufffdc"),
        ("yes | head -n 2", 0, "y\ny\n"),
        ("kill -9 0", 137, ""),
    ],
)
def test_output_and_end_are_as_the_command_made_them(
    leash: Leash, tmp_path: Path, command: str, code: int, text: str
) -> None:
    status = tied(leash, tmp_path / "f", command)
    assert (status.exit_code, status.why, status.left, status.lost) == (code, "", 0, 0)
    assert written(tmp_path / "f") == text


def test_files_are_for_this_person_only(leash: Leash, tmp_path: Path) -> None:
    assert kept(leash, tmp_path / "f", "echo x", input=True)
    until(lambda: supervisor_client.status(str(tmp_path / "f")), "it ends")
    assert {entry.stat().st_mode & 0o777 for entry in os.scandir(tmp_path / "f")} == {0o600}


def test_a_flood_is_kept_in_two_parts_and_ends_with_the_time(leash: Leash, tmp_path: Path) -> None:
    status = tied(leash, tmp_path / "f", "yes 123456789", size=50_000, seconds=1)
    parts = sorted(int(entry.name[4:]) for entry in os.scandir(tmp_path / "f") if entry.name.startswith("out."))
    assert status.why == "time"
    assert status.bytes > 1_000_000
    assert len(parts) == 2
    assert parts[1] - parts[0] == 50_000
    assert sum(entry.stat().st_size for entry in os.scandir(tmp_path / "f")) < 110_000
    piece = supervisor_client.read(str(tmp_path / "f"))
    assert (piece.begin, piece.end, piece.total) == (parts[0], status.bytes, status.bytes)
    # Offsets are those of the whole output: every line stands where it would.
    assert piece.text[-piece.begin % 10 :].startswith("123456789\n123456789\n")


def test_output_that_cannot_be_kept_does_not_stop_the_command(leash: Leash, tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    line = supervisor_client.argv("tied", str(tmp_path / "f"), "head -c 50000 /dev/zero; exit 4", size=100_000)
    limited = (
        "import os, resource as r, sys; r.setrlimit(r.RLIMIT_FSIZE, (2000, 2000)); os.execv(sys.argv[1], sys.argv[1:])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", limited, *line], stdin=subprocess.PIPE, env=leash.environment
    ) as warden:
        warden.wait(60)
    status = supervisor_client.status(str(tmp_path / "f"))
    assert status is not None
    assert (status.exit_code, status.bytes, status.lost) == (4, 2000, 48_000)


# --- nothing is left ---------------------------------------------------------------------------------------


def test_children_left_behind_are_stopped_and_counted(leash: Leash, tmp_path: Path) -> None:
    status = tied(leash, tmp_path / "f", "sleep 1000 & setsid sleep 1001 & echo done")
    assert (status.exit_code, status.left, status.stuck) == (0, 2, 0)
    assert written(tmp_path / "f") == "done\n"
    assert leash.at_large() == []


def test_children_that_end_by_themselves_may_finish(leash: Leash, tmp_path: Path) -> None:
    status = tied(leash, tmp_path / "f", "echo first; (read -t 0.05 <> <(:); echo last) &")
    assert (status.exit_code, status.left) == (0, 0)
    assert written(tmp_path / "f") == "first\nlast\n"


def test_a_daemon_that_ignores_every_request_dies_too(leash: Leash, tmp_path: Path) -> None:
    (tmp_path / "daemon.py").write_text(DAEMON)
    there = tmp_path / "there"
    status = tied(
        leash,
        tmp_path / "f",
        f"{sys.executable} {tmp_path}/daemon.py {there}; while [ ! -s {there} ]; do :; done; echo up",
    )
    assert written(tmp_path / "f") == "up\n"
    assert (status.left, status.stuck) == (1, 0)
    assert not process_info.start_ticks(int(there.read_text()))


def test_one_that_ignores_the_request_is_killed(leash: Leash, tmp_path: Path) -> None:
    status = asked_to_end(leash, tmp_path / "f", "trap 'echo no' TERM; echo up; while :; do sleep 1000; done")
    assert (status.why, status.signal, status.stuck) == ("asked", signal.SIGKILL, 0)
    assert "no" in written(tmp_path / "f")


def test_one_that_listens_may_clear_up(leash: Leash, tmp_path: Path) -> None:
    status = asked_to_end(leash, tmp_path / "f", "trap 'echo bye; exit 5' TERM; echo up; sleep 1000 & wait")
    assert (status.why, status.exit_code) == ("asked", 5)
    assert written(tmp_path / "f") == "up\nbye\n"


def asked_to_end(leash: Leash, folder: Path, command: str) -> supervisor_client.CommandStatus:
    """How a command ended that was asked to when it was up."""
    with begun(leash, folder, command) as warden:
        until(lambda: written(folder), "it is up")
        warden.terminate()
        assert warden.wait(60) == 0
    found = supervisor_client.status(str(folder))
    assert found is not None
    return found


def test_one_that_stopped_itself_is_killed(leash: Leash, tmp_path: Path) -> None:
    assert tied(leash, tmp_path / "f", "kill -STOP $$", seconds=0.5).why == "time"


def test_a_tree_that_doubles_is_stopped_whole(leash: Leash, tmp_path: Path) -> None:
    bomb = "b() { trap '' TERM; [ $1 -gt 7 ] && exec sleep 1000; b $(($1+1)) & b $(($1+1)) & wait; }; b 0"
    status = tied(leash, tmp_path / "f", bomb, most=40)
    assert (status.why, status.stuck) == ("processes", 0)


def test_one_that_forks_without_end_is_stopped(leash: Leash, tmp_path: Path) -> None:
    status = tied(leash, tmp_path / "f", "while :; do setsid sleep 1000 & read -t 0.005 <> <(:); done", most=40)
    assert (status.why, status.stuck) == ("processes", 0)


def test_when_its_owner_is_gone_everything_dies_and_the_folder_with_it(leash: Leash, tmp_path: Path) -> None:
    with begun(leash, tmp_path / "f", "sleep 1000 & setsid sleep 1001 & echo up; wait") as warden:
        until(lambda: written(tmp_path / "f"), "it is up")
        assert warden.stdin is not None
        warden.stdin.close()
        warden.wait(60)
    assert leash.at_large() == []
    assert not (tmp_path / "f").exists()


def test_a_warden_asked_to_end_takes_its_command_along(leash: Leash, tmp_path: Path) -> None:
    assert asked_to_end(leash, tmp_path / "f", "sleep 1000 & echo up; wait").why == "asked"
    assert leash.at_large() == []


def test_with_its_supervisor_killed_the_command_dies_and_the_rest_is_found_by_its_mark(
    leash: Leash, tmp_path: Path
) -> None:
    leash.environment[supervisor_client.MARK] = tmp_path.name + leash.mark
    with begun(leash, tmp_path / "f", "setsid sleep 1001 & echo up; wait") as warden:
        until(lambda: written(tmp_path / "f"), "it is up")
        until(lambda: any("sleep" in line for line in leash.at_large()), "its child is up")
        _, command = map(int, (tmp_path / "f" / "pids").read_text().split())
        warden.kill()
        warden.wait(60)
    until(lambda: not process_info.start_ticks(command), "the command is gone")
    assert supervisor_client.status(str(tmp_path / "f")) is None
    assert supervisor_client.kill_leftovers(tmp_path.name + leash.mark) == 1


# --- kept --------------------------------------------------------------------------------------------------


def test_a_folder_has_one_warden_only(leash: Leash, tmp_path: Path) -> None:
    folder = tmp_path / "f"
    assert kept(leash, folder, "echo one; sleep 1000")
    until(lambda: written(folder), "it is up")
    assert not kept(leash, folder, f"echo two > {tmp_path}/two")
    assert supervisor_client.send(str(folder), b"k")
    until(lambda: supervisor_client.status(str(folder)), "it ends")
    assert written(folder) == "one\n"
    assert not (tmp_path / "two").exists()


def test_a_warden_that_comes_too_late_starts_nothing(leash: Leash, tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    assert supervisor_client.prevent_start(str(tmp_path / "f"))
    assert not kept(leash, tmp_path / "f", f"echo > {tmp_path}/ran")
    assert not supervisor_client.send(str(tmp_path / "f"), b"k")
    assert not (tmp_path / "ran").exists()


def test_who_comes_after_the_warden_cannot_take_its_place(leash: Leash, tmp_path: Path) -> None:
    assert kept(leash, tmp_path / "f", "true")
    assert not supervisor_client.prevent_start(str(tmp_path / "f"))
    until(lambda: supervisor_client.status(str(tmp_path / "f")), "it ends")


def test_input_arrives_and_ends_when_told(leash: Leash, tmp_path: Path) -> None:
    folder = tmp_path / "f"
    assert kept(leash, folder, "read x; echo got $x; cat; echo end", input=True)
    (folder / "in").write_text("one\n")
    until(lambda: written(folder) == "got one\n", "the line arrives")
    (folder / "in").write_text("two\n")
    assert supervisor_client.send(str(folder), b"e")
    until(lambda: supervisor_client.status(str(folder)), "it ends")
    assert written(folder) == "got one\ntwo\nend\n"
    assert not (folder / "in").exists()


def test_nobody_is_at_the_control_of_one_that_ended(leash: Leash, tmp_path: Path) -> None:
    assert kept(leash, tmp_path / "f", "true")
    until(lambda: supervisor_client.status(str(tmp_path / "f")), "it ends")
    until(lambda: not supervisor_client.send(str(tmp_path / "f")), "the warden is gone")
    assert supervisor_client.is_claimed(str(tmp_path / "f"))
