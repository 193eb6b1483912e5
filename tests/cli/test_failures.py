"""Failures of the network, the disk and the start: a clear sentence, an exit code, and nothing lost."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import SessionDB
from tests.support import cli_process, provider_process
from tests.support.cli_process import OFFLINE, Holdfast, Run
from tests.support.provider_process import refusal, serve

# The files next to a store need so much to be opened.
ROOM = 96 * 1024
ROOT = str(Path(__file__).parents[2])


# --- the network ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("resolves", [True, False], ids=["dead server", "no network"])
def test_unreachable_model_is_reported_and_the_message_is_kept(
    holdfast: Holdfast, tmp_path: Path, resolves: bool
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{closed.getsockname()[1]}" if resolves else "nowhere.invalid"
    key = {"OPENAI_API_KEY": "key", "HOLDFAST_MODEL": "openai/x"}
    done = holdfast("-p", "hello there", **key, OPENAI_BASE_URL=f"http://{host}/v1")
    assert (done.code, done.out) == (1, "")
    first, *waits, last = done.err.splitlines()
    assert first.startswith(f"openai/x (http://{host}) cannot be reached: ")
    assert all(line.startswith("Trying again in ") for line in waits), waits
    assert last.startswith(f"holdfast: openai/x (http://{host}) cannot be reached: ")
    assert last.endswith(" Your message is stored: /retry asks again.")
    assert cli_process.read_log(tmp_path) == [("user", "hello there")]


@pytest.mark.parametrize(
    ("status", "message"), [(404, "The model `played` does not exist"), (401, "Incorrect API key"), (500, "Overloaded")]
)
def test_refusal_of_the_provider_is_reported_and_the_message_is_kept(
    holdfast: Holdfast, tmp_path: Path, status: int, message: str
) -> None:
    with serve(*[refusal(status, message)] * 20) as provider:
        done = holdfast("-p", "hello there", **provider.env)
    assert (done.code, done.out) == (1, "")
    last = done.err.splitlines()[-1]
    assert last.startswith("holdfast: ")
    assert provider_process.MODEL in last
    assert message in last or status != 404
    assert cli_process.read_log(tmp_path) == [("user", "hello there")]


# --- the disk ------------------------------------------------------------------------------------------


class Disk:
    """A home on a small file system; where mounting is not permitted, modes and a fault layer replace it."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "disk"
        self.home.mkdir(mode=0o700)
        self.mounted = os.geteuid() == 0 and self._mount("mode=700,size=4m", "-t", "tmpfs", "tmpfs")
        self.env = {**OFFLINE, "HOLDFAST_HOME": str(self.home)}
        self._folder, self._fault = folder, ""

    def _mount(self, options: str, *more: str) -> bool:
        command = ["mount", "-o", options, *more, str(self.home)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def make_read_only(self, yes: bool = True) -> None:
        if self.mounted:
            assert self._mount("remount,ro" if yes else "remount,rw")
            return
        self.home.chmod(0o700)
        for path in self.home.iterdir():
            path.chmod(0o400 if yes else 0o600)
        self.home.chmod(0o500 if yes else 0o700)

    def fill(self, left: int) -> None:
        """Leave so many bytes. The fault layer reports a full disk or, for 0 bytes, a quota."""
        self._fault = "full" if left else "quota"
        if self.mounted:
            free = os.statvfs(self.home)
            (self.home / "ballast").write_bytes(b"x" * (free.f_bavail * free.f_frsize - left))

    def make_room(self) -> None:
        self._fault = ""
        (self.home / "ballast").unlink(missing_ok=True)

    def run(self, *arguments: str) -> Run:
        if self.mounted or not self._fault:
            return cli_process.run(self._folder, *arguments, env=self.env)
        code = f"from tests.faults import disk\ndisk.Disk().arm(0, {self._fault!r})\n"
        code += "import holdfast.cli\nholdfast.cli.main()"
        return cli_process.run_code(self._folder, code, *arguments, env={**self.env, "PYTHONPATH": ROOT})

    def user_messages(self) -> list[str]:
        with SessionDB(self.home / "holdfast.db") as db:
            assert db.admin.fsck().ok
            (head,) = db.list_sessions()
            return [str(each.content) for each in db.transcript(head.id) if each.role == "user"]

    def close(self) -> None:
        if self.mounted:
            subprocess.run(["umount", str(self.home)], check=True)
        else:
            self.make_read_only(False)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path)
    yield made
    made.close()


def test_read_only_home_is_reported_and_loses_nothing(disk: Disk) -> None:
    disk.make_read_only()
    new = disk.run("-p", "hello")
    assert new.code == 1
    assert str(disk.home) in new.sentence
    assert any(each in new.sentence for each in ("Read-only file system", "Permission denied"))
    assert "There is no database at" in disk.run("sessions", "list").sentence
    disk.make_read_only(False)
    assert disk.run("-p", "The boat is called Ada.").code == 0
    disk.make_read_only()
    done = disk.run("-p", "hello")
    assert done.code == 1
    assert done.sentence.startswith("holdfast: ")
    disk.make_read_only(False)
    (message,) = disk.user_messages()
    assert "The boat is called Ada." in message


@pytest.mark.parametrize("left", [ROOM, 0], ids=["a little room", "no byte"])
def test_full_disk_is_reported_and_the_conversation_continues_with_room(disk: Disk, left: int) -> None:
    assert disk.run("-p", "The boat is called Ada.").code == 0
    disk.fill(left)
    for form in ("text", "json"):
        done = disk.run("-c", "-p", "long words " * 11_000, "--output-format", form)
        assert done.code == 1
        assert "The disk is full (or a quota is reached)" in done.err.splitlines()[-1]
        assert "Free some space" in done.err.splitlines()[-1]
        assert "Traceback" not in done.err
        assert done.out == "" or done.data["failed"]
    disk.make_room()
    done = disk.run("-c", "-p", "What is the boat called?")
    assert done.code == 0
    assert "Ada" in done.out
    assert "The boat is called Ada." in disk.user_messages()[0]


# --- Ctrl-C at the start -------------------------------------------------------------------------------

INTERRUPTED = """
import os, signal as _, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == MODULE:
            sys.meta_path.remove(self)
            # A blocked signal is delivered at the moment it is unblocked.
            _.pthread_sigmask(_.SIG_BLOCK, [2])
            os.kill(os.getpid(), 2)
            _.pthread_sigmask(_.SIG_UNBLOCK, [2])
sys.modules.pop(MODULE, None)
sys.meta_path.insert(0, Finder())
import holdfast.cli
holdfast.cli.main()
"""
LOADED = [
    "signal",
    "holdfast.cli.program",
    "msgspec._core",
    "holdfast.config",
    "apsw",
    "asyncio",
    "holdfast.model.offline",
]


@pytest.mark.parametrize("module", LOADED)
def test_ctrl_c_while_loading_exits_with_130(tmp_path: Path, module: str) -> None:
    done = cli_process.run_code(tmp_path, f"MODULE = {module!r}{INTERRUPTED}", "-p", "hi", env=OFFLINE)
    assert (done.code, done.out) == (130, "")
    assert done.err in ("", "Interrupted.\n")


def test_ignored_ctrl_c_stays_ignored(tmp_path: Path) -> None:
    code = "import signal, holdfast.cli; signal.signal(signal.SIGINT, signal.SIG_IGN)\ntry: holdfast.cli.main()\n"
    code += "except SystemExit: print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    assert cli_process.run_code(tmp_path, code, "config", "path").out.endswith("True\n")
