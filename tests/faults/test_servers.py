"""Servers that die, stand still or are full of others: nothing is lost, nobody hangs, and all go on by themselves."""

from __future__ import annotations

import os
import random
import signal
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import errors
from holdfast.store.db import SessionDB
from tests.faults import kills, steps, storms
from tests.faults import zygote as zygotes
from tests.faults.test_cuts import Background
from tests.support import postgres

KILLS = int(os.environ.get("HOLDFAST_SERVER_KILLS") or 20)


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Server]:
    """A server of this module's own, with a disk it waits for and little room."""
    settings = {"max_connections": "16", "superuser_reserved_connections": "0"}
    with postgres.Server(fsync=True, settings=settings) as made:
        yield made


@pytest.fixture
def address(server: postgres.Server) -> str:
    schema = f"s{time.monotonic_ns()}"
    with postgres.psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
    return server.dsn(schema)


def test_server_killed_under_load_loses_nothing_and_all_go_on(
    zygote: zygotes.Zygote, server: postgres.Server, address: str
) -> None:
    chance, took = random.Random("postmaster"), list[float]()

    def kill() -> None:
        time.sleep(chance.uniform(0.0, 0.03))
        server.kill()
        began = time.monotonic()
        server.start()
        with SessionDB(address) as db:
            db.append_message("c", role="user", content="first")
        took.append(time.monotonic() - began)

    with storms.Storm(zygote, address) as storm:
        for _ in range(KILLS):
            storm.harm(kill)
    print(
        f"{KILLS} kills of the server; from the kill to the next message took "
        f"{statistics.median(took):.2f} s, at most {max(took):.2f} s"
    )
    assert storm.wrongs() == []


def test_token_that_a_server_forgot_is_good_for_nothing(server: postgres.Server, address: str) -> None:
    """Nobody waits for the disk with a lease or a claim. Who had one when the server died, and still lives, writes
    nothing when somebody else has it, or the same one again under a name that was given."""
    now = [1_000.0]
    with SessionDB(address, clock=lambda: now[0]) as db:
        for name in (None, "me"):
            c = f"c of {name}"
            steps.say(db, c)
            key, arrival = f"route:chat:{c}", steps.came(db, c).id
            lease, claim = db.acquire_lease(c, "turn", name, 30.0), db.mail.acquire_chat_lease(key, 30.0, name)
            server.kill()
            server.start()
            now[0] += 31
            db.acquire_lease(c, "turn", name, 30.0)
            db.mail.acquire_chat_lease(key, 30.0, name)
            with pytest.raises(errors.LeaseLost):
                db.append_message(c, role="user", content="late", lease=lease)
            with pytest.raises(errors.LeaseLost):
                db.mail.begin_inbound(claim, arrival, c)
            assert (len(db.transcript(c)), db.mail.open_inbound(f"chat:{c}")[0].attempts) == (4, 0)


def processes(pid: int) -> list[int]:
    """The server and all it has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(int(child) for child in children)]


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="children are found in /proc")
def test_server_that_stands_still_is_given_up_and_what_was_sent_is_stored_once(
    server: postgres.Server, address: str
) -> None:
    with SessionDB(address, write_timeout=0.2) as db:
        steps.say(db, "c")
        stopped = processes(server.pid)
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(errors.StoreUnreachable):
                db.append_message("c", role="user", content="sent", uid="sent")
            with pytest.raises(errors.StoreUnreachable):
                db.transcript("c")
            with pytest.raises(errors.StoreUnreachable):
                SessionDB(address, write_timeout=0.2)
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        receipt = db.append_message("c", role="user", content="sent", uid="sent")
        assert (receipt.seq, db.conversation("c").last_seq) == (5, 5)
        assert db.admin.fsck().ok


def test_server_without_room_for_us_is_named_and_the_write_goes_on_when_there_is_some(
    server: postgres.Server, address: str
) -> None:
    with SessionDB(address) as db:
        steps.say(db, "c")
    hasty, patient = (SessionDB(address, write_timeout=seconds) for seconds in (0.1, 60.0))
    with hasty, patient:
        for db in (hasty, patient):
            db.driver._drop_idle()
        others = list(crowd(server))
        with pytest.raises(errors.StoreUnreachable, match="too many"):
            hasty.append_message("c", role="user", content="x", uid="x")
        with pytest.raises(errors.StoreUnreachable, match="too many"):
            SessionDB(address, write_timeout=0.1)
        waiting = Background(lambda: patient.append_message("c", role="user", content="x", uid="x").seq)
        others.pop().close()
        assert waiting.result() == 5
        for other in others:
            other.close()
        assert hasty.append_message("c", role="user", content="x", uid="x").duplicate


def crowd(server: postgres.Server) -> Iterator[postgres.psycopg.Connection[tuple[object, ...]]]:
    """All the room there is."""
    while True:
        try:
            yield postgres.psycopg.connect(server.dsn())
        except postgres.psycopg.OperationalError:
            return


def test_a_client_that_stands_still_in_a_write_keeps_others_from_writing_for_a_while_only(
    zygote: zygotes.Zygote,
) -> None:
    address = postgres.fresh()
    with SessionDB(address) as db:
        args = {**steps.STEPS["commit"].prepare(db, "c"), "step": "commit"}
        at = kills.course_of("commit", postgres.fresh()).names.index("commit.committing")
        stopped = zygote.run(steps.perform, address, args, points=("commit",), at=at, fault="stop")
        assert stopped.state == "stopped"
        # The server undoes what the one who stands still has begun.
        assert db.append_message("c", role="user", content="waited", uid="waited").seq == 6
        assert db.head("c").id == "c-1"
        # It begins anew when it goes on, and finds that nothing has changed for it.
        assert (zygote.wait(stopped.pid, "SIGCONT").error, db.head("c").id) == (None, "c-2")
        assert db.admin.fsck().ok
