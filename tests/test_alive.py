"""Which processes carry a mark, and that killing them spares all others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid

import pytest

from holdfast import process_info
from tests.support.polling import until

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="marks are read from /proc")

WAITS = [sys.executable, "-c", "print(flush=True); input()"]


def waiting(**environment: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(WAITS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **environment})
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_only_those_with_the_whole_mark_are_killed() -> None:
    mark = uuid.uuid4().hex
    with waiting(MARK=mark) as ours, waiting(MARK=f"{mark}x") as other, waiting(OTHER=f"MARK={mark}") as third:
        assert process_info.find_by_env(f"MARK={mark}") == [ours.pid]
        assert process_info.kill_by_env(f"MARK={mark}") == 1
        assert ours.wait(60) == -9
        assert process_info.kill_by_env(f"MARK={mark}") == 0
        assert (other.poll(), third.poll()) == (None, None)
        other.kill()
        third.kill()


def test_a_process_is_named_by_when_it_began() -> None:
    assert process_info.start_ticks(os.getpid()) == process_info.start_ticks(os.getpid()) != ""
    assert process_info.start_ticks(2**22 + 1) == ""
    assert process_info.exists(os.getpid())
    assert not process_info.exists(2**22 + 1)


def test_only_those_with_the_mark_are_woken() -> None:
    mark = uuid.uuid4().hex
    with waiting(MARK=mark) as ours, waiting(MARK=f"{mark}x") as other:
        for process in (ours, other):
            process.send_signal(signal.SIGSTOP)
        until(lambda: state(ours.pid) == state(other.pid) == "T", "both are stopped")
        process_info.resume_by_env(f"MARK={mark}")
        until(lambda: state(ours.pid) == "S", "it goes on")
        assert state(other.pid) == "T"
        ours.kill()
        other.kill()


def state(pid: int) -> str:
    return process_info.read_text(f"/proc/{pid}/stat").rpartition(")")[2].strip()[:1]
