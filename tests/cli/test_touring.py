"""The tour: what a newcomer without a terminal sees is real, quick to leave, and touches nothing of theirs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli import program

ROOT = Path(__file__).parent.parent.parent
Holdfast = Callable[..., program.Run]


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
        ("1 compaction made", "every check of the store passed"),
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
    done = program.run_in_terminal(tmp_path, "tour", columns=40, env={"PYTHONIOENCODING": "ascii"})
    assert done.code == 0
    assert "Compacted up to message" in " ".join(done.out.split())


def test_whoever_stops_it_leaves_nothing(tmp_path: Path) -> None:
    process = program.start(tmp_path, "tour")
    assert process.stdout is not None
    assert process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=program.PATIENCE)
    assert (process.returncode, err) in ((130, "Interrupted.\n"), (0, ""))
    assert os.listdir(tmp_path) == []


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
        env=program.environment(tmp_path),
        input=piped,
        capture_output=True,
        encoding="utf-8",
        timeout=program.PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "every check of the store passed" in done.stdout
    assert os.listdir(tmp_path) == ["venv"]
