"""Lease holders: which processes count as dead, their names, and the clocks of leases."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import uuid

import msgspec
import pytest

from holdfast import process_info
from holdfast.store import leases
from holdfast.store.driver import UNIX, lease_clock
from tests.store.conftest import call_in_fork


def test_ended_process_is_dead_before_and_after_it_is_reaped() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        started = process_info.start_ticks(process.pid)
        holder = msgspec.structs.replace(leases.current_holder("it"), pid=process.pid, started=started)
        assert not holder.is_dead()
        assert msgspec.structs.replace(holder, started="1").is_dead()  # another process with the same pid
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert holder.is_dead()
        process.wait()
        assert holder.is_dead()
        for elsewhere in ({"host": "other/boot"}, {"namespace": "pid:[1]"}, {"host": ""}):
            assert not msgspec.structs.replace(holder, **elsewhere).is_dead()


def on(monkeypatch: pytest.MonkeyPatch, **machine: object) -> tuple[str, str]:
    """The holder of this process if it ran on that machine."""
    same = {"hostname": "app", "boot": "b", "machine": "m", "node": 7, "namespace": "pid:[1]", **machine}
    with monkeypatch.context() as patched:
        patched.setattr(socket, "gethostname", lambda: same["hostname"])
        patched.setattr(process_info, "boot_id", lambda: same["boot"])
        patched.setattr(process_info, "machine_id", lambda: same["machine"])
        patched.setattr(uuid, "getnode", lambda: same["node"])
        patched.setattr(leases, "_namespace", lambda: same["namespace"])
        for cached in ("_host", "_identity"):
            patched.setattr(leases, cached, getattr(leases, cached).__wrapped__)
        holder = leases.current_holder("it")
    return holder.host, holder.namespace


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"boot": "another start of the machine"}),
        ({"boot": "b" * 8}, {"boot": "b" * 8 + "x"}),
        ({}, {"machine": "a clone that woke up from the same sleep"}),
        ({}, {"namespace": "pid:[2]"}),
        ({}, {"hostname": "other"}),
        ({"boot": "", "machine": "", "node": 1}, {"boot": "", "machine": "", "node": 2}),
    ],
)
def test_machines_and_containers_are_distinguished(
    monkeypatch: pytest.MonkeyPatch, one: dict[str, object], other: dict[str, object]
) -> None:
    assert on(monkeypatch, **other) != on(monkeypatch, **one) == on(monkeypatch, **one)


def test_unnamed_holder_is_named_by_host_pid_thread_and_agent() -> None:
    token = leases.acting_agent.set("my agent:1\n")
    try:
        found = leases.current_holder(None)
    finally:
        leases.acting_agent.reset(token)
    host, pid, thread, agent, nonce = found.name.split(":")
    assert (host, pid, thread) == (found.host, str(os.getpid()), str(threading.get_native_id()))
    assert (agent, nonce) == (found.agent, found.nonce) == ("my_agent_1_", found.nonce)
    assert leases.is_this_process(found.name)
    assert not leases.is_this_process(found.name.replace(f":{pid}:", ":1:", 1))
    assert len({leases.current_holder(None).name for _ in range(50)}) == 50
    named = leases.current_holder('a "name" ü')
    assert leases.decode_holder(leases.encode_holder(named)) == named


@pytest.mark.parametrize("text", ["", "{}", '{"name": 5}', "x" * 1000])
def test_invalid_holder_has_a_name_and_is_not_dead(text: str) -> None:
    holder = leases.decode_holder(text)
    assert holder.name == text[:100]
    assert not holder.is_dead()


def test_lease_clocks_read_each_others_times_and_no_other_boot() -> None:
    machine, given = lease_clock(None), lease_clock(lambda: 100.0)
    assert (given.boot, given.now, given.left(UNIX, 130.0), given.left(UNIX, 90.0)) == (UNIX, 100.0, 30.0, -10.0)
    assert (machine.boot, machine.now) == (process_info.boot_id(), machine.machine)
    assert machine.left(machine.boot, machine.machine + 30) == pytest.approx(30)
    assert given.left(machine.boot, given.machine + 30) == pytest.approx(30)
    assert machine.left(given.boot, machine.unix + 30) == pytest.approx(30)
    for timeline in (machine, given):
        assert timeline.left("another boot", timeline.machine + 1e9) <= 0


def test_forked_child_is_another_holder() -> None:
    parent = leases.current_holder("it")
    child = leases.decode_holder(call_in_fork(lambda: leases.encode_holder(leases.current_holder("it"))))
    assert child.pid != parent.pid
    assert child.host == parent.host
    assert child.is_dead()
    assert not parent.is_dead()
