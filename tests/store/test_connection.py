"""Connections to PostgreSQL: their settings, how lost ones are replaced, and what a write waits for."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast import SessionDB, errors, fault_points
from holdfast.store.postgres import errors as postgres_errors
from tests.support import conversations, postgres, postgres_proxy, two_hosts


def with_setting(address: str, setting: str) -> str:
    """The address of a store with other session defaults."""
    return f"{address}%20{postgres.quote(f'-c{setting}', safe='')}"


@pytest.mark.parametrize(("durability", "kept"), [("power-loss", "on"), ("process-crash", "off")])
def test_durability_overrides_the_synchronous_commit_of_the_server(durability: str, kept: str, address: str) -> None:
    address = f"{with_setting(address, 'synchronous_commit=off')}&application_name={address[-20:]}"
    with SessionDB(address, durability=durability) as db:
        for _ in range(2):
            assert db.admin.info()["synchronous_commit"] == kept
            two_hosts.terminate(address[-20:])  # a later connection has the setting, too


def test_writes_are_read_committed_with_any_default_isolation(address: str) -> None:
    """A step that waited for another finds what that one wrote and is not refused because of it."""
    pair = two_hosts.Pair(with_setting(address, "default_transaction_isolation=serializable"))
    conversations.begin(pair.one, "talk", "a")
    pair.other.append_message("talk", role="user", content="b")
    outcome = pair.meanwhile(
        two_hosts.append(pair.one, "talk", "c"), lambda: pair.other.append_message("talk", role="user", content="d").seq
    )
    assert outcome == 4
    pair.close()


@pytest.fixture
def db(address: str) -> Iterator[SessionDB]:
    with SessionDB(address) as made:
        conversations.begin(made, "talk", "a")
        yield made


def test_write_is_repeated_when_the_schema_was_changed(db: SessionDB) -> None:
    """Statements that a connection has prepared do not fit any more; another one prepares them anew."""
    db.admin.set_meta("colour", "red")
    for _ in range(8):  # until it is prepared
        assert db.driver.write("test", lambda tx: tx.one("meta_get", key="colour")) == ("red",)
    with postgres.psycopg.connect(db.driver.target, autocommit=True) as owner:
        owner.execute("ALTER TABLE meta ALTER COLUMN value TYPE varchar")
    assert db.driver.write("test", lambda tx: tx.one("meta_get", key="colour")) == ("red",)


@pytest.mark.parametrize(
    ("state", "kind"),
    [("25P03", errors.StoreUnreachable), ("XX000", errors.StoreBroken), ("XX001", errors.StoreCorrupt)],
)
def test_sqlstate_becomes_an_error_of_its_kind(state: str, kind: type[errors.StoreError]) -> None:
    assert type(postgres_errors.from_sqlstate(state, "said", "there")) is kind


def test_write_waits_while_the_store_is_read_only(role: str, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a host name leads to a standby until the primary is back: no connection to it is kept."""
    address = address.replace(f"{postgres.USER}@", f"{role}@")
    postgres.admin().execute(f"ALTER ROLE {role} SUPERUSER")
    with SessionDB(f"{address}&application_name={role}") as db:
        conversations.begin(db, "talk", "a")
        postgres.admin().execute(f"ALTER ROLE {role} SET default_transaction_read_only = on")
        two_hosts.terminate(role)
        assert conversations.contents(db.transcript("talk")) == ["a"]
        queued: list[str] = []

        def hook(point: str) -> None:
            queued.extend([point] if point == "append.queued" else [])
            if len(queued) == 3:
                postgres.admin().execute(f"ALTER ROLE {role} RESET default_transaction_read_only")

        monkeypatch.setattr(fault_points, "hook", hook)
        assert db.append_message("talk", role="user", content="b").seq == 2
        assert len(queued) >= 3


def test_store_that_was_never_writable_is_refused_at_once(address: str, points: list[str]) -> None:
    with SessionDB(with_setting(address, "default_transaction_read_only=on")) as db:
        assert db.list_sessions() == []
        with pytest.raises(errors.StoreUnusable, match="primary"):
            db.create_session("talk", source="test")
        assert len([point for point in points if point.endswith("queued")]) == 1


@pytest.mark.parametrize(
    ("code", "words"),
    [("57P03", "das Datenbanksystem startet"), ("28P01", 'password authentication failed for user "me"')],
)
def test_write_waits_while_the_server_refuses_connections(
    code: str, words: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with postgres_proxy.Proxy() as network, SessionDB(network.through(address)) as db:
        conversations.begin(db, "talk", "a")
        network.refuse(code, words)
        network.reset()
        monkeypatch.setattr(fault_points, "hook", lambda _: network.admit() if network.refused >= 2 else None)
        assert db.append_message("talk", role="user", content="b").seq == 2
        assert network.refused >= 2


def test_receipt_does_not_wait_for_the_notification(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server falls silent after the commit; another thread sends the notification."""
    with postgres_proxy.Proxy() as network, SessionDB(network.through(address), write_timeout=60.0) as db:
        conversations.begin(db, "talk", "a")
        monkeypatch.setattr(fault_points, "hook", lambda point: network.hold() if point == "append.committed" else None)
        with ThreadPoolExecutor(1) as threads:
            appending = threads.submit(db.append_message, "talk", role="user", content="b")
            assert appending.result(60).seq == 2
            network.flow()
