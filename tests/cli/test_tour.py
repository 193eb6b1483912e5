"""The tour: what a newcomer without a terminal sees is real, quick to leave, and touches nothing of theirs."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import cli_process, polling

ROOT = Path(__file__).parent.parent.parent
Holdfast = Callable[..., cli_process.Run]


def test_it_shows_facts_a_tool_a_compaction_and_what_is_found_again(holdfast: Holdfast) -> None:
    done = holdfast("tour")
    assert (done.code, done.err) == (0, "")
    told = done.out
    for first, then in (
        ("> Our train to Porto leaves at 9:40 from platform 4.", "kept as message 1 "),
        ("> read ferries.txt", "read_file"),
        ("> /compact here 1", "Compacted up to message"),
        ("> From which platform do we leave?", "You said in message 1 "),
        ("`holdfast --continue`", "You said in message 3"),
        ("1 compaction", "the store passed every check"),
    ):
        assert first in told, first
        told = told.partition(first)[2]
        assert then in told, then


def test_it_touches_neither_store_nor_settings_nor_keys(holdfast: Holdfast, tmp_path: Path) -> None:
    (tmp_path / ".holdfast.toml").write_text("wrong = 1", "utf-8")
    done = holdfast("tour", HOLDFAST_DB=str(tmp_path / "mine.db"), OPENAI_API_KEY="key", HOLDFAST_MODEL="openai/x")
    assert done.code == 0
    assert os.listdir(tmp_path) == [".holdfast.toml"]


def test_it_fits_a_narrow_terminal_and_an_encoding_without_signs(tmp_path: Path) -> None:
    done = cli_process.run_in_terminal(tmp_path, "tour", columns=40, env={"PYTHONIOENCODING": "ascii"})
    assert done.code == 0
    assert "Compacted up to message" in " ".join(done.out.split())


@pytest.mark.skipif(not hasattr(fcntl, "F_SETPIPE_SZ"), reason="the size of a pipe can only be set on Linux")
def test_whoever_stops_it_in_its_middle_leaves_with_130_and_leaves_nothing(tmp_path: Path) -> None:
    read, write = os.pipe()
    # There is room for its first lines, and none for the rest before somebody reads: it cannot be over yet.
    room = fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    filled = os.write(write, b"x" * (room - 300))
    process = subprocess.Popen(
        [*cli_process.PROGRAM, "tour"],
        cwd=tmp_path,
        env=cli_process.environment(tmp_path),
        stdin=subprocess.DEVNULL,
        stdout=write,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    os.close(write)
    polling.until(lambda: _unread(read) > filled)
    process.send_signal(signal.SIGINT)
    shown = b""
    while part := os.read(read, 65536):
        shown += part
    os.close(read)
    _, err = process.communicate(timeout=cli_process.PATIENCE)
    assert (process.returncode, err) == (130, "Interrupted.\n")
    assert b"A short conversation" in shown
    assert b"the store passed every check" not in shown
    assert os.listdir(tmp_path) == []


def _unread(pipe: int) -> int:
    return int(struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0])


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize("piped", ["", "hello\n"])
def test_make_run_without_a_terminal_plays_it_and_leaves_with_0(tmp_path: Path, piped: str) -> None:
    bin_ = tmp_path / "venv" / "bin"
    bin_.mkdir(parents=True)
    (bin_ / "holdfast").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m holdfast "$@"\n')
    (bin_ / "holdfast").chmod(0o755)
    (tmp_path / "venv" / "run.stamp").touch()
    done = subprocess.run(
        ["make", "-C", ROOT, "--no-print-directory", f"VENV={tmp_path / 'venv'}", "run"],
        env=cli_process.environment(tmp_path),
        input=piped,
        capture_output=True,
        encoding="utf-8",
        timeout=cli_process.PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "the store passed every check" in done.stdout
    assert os.listdir(tmp_path) == ["venv"]
