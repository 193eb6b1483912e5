"""`holdfast tour` plays a real conversation and leaves the user's files alone."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import struct
import sys
import termios
from pathlib import Path

import pytest

from tests.support import cli_process, polling
from tests.support.cli_process import Holdfast

ROOT = Path(__file__).parents[2]


def test_tour_shows_tools_compaction_and_recall_and_touches_no_file(holdfast: Holdfast, tmp_path: Path) -> None:
    (tmp_path / ".holdfast.toml").write_text("wrong = 1", "utf-8")
    done = holdfast("tour", HOLDFAST_DB=str(tmp_path / "mine.db"), OPENAI_API_KEY="key", HOLDFAST_MODEL="openai/x")
    assert (done.code, done.err) == (0, "")
    rest = done.out
    for text in (
        *("> Our train to Porto leaves at 9:40 from platform 4.", "kept as message 1 ", "> read ferries.txt"),
        *("read_file", "> /compact here 1", "Compacted up to message", "> From which platform do we leave?"),
        *("You said in message 1 ", "`holdfast --continue`", "You said in message 3", "1 compaction"),
        "the store passed every check",
    ):
        assert text in rest, text
        rest = rest.partition(text)[2]
    assert os.listdir(tmp_path) == [".holdfast.toml"]


@pytest.mark.skipif(not hasattr(fcntl, "F_SETPIPE_SZ"), reason="the size of a pipe can only be set on Linux")
def test_interrupted_tour_exits_with_130_and_leaves_no_file(tmp_path: Path) -> None:
    read, write = os.pipe()
    # The pipe has room for the first lines only, so the tour cannot end before it is read.
    room = fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    filled = os.write(write, b"x" * (room - 300))
    with cli_process.start(tmp_path, "tour", stdout=write) as process:
        os.close(write)
        polling.until(lambda: struct.unpack("i", fcntl.ioctl(read, termios.FIONREAD, bytes(4)))[0] > filled)
        process.send_signal(signal.SIGINT)
        with os.fdopen(read, "rb") as file:
            shown = file.read()
        _, err = process.communicate(timeout=cli_process.PATIENCE)
    assert (process.returncode, err) == (130, "Interrupted.\n")
    assert b"A short conversation" in shown
    assert b"the store passed every check" not in shown
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_run_without_a_terminal_plays_the_tour(tmp_path: Path) -> None:
    program = tmp_path / "venv" / "bin" / "holdfast"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m holdfast "$@"\n')
    program.chmod(0o755)
    (tmp_path / "venv" / "run.stamp").touch()
    command = ["make", "-C", str(ROOT), "--no-print-directory", f"VENV={tmp_path / 'venv'}", "run"]
    done = cli_process.run(tmp_path, command=command, piped="hello\n")
    assert (done.code, done.err) == (0, "")
    assert "the store passed every check" in done.out
    assert os.listdir(tmp_path) == ["venv"]
