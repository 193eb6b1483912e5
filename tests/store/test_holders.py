"""Holders: which processes may be called dead, and how that is found out."""

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


def test_where_signal_0_is_no_question_no_process_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    holder = leases.current_holder("me")
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, _: sent.append(pid))
    monkeypatch.setattr(os, "name", "nt")
    monkeypatch.setattr(os.path, "isdir", lambda _: False)
    dead = holder.is_dead()
    monkeypatch.undo()
    assert not dead
    assert sent == []


# --- life and death --------------------------------------------------------------------------------------


def test_this_process_is_alive() -> None:
    assert not leases.current_holder("me").is_dead()


def holder_of(process: subprocess.Popen[bytes]) -> leases.Holder:
    return msgspec.structs.replace(
        leases.current_holder("it"), pid=process.pid, started=process_info.start_ticks(process.pid)
    )


def test_process_that_ended_is_dead_before_and_after_it_is_buried() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        holder = holder_of(process)
        assert not holder.is_dead()
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert holder.is_dead()
        process.wait()
        assert holder.is_dead()


def test_another_process_with_the_same_number_is_another_process() -> None:
    assert msgspec.structs.replace(leases.current_holder("me"), started="1").is_dead()


@pytest.mark.parametrize("elsewhere", [{"host": "other/boot"}, {"namespace": "pid:[1]"}, {"host": ""}])
def test_process_that_cannot_be_seen_from_here_is_never_called_dead(elsewhere: dict[str, str]) -> None:
    gone = msgspec.structs.replace(leases.current_holder("it"), pid=2**22 + 1, started="1")
    assert gone.is_dead()
    assert not msgspec.structs.replace(gone, **elsewhere).is_dead()


SAME = {"hostname": "app", "boot": "b", "machine": "m", "node": 7, "namespace": "pid:[1]"}


def on(monkeypatch: pytest.MonkeyPatch, **machine: object) -> leases.Holder:
    """This process, were it on such a machine."""
    told = {**SAME, **machine}
    with monkeypatch.context() as patched:
        patched.setattr(socket, "gethostname", lambda: told["hostname"])
        patched.setattr(process_info, "boot_id", lambda: told["boot"])
        patched.setattr(process_info, "machine_id", lambda: told["machine"])
        patched.setattr(uuid, "getnode", lambda: told["node"])
        patched.setattr(leases, "_namespace", lambda: told["namespace"])
        _forget()
        try:
            return leases.current_holder("it")
        finally:
            _forget()


def _forget() -> None:
    leases._host.cache_clear()
    leases._identity.cache_clear()


def place(holder: leases.Holder) -> tuple[str, str]:
    return holder.host, holder.namespace


@pytest.mark.parametrize(
    "other",
    [
        {"boot": "another start of a machine with the same name"},
        {"boot": "b" * 8 + "x"},  # it begins the same
        {"machine": "a clone that woke up from the same sleep"},
        {"namespace": "pid:[2]"},  # another container of the machine
        {"hostname": "other"},
    ],
)
def test_machines_and_containers_with_the_same_name_and_numbers_are_not_the_same(
    monkeypatch: pytest.MonkeyPatch, other: dict[str, object]
) -> None:
    here = on(monkeypatch, boot="b" * 8) if "boot" in other else on(monkeypatch)
    assert place(on(monkeypatch, **other)) != place(here)
    assert place(on(monkeypatch)) == place(on(monkeypatch))


def test_without_boot_ids_the_network_card_tells_machines_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    one, same, other = (on(monkeypatch, boot="", machine="", node=node) for node in (1, 1, 2))
    assert place(one) == place(same) != place(other)


# --- names -----------------------------------------------------------------------------------------------


def test_holder_comes_back_from_its_text() -> None:
    holder = leases.current_holder('a "name" ü')
    assert leases.decode_holder(leases.encode_holder(holder)) == holder


def test_holder_goes_by_the_name_it_was_given_or_by_one_nobody_has() -> None:
    assert leases.current_holder("me").name == "me"
    assert len({leases.current_holder(None).name for _ in range(50)}) == 50


def test_unnamed_holder_goes_by_host_pid_thread_and_agent() -> None:
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


@pytest.mark.parametrize("text", ["", "pid 42", "{}", "[]", "null", '{"name": 5}', "{", "x" * 1000])
def test_holder_written_by_something_else_has_a_name_and_is_not_called_dead(text: str) -> None:
    holder = leases.decode_holder(text)
    assert holder.name == text[:100]
    assert not holder.is_dead()


# --- clocks ----------------------------------------------------------------------------------------------


def test_clock_that_was_given_serves_leases_too() -> None:
    timeline = lease_clock(lambda: 100.0)
    assert (timeline.boot, timeline.now) == (UNIX, 100.0)
    assert (timeline.left(UNIX, 130.0), timeline.left(UNIX, 90.0)) == (30.0, -10.0)


def test_machine_clock_names_the_boot_it_counts_from() -> None:
    timeline = lease_clock(None)
    assert (timeline.boot, timeline.now) == (process_info.boot_id(), timeline.machine)
    assert timeline.left(process_info.boot_id(), timeline.machine + 30) == pytest.approx(30)


def test_lease_of_another_boot_is_over() -> None:
    for timeline in (lease_clock(None), lease_clock(lambda: 100.0)):
        assert timeline.left("another boot", timeline.machine + 1e9) <= 0


def test_either_clock_reads_what_the_other_wrote() -> None:
    machine, given = lease_clock(None), lease_clock(lambda: 100.0)
    assert given.left(machine.boot, given.machine + 30) == pytest.approx(30)
    assert machine.left(given.boot, machine.unix + 30) == pytest.approx(30)


def test_child_of_a_process_that_was_asked_before_is_itself() -> None:
    mine = leases.current_holder("it")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, leases.encode_holder(leases.current_holder("it")).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        theirs = leases.decode_holder(file.read())
    os.waitpid(child, 0)
    assert (theirs.pid, theirs.host) == (child, mine.host)
    assert theirs.is_dead()
    assert not mine.is_dead()
