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
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import SessionDB
from tests.support import cli_process, cli_zygote, provider_process, pty_terminal

OFFLINE = {"HOLDFAST_MODEL": "offline"}
# What the files beside a store need to be opened at all.
ROOM = 96 * 1024
ROOT = str(Path(__file__).parent.parent.parent)
KEY = {"OPENAI_API_KEY": "key", "HOLDFAST_MODEL": "openai/x"}


def texts(path: Path) -> list[str]:
    """What users said in the only conversation there is; the store is sound."""
    with SessionDB(path) as db:
        assert db.admin.fsck().ok
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
def test_a_model_out_of_reach_is_said_and_the_message_kept(
    tmp_path: Path, address: str, waiting: cli_zygote.Server
) -> None:
    host = f"127.0.0.1:{_closed_port()}" if address == "dead server" else "nowhere.invalid"
    done = waiting.run(tmp_path, "-p", "hello there", env={**KEY, "OPENAI_BASE_URL": f"http://{host}/v1"})
    assert (done.code, done.out) == (1, "")
    first, *waits, last = done.err.splitlines()
    assert first.startswith(f"openai/x (http://{host}) cannot be reached: ")
    assert all(line.startswith("Trying again in ") for line in waits), waits
    assert last.startswith(f"holdfast: openai/x (http://{host}) cannot be reached: ")
    assert last.endswith(" Your message is stored: /retry asks again.")
    assert texts(tmp_path / "data" / "holdfast.db") == ["hello there"]


def test_what_the_model_did_not_answer_is_said_to_whoever_goes_on(tmp_path: Path, waiting: cli_zygote.Server) -> None:
    with provider_process.playing(provider_process.refused(401, "no")) as played:
        assert waiting.run(tmp_path, "-p", "hello there", env=played.env).code == 1
    done = waiting.run(tmp_path, "-c", "-p", "again", env=OFFLINE)
    assert done.code == 0
    assert done.err == "The answer to the last message (1) was not finished. Send it again, or continue.\n"
    assert waiting.run(tmp_path, "-c", "-p", "again", env=OFFLINE).err == ""


@pytest.mark.parametrize(
    ("status", "told"), [(404, "The model `played` does not exist"), (401, "Incorrect API key"), (500, "Overloaded")]
)
def test_a_provider_that_refuses_is_quoted_with_the_model_and_the_message_kept(
    tmp_path: Path, status: int, told: str, waiting: cli_zygote.Server
) -> None:
    with provider_process.playing(*[provider_process.refused(status, told)] * 20) as played:
        done = waiting.run(tmp_path, "-p", "hello there", env=played.env)
    assert (done.code, done.out) == (1, "")
    last = done.err.splitlines()[-1]
    assert last.startswith("holdfast: ")
    assert provider_process.MODEL in last
    assert told in last or status != 404
    assert texts(tmp_path / "data" / "holdfast.db") == ["hello there"]


# --- the disk ------------------------------------------------------------------------------------------


class Place:
    """A home on a small file system of its own; where mounting one is not allowed, a folder and a layer do for it."""

    def __init__(self, folder: Path, waiting: cli_zygote.Server) -> None:
        self.home = folder / "disk"
        self.home.mkdir(mode=0o700)
        self.mounted = os.geteuid() == 0 and self._mount("mode=700,size=4m", "-t", "tmpfs", "tmpfs")
        self.env = {**OFFLINE, "HOLDFAST_HOME": str(self.home)}
        self._folder, self._full, self._waiting = folder, False, waiting

    def _mount(self, options: str, *more: str) -> bool:
        command = ["mount", "-o", options, *more, str(self.home)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def read_only(self, yes: bool) -> None:
        if self.mounted:
            assert self._mount("remount,ro" if yes else "remount,rw")
            return
        for path in self.home.iterdir() if yes else ():
            path.chmod(0o400)
        self.home.chmod(0o500 if yes else 0o700)
        for path in () if yes else self.home.iterdir():
            path.chmod(0o600)

    def fill(self, left: int) -> None:
        """All but so many bytes. The layer has no figure: it is full, or for 0 says so as a quota does."""
        self._full = True
        self._how = "full" if left else "quota"
        if self.mounted:
            free = os.statvfs(self.home)
            (self.home / "ballast").write_bytes(b"x" * (free.f_bavail * free.f_frsize - left))

    def make_room(self) -> None:
        self._full = False
        (self.home / "ballast").unlink(missing_ok=True)

    def run(self, *arguments: str) -> cli_process.Run:
        if self.mounted or not self._full:
            return self._waiting.run(self._folder, *arguments, env=self.env)
        code = f"import sys; sys.argv[1:] = {list(arguments)!r}\nfrom tests.support import faulty_disk\n"
        code += f"faulty_disk.Disk().arm(0, {self._how!r})\nimport holdfast.cli\nholdfast.cli.main()"
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**cli_process.environment(self._folder, self.env), "PYTHONPATH": ROOT},
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=cli_process.PATIENCE,
            check=False,
        )
        return cli_process.Run(done.returncode, done.stdout, done.stderr)

    def close(self) -> None:
        if self.mounted:
            subprocess.run(["umount", str(self.home)], check=True)
        else:
            self.read_only(False)


