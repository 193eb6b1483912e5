"""Processes are found, killed and resumed by a variable of their environment, and no others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from holdfast import process_info
from tests.support.polling import until

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="environments are read from /proc")


def start(**env: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", "print(flush=True); input()"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **env})
    assert process.stdout is not None
    process.stdout.readline()
    return process


def state(process: subprocess.Popen[bytes]) -> str:
    return process_info.read_text(f"/proc/{process.pid}/stat").rpartition(")")[2].strip()[:1]


def test_only_processes_with_the_whole_value_are_resumed_and_killed() -> None:
    mark = uuid.uuid4().hex
    with start(MARK=mark) as ours, start(MARK=f"{mark}x") as other, start(OTHER=f"MARK={mark}") as third:
        assert process_info.find_by_env(f"MARK={mark}") == [ours.pid]
        for process in (ours, other):
            process.send_signal(signal.SIGSTOP)
        until(lambda: state(ours) == state(other) == "T", "both are stopped")
        process_info.resume_by_env(f"MARK={mark}")
        until(lambda: state(ours) == "S", "it continues")
        assert state(other) == "T"
        assert process_info.kill_by_env(f"MARK={mark}") == 1
        assert ours.wait(60) == -9
        assert process_info.kill_by_env(f"MARK={mark}") == 0
        assert (other.poll(), third.poll()) == (None, None)
        other.kill()
        third.kill()


def test_process_that_replaces_its_program_is_found(tmp_path: Path) -> None:
    mark, script = uuid.uuid4().hex, tmp_path / "script"
    script.write_text(f"exec /bin/sh {script}\n")
    with subprocess.Popen(["/bin/sh", script], env={"MARK": mark}) as process:
        try:
            until(lambda: process_info.find_by_env(f"MARK={mark}") == [process.pid], "it is found")
            # Its environment reads as empty in about one of fifty reads.
            missed = sum(not process_info.has_env(process.pid, f"MARK={mark}") for _ in range(2_000))
            assert missed == 0
        finally:
            process.kill()


def test_process_without_environment_is_not_waited_for() -> None:
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, env={}) as process:
        until(lambda: not process_info.may_be_in_exec(process.pid), "it runs its program")
        process.kill()
        until(lambda: state(process) in ("Z", ""), "it is a zombie")
        assert not process_info.may_be_in_exec(process.pid)
        assert not process_info.may_be_in_exec(2**22 + 1)


def test_process_is_identified_by_its_start_time() -> None:
    assert process_info.start_ticks(os.getpid()) == process_info.start_ticks(os.getpid()) != ""
    assert process_info.start_ticks(2**22 + 1) == ""
    assert process_info.exists(os.getpid())
    assert not process_info.exists(2**22 + 1)
