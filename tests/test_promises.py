"""Promises that a configuration of the database keeps or breaks."""

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
SOUND = dict.fromkeys(("fsync", "full_page_writes", "synchronous_commit", "data_checksums"), "on")
SOUND["synchronous_standby_names"] = ""


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


def broken_promises(status: dict[str, Any]) -> list[str]:
    return [promise.name for promise in promises.evaluate(status) if not promise.holds]


@pytest.mark.parametrize(
    ("status", "expected"),
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
        (server(standby("sync"), synchronous_commit="local"), ["P1"]),
        (server(standby("sync"), standby("async", "third")), ["P1"]),
    ],
)
def test_setting_breaks_only_its_promises(status: dict[str, Any], expected: list[str]) -> None:
    assert broken_promises(status) == expected


@pytest.mark.parametrize(
    ("status", "word"),
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
def test_risk_is_noted(status: dict[str, Any], word: str) -> None:
    (note,) = promises.find_notes(status)
    assert word in str(note)


def test_sound_configuration_has_no_notes() -> None:
    assert list(promises.find_notes(server(standby("sync")))) == []
    assert list(promises.find_notes({**server(), "tls": None, "local": True})) == []
    assert list(promises.find_notes({**server(), "pooler": promises.SESSION_POOLING})) == []
    assert list(promises.find_notes(FILE)) == []


def test_status_of_a_server_has_settings_connections_and_standbys() -> None:
    settings = {"wal_level": "replica", "max_wal_senders": "3"}
    with postgres.Server(fsync=True, settings=settings) as running, SessionDB(running.dsn()) as db:
        assert broken_promises(db.driver.status()) == []
        db.driver.read(lambda tx: tx.execute("SELECT pg_create_physical_replication_slot('gone', true)"))
        (away,) = db.driver.status()["standbys"]
        assert (away["name"], away["sync_state"]) == ("gone", "away")
        db.driver.read(lambda tx: tx.execute("SELECT pg_drop_replication_slot('gone')"))
        with following(running):
            polling.until(lambda: bool(db.driver.status()["standbys"]))
            status = db.driver.status()
    assert status["standbys"][0]["sync_state"] == "async"
    assert broken_promises(status) == ["P1"]
    assert status["connections"]["holdfast"] >= 1
    assert (status["local"], status["tls"], status["in_recovery"]) == (True, None, False)
    assert status["pooler"] == promises.NO_POOLER


@contextmanager
def following(running: postgres.Server) -> Iterator[None]:
    place = running.address
    command = [f"{running.binaries}/pg_receivewal", "-D", place.folder, "-h", place.folder, "-p", str(place.port)]
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
def test_loopback_and_sockets_are_local(place: str, local: bool) -> None:
    assert server_status.is_local(place) is local