@pytest.fixture
def place(tmp_path: Path, waiting: cli_zygote.Server) -> Iterator[Place]:
    made = Place(tmp_path, waiting)
    yield made
    made.close()


REFUSED = ("Read-only file system", "Permission denied")


@pytest.mark.parametrize(
    ("arguments", "code"), [(["-p", "hello"], 1), (["doctor"], 1), (["sessions", "list"], 1), (["config", "show"], 0)]
)
def test_a_home_that_is_read_only_is_said(place: Place, arguments: list[str], code: int) -> None:
    place.read_only(True)
    done = place.run(*arguments)
    assert "Traceback" not in done.err
    assert done.code == code
    if arguments[0] == "-p":
        assert str(place.home) in done.sentence
        assert any(each in done.sentence for each in REFUSED)
    elif code == 1:
        assert "There is no database at" in done.out + done.err


def test_a_home_that_became_read_only_takes_nothing_and_loses_nothing(place: Place) -> None:
    assert place.run("-p", "The boat is called Ada.").code == 0
    place.read_only(True)
    done = place.run("-p", "hello")
    assert done.code == 1
    assert done.sentence.startswith("holdfast: ")
    place.read_only(False)
    assert texts(place.home / "holdfast.db") == ["The boat is called Ada."]


@pytest.mark.parametrize("left", [ROOM, 0], ids=["a little room", "not a byte"])
def test_a_full_disk_is_said_and_with_room_it_goes_on(place: Place, left: int) -> None:
    assert place.run("-p", "The boat is called Ada.").code == 0
    place.fill(left)
    for form in ("text", "json"):
        done = place.run("-c", "-p", "long words " * 11_000, "--output-format", form)
        assert done.code == 1
        assert "The disk is full (or a quota is reached)" in done.err.splitlines()[-1]
        assert "Free some space" in done.err.splitlines()[-1]
        assert "Traceback" not in done.err
        assert done.out == "" or done.data["failed"]
    place.make_room()
    done = place.run("-c", "-p", "What is the boat called?")
    assert done.code == 0
    assert "Ada" in done.out
    assert texts(place.home / "holdfast.db")[0] == "The boat is called Ada."


# --- killed, resized, interrupted ----------------------------------------------------------------------


@pytest.mark.parametrize("chat", [True, False], ids=["chat", "one message"])
def test_after_a_kill_in_the_middle_of_a_turn_the_next_start_says_so(
    tmp_path: Path, chat: bool, waiting: cli_zygote.Server
) -> None:
    with (
        provider_process.playing(provider_process.said_and_hung("Once", " upon")) as played,
        pty_terminal.opened(tmp_path, env=played.env) as screen,
    ):
        screen.enter("tell me a story")
        screen.wait_for("Once")
        screen.process.kill()
        screen.process.wait()
    told = "The answer to the last message (1) was not finished."
    if not chat:
        assert told in waiting.run(tmp_path, "-c", "-p", "go on", env=OFFLINE).err
        return
    with pty_terminal.opened(tmp_path, "-c", columns=120, env=OFFLINE) as screen:
        screen.wait_for(told)
        screen.wait_for("tell me a story")
        assert screen.leave() == 0


def test_a_turn_that_runs_elsewhere_is_not_said_to_be_over(tmp_path: Path) -> None:
    with (
        provider_process.playing(provider_process.said_and_hung("Once")) as played,
        pty_terminal.opened(tmp_path, env=played.env) as screen,
    ):
        screen.enter("tell me a story")
        screen.wait_for("Once")
        with pty_terminal.opened(tmp_path, "-c", columns=120, env=OFFLINE) as other:
            other.wait_for("tell me a story")
            assert "not finished" not in other.shown
            assert other.leave() == 0


def test_a_terminal_may_change_its_size_at_any_time(tmp_path: Path) -> None:
    with pty_terminal.opened(tmp_path, columns=80, env=OFFLINE) as screen:
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
    "holdfast.cli.chat",
    "apsw",
    "holdfast.store.db",
    "holdfast.cli.one_shot",
    "asyncio",
    "holdfast.app.compose",
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
            # However busy the machine is, a signal that was held back is there when it is let through.
            _.pthread_sigmask(_.SIG_BLOCK, [2])
            os.kill(os.getpid(), 2)
            _.pthread_sigmask(_.SIG_UNBLOCK, [2])
for name in [name for name in sys.modules if name == {when!r}]: del sys.modules[name]
sys.meta_path.insert(0, Finder())
sys.argv[1:] = ['-p', 'hi']
import holdfast.cli
holdfast.cli.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=cli_process.environment(tmp_path, OFFLINE),
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=cli_process.PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr in ("", "Interrupted.\n")


def test_whoever_ignores_ctrl_c_is_not_made_to_hear_it(tmp_path: Path) -> None:
    code = "import signal, holdfast.cli, sys; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    code += "sys.argv[1:] = ['config', 'path']\ntry: holdfast.cli.main()\n"
    code += "except SystemExit: print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=cli_process.environment(tmp_path), capture_output=True, check=True
    )
    assert done.stdout.endswith(b"True\n")
