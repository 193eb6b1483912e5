"""What goes wrong outside of the program is a clear sentence, an exit code, and nothing lost."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import SessionDB
from tests.cli import program, provider, terminal

OFFLINE = {"HOLDFAST_MODEL": "offline"}
# What the files beside a store need to be opened at all.
ROOM = 96 * 1024
KEY = {"OPENAI_API_KEY": "key", "HOLDFAST_MODEL": "openai/x"}


def texts(path: Path) -> list[str]:
    """What users said in the only conversation there is; the store is sound."""
    with SessionDB(path) as db:
        assert db.fsck().ok
        (head,) = db.list_sessions()
        said = [each.content for each in db.transcript(head.id) if each.role == "user"]
    return [
        "".join(part.get("text", "") for part in each if part["type"] == "text")
        for each in said
        if not isinstance(each, str)
    ] + [each for each in said if isinstance(each, str)]


# --- the network ---------------------------------------------------------------------------------------


def _closed_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.mark.parametrize("address", ["dead server", "no network"])
def test_a_model_out_of_reach_is_said_and_the_message_kept(tmp_path: Path, address: str) -> None:
    host = f"127.0.0.1:{_closed_port()}" if address == "dead server" else "nowhere.invalid"
    done = program.run(tmp_path, "-p", "hello there", env={**KEY, "OPENAI_BASE_URL": f"http://{host}/v1"})
    assert (done.code, done.out) == (1, "")
    assert done.err.splitlines()[-1].startswith("holdfast: openai/x cannot be reached. Check the network")
    assert "Trying again" in done.err
    assert texts(tmp_path / "data" / "holdfast.db") == ["hello there"]


def test_what_the_model_did_not_answer_is_said_to_whoever_goes_on(tmp_path: Path) -> None:
    with provider.playing(provider.refused(401, "no")) as played:
        assert program.run(tmp_path, "-p", "hello there", env=played.env).code == 1
    done = program.run(tmp_path, "-c", "-p", "again", env=OFFLINE)
    assert done.code == 0
    assert done.err == "The answer to the last message (1) was not finished. Say it again, or go on.\n"
    assert program.run(tmp_path, "-c", "-p", "again", env=OFFLINE).err == ""


# --- the disk ------------------------------------------------------------------------------------------


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A small file system of its own, with these options, where mounting one is allowed."""
    point = tmp_path / "disk"
    point.mkdir(mode=0o700)

    def mount(options: str) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", f"mode=700,{options}", "tmpfs", str(point)]
        if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
            pytest.skip("mounting a file system needs to be root")
        return point

    yield mount
    subprocess.run(["umount", str(point)], capture_output=True, check=False)


@pytest.mark.parametrize("arguments", [["-p", "hello"], ["doctor"], ["sessions", "list"], ["config", "show"]])
def test_a_home_that_is_read_only_is_said(tmp_path: Path, mounted: Callable[[str], Path], arguments: list[str]) -> None:
    home = mounted("ro,size=1m")
    done = program.run(tmp_path, *arguments, env={**OFFLINE, "HOLDFAST_HOME": str(home)})
    assert "Traceback" not in done.err
    if arguments[0] == "-p":
        assert done.code == 1
        assert str(home) in done.sentence
        assert "Read-only file system" in done.sentence


def test_a_home_that_became_read_only_can_be_looked_at_and_takes_nothing(
    tmp_path: Path, mounted: Callable[[str], Path]
) -> None:
    home = mounted("size=4m")
    env = {**OFFLINE, "HOLDFAST_HOME": str(home)}
    assert program.run(tmp_path, "-p", "The boat is called Ada.", env=env).code == 0
    subprocess.run(["mount", "-o", "remount,ro", str(home)], check=True)
    done = program.run(tmp_path, "-p", "hello", env=env)
    assert done.code == 1
    assert done.sentence.startswith("holdfast: ")
    subprocess.run(["mount", "-o", "remount,rw", str(home)], check=True)
    assert texts(home / "holdfast.db") == ["The boat is called Ada."]


