"""Which promises a configuration keeps is a function of what the database says of itself."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast import SessionDB, promises
from holdfast.store.postgres import server_status
from tests.support import polling, postgres

FILE = {"engine": "SQLite", "path": "/srv/holdfast.db", "durability": "power-loss"}
SOUND = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "synchronous_standby_names": "",
    "data_checksums": "on",
}


def server(*standbys: dict[str, Any], **settings: str) -> dict[str, Any]:
    return {
        "engine": "PostgreSQL",
        "settings": {**SOUND, **settings},
        "standbys": list(standbys),
        "in_recovery": False,
        "tls": "TLSv1.3",
        "local": False,
        "pooler": promises.NO_POOLER,
        "connections": {"database": 5, "most": 100},
    }


def standby(sync_state: str | None, name: str | None = "second") -> dict[str, Any]:
    return {"name": name, "address": None, "state": "streaming", "sync_state": sync_state, "behind_bytes": 0}


def broken(standing: dict[str, Any]) -> list[str]:
    return [promise.name for promise in promises.evaluate(standing) if not promise.holds]


@pytest.mark.parametrize(
    ("standing", "expected"),
    [
        (FILE, []),
        ({**FILE, "durability": "process-crash"}, ["P1"]),
        ({**FILE, "path": ":memory:"}, ["P1", "P8"]),
        (server(), []),
        (server(fsync="off"), ["P1", "P8"]),
        (server(full_page_writes="off"), ["P1", "P8"]),
        (server(synchronous_commit="off"), ["P1"]),
        (server(standby("async")), ["P1"]),
        (server(standby("sync")), []),
        (server(standby("quorum")), []),
        (server(standby("sync"), synchronous_commit="local"), ["P1"]),
        (server(standby("sync"), synchronous_commit="remote_apply"), []),
        (server(standby("sync"), standby("async", "third")), ["P1"]),
        (server(standby(None, None)), ["P1"]),
        (server(standby("sync"), standby("away")), ["P1"]),
    ],
)
def test_what_breaks_a_promise_is_told_of_that_promise_and_no_other(
    standing: dict[str, Any], expected: list[str]
) -> None:
    assert broken(standing) == expected


def test_an_asynchronous_standby_is_named_as_what_breaks_the_first_promise() -> None:
    (first, *_) = promises.evaluate(server(standby("sync"), standby("async", "third")))
    (breach,) = first.breaches
    assert breach.when == "when third takes over"
    assert "third is an asynchronous standby" in breach.why


@pytest.mark.parametrize(
    ("standing", "word"),
    [
        (server(synchronous_standby_names="second"), "none is connected"),
        (server(data_checksums="off"), "checksums"),
        (server(standby("sync"), synchronous_commit="remote_write"), "remote_write"),
        ({**server(), "in_recovery": True}, "standby"),
        ({**server(), "tls": None}, "not encrypted"),
        ({**server(), "connections": {"database": 90, "most": 100}}, "90 of 100"),
        ({**server(), "pooler": promises.TRANSACTION_POOLING}, "pool_mode = session"),
    ],
)
def test_what_is_worth_knowing_is_told(standing: dict[str, Any], word: str) -> None:
    (note,) = promises.find_notes(standing)
    assert word in str(note)


def test_a_sound_configuration_has_nothing_to_note() -> None:
    assert list(promises.find_notes(server(standby("sync")))) == []
    assert list(promises.find_notes({**server(), "tls": None, "local": True})) == []
    assert list(promises.find_notes({**server(), "pooler": promises.SESSION_POOLING})) == []
    assert list(promises.find_notes(FILE)) == []


def test_a_server_tells_of_its_settings_its_connections_and_its_standbys() -> None:
    """A real one, with somebody who follows its log as an asynchronous standby does."""
    settings = {"wal_level": "replica", "max_wal_senders": "3"}
    with postgres.Server(fsync=True, settings=settings) as running, SessionDB(running.dsn()) as db:
        assert broken(db.driver.status()) == []
        db.driver.read(lambda tx: tx.execute("SELECT pg_create_physical_replication_slot('gone', true)"))
        (away,) = db.driver.status()["standbys"]
        assert (away["name"], away["sync_state"]) == ("gone", "away")
        db.driver.read(lambda tx: tx.execute("SELECT pg_drop_replication_slot('gone')"))
        with following(running):
            polling.until(lambda: bool(db.driver.status()["standbys"]))
            told = db.driver.status()
    assert told["standbys"][0]["sync_state"] == "async"
    assert broken(told) == ["P1"]
    assert told["connections"]["holdfast"] >= 1
    assert (told["local"], told["tls"], told["in_recovery"]) == (True, None, False)
    assert told["pooler"] == promises.NO_POOLER


@contextmanager
def following(running: postgres.Server) -> Iterator[None]:
    place = running.address
    command = [f"{running._binaries}/pg_receivewal", "-D", place.folder, "-h", place.folder, "-p", str(place.port)]
    with subprocess.Popen(
        command, env={"PGUSER": postgres.USER}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("place", "local"),
    [("/run/postgresql", True), ("127.0.0.1", True), ("::1", True), ("10.0.0.7", False), ("", False)],
)
def test_what_does_not_leave_this_machine_is_local(place: str, local: bool) -> None:
    assert server_status.is_local(place) is local
