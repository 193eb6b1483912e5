"""Failures of the network, the disk and the start: a clear sentence, an exit code, and nothing lost."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.support import cli_process
from tests.support.cli_process import OFFLINE, Holdfast

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


# --- the disk ------------------------------------------------------------------------------------------

FULL = "from tests.faults import disk\ndisk.Disk().arm(0, {!r})\nimport holdfast.cli\nholdfast.cli.main()"


@pytest.mark.parametrize("fault", ["full", "quota"])
def test_full_disk_is_reported_and_the_conversation_continues_with_room(
    holdfast: Holdfast, tmp_path: Path, fault: str
) -> None:
    assert holdfast("-p", "The boat is called Ada.", **OFFLINE).code == 0
    for form in ("text", "json"):
        arguments = ["-c", "-p", "long words " * 11_000, "--output-format", form]
        env = {**OFFLINE, "PYTHONPATH": ROOT}
        done = cli_process.run_code(tmp_path, FULL.format(fault), *arguments, env=env)
        assert done.code == 1
        assert "The disk is full (or a quota is reached)" in done.err.splitlines()[-1]
        assert "Free some space" in done.err.splitlines()[-1]
        assert "Traceback" not in done.err
        assert done.out == "" or done.data["failed"]
    done = holdfast("-c", "-p", "What is the boat called?", **OFFLINE)
    assert done.code == 0
    assert "Ada" in done.out
    assert cli_process.read_log(tmp_path)[0] == ("user", "The boat is called Ada.")


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