def test_a_full_disk_is_said_and_with_room_it_goes_on(tmp_path: Path, mounted: Callable[[str], Path]) -> None:
    home = mounted("size=4m")
    env = {**OFFLINE, "HOLDFAST_HOME": str(home)}
    assert program.run(tmp_path, "-p", "The boat is called Ada.", env=env).code == 0
    free = os.statvfs(home)
    (home / "ballast").write_bytes(b"x" * (free.f_bavail * free.f_frsize - ROOM))
    for form in ("text", "json"):
        done = program.run(tmp_path, "-c", "-p", "long words " * 11_000, "--output-format", form, env=env)
        assert done.code == 1
        assert "full" in done.err.splitlines()[-1]
        assert "Traceback" not in done.err
        assert done.out == "" or done.data["failed"]
    (home / "ballast").unlink()
    done = program.run(tmp_path, "-c", "-p", "What is the boat called?", env=env)
    assert done.code == 0
    assert "Ada" in done.out
    assert texts(home / "holdfast.db")[0] == "The boat is called Ada."


# --- killed, resized, interrupted ----------------------------------------------------------------------


@pytest.mark.parametrize("chat", [True, False], ids=["chat", "one message"])
def test_after_a_kill_in_the_middle_of_a_turn_the_next_start_says_so(tmp_path: Path, chat: bool) -> None:
    with (
        provider.playing(provider.said_and_hung("Once", " upon")) as played,
        terminal.opened(tmp_path, env=played.env) as screen,
    ):
        screen.enter("tell me a story")
        screen.wait_for("Once")
        screen.process.kill()
        screen.process.wait(program.PATIENCE)
    told = "The answer to the last message (1) was not finished."
    if not chat:
        assert told in program.run(tmp_path, "-c", "-p", "go on", env=OFFLINE).err
        return
    with terminal.opened(tmp_path, "-c", columns=120, env=OFFLINE) as screen:
        screen.wait_for(told)
        screen.wait_for("tell me a story")
        assert screen.leave() == 0


def test_a_turn_that_runs_elsewhere_is_not_said_to_be_over(tmp_path: Path) -> None:
    with (
        provider.playing(provider.said_and_hung("Once")) as played,
        terminal.opened(tmp_path, env=played.env) as screen,
    ):
        screen.enter("tell me a story")
        screen.wait_for("Once")
        with terminal.opened(tmp_path, "-c", columns=120, env=OFFLINE) as other:
            other.wait_for("tell me a story")
            assert "not finished" not in other.shown
            assert other.leave() == 0


def test_a_terminal_may_change_its_size_at_any_time(tmp_path: Path) -> None:
    with terminal.opened(tmp_path, columns=80, env=OFFLINE) as screen:
        screen.enter("My train leaves at 9:40.")
        for columns in (20, 200, 1, 40, 80):
            fcntl.ioctl(screen._ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            os.killpg(screen.process.pid, signal.SIGWINCH)
        screen.wait_for("kept as message 1 ")
        screen.enter("When does my train leave?")
        screen.wait_for("9:40")
        assert screen.leave() == 0
    assert len(texts(tmp_path / "data" / "holdfast.db")) == 2


LOADED = [
    "signal",
    "holdfast.cli.program",
    "click",
    "msgspec",
    "msgspec._core",
    "platformdirs",
    "holdfast.config",
    "holdfast.cli.console",
    "holdfast.cli.chatting",
    "apsw",
    "holdfast.store.db",
    "holdfast.cli.once",
    "asyncio",
    "holdfast.app.running",
    "holdfast.model.offline",
]


@pytest.mark.parametrize("when", LOADED)
def test_ctrl_c_while_it_is_being_loaded_leaves_with_130_and_no_traceback(tmp_path: Path, when: str) -> None:
    code = f"""
import os, signal as _, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {when!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), 2)
for name in [name for name in sys.modules if name == {when!r}]: del sys.modules[name]
sys.meta_path.insert(0, Finder())
sys.argv[1:] = ['-p', 'hi']
import holdfast.cli
holdfast.cli.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=program.environment(tmp_path, OFFLINE),
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=program.PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr in ("", "Interrupted.\n")


def test_whoever_ignores_ctrl_c_is_not_made_to_hear_it(tmp_path: Path) -> None:
    code = "import signal, holdfast.cli, sys; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    code += "sys.argv[1:] = ['config', 'path']\ntry: holdfast.cli.main()\n"
    code += "except SystemExit: print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=program.environment(tmp_path), capture_output=True, check=True
    )
    assert done.stdout.endswith(b"True\n")
