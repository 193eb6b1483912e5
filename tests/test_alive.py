"""Which processes carry a mark, and that killing them spares all others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid

import pytest

from holdfast import process_info
from tests.tools.leash import until

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


def test_a_child_is_killed_with_all_below_it_also_when_they_are_stopped() -> None:
    mark = uuid.uuid4().hex
    tree = "sleep 1000 & setsid bash -c 'trap \"\" TERM; sleep 1000 & kill -STOP $$' & echo; wait"
    with (
        waiting(MARK=f"{mark}x") as other,
        subprocess.Popen(["bash", "-c", tree], stdout=subprocess.PIPE, env={**os.environ, "MARK": mark}) as ours,
    ):
        until(lambda: len(process_info.process_tree(ours.pid)) == 4, "all are up")
        assert set(process_info.process_tree(ours.pid)) == set(process_info.find_by_env(f"MARK={mark}"))
        assert process_info.process_tree(ours.pid)[0] == ours.pid
        process_info.kill_tree(ours.pid)
        assert ours.wait(60) == -9
        until(lambda: not process_info.find_by_env(f"MARK={mark}"), "none is left")
        assert other.poll() is None
        other.kill()


def test_one_that_makes_children_all_the_time_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_info, "_MAX_ROUNDS", 5)
    mark = uuid.uuid4().hex
    tree = "for n in {1..300}; do setsid sleep 1000 & read -t 0.001 <> <(:); done; wait"
    try:
        with subprocess.Popen(["bash", "-c", tree], env={**os.environ, "MARK": mark}) as ours:
            until(lambda: len(process_info.process_tree(ours.pid)) > 4, "it is at it")
            process_info.kill_tree(ours.pid)
            assert ours.wait(60) == -9
        until(lambda: not process_info.find_by_env(f"MARK={mark}"), "none is left", 5)
    finally:
        process_info.kill_by_env(f"MARK={mark}")


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
