"""Who is let into a PostgreSQL server, and what is said to who is not: addresses, passwords, TLS and services."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast import SessionDB, errors
from tests.support import postgres, tls, two_hosts

# --- servers that are not there, or do not let us in ------------------------------------------------------------


def test_a_server_that_is_not_there_is_named_without_the_password() -> None:
    port_ = postgres._free_port()
    with pytest.raises(errors.StoreUnreachable, match=f"127.0.0.1, port {port_}") as refusal:
        SessionDB(f"postgresql://me:hunter2@127.0.0.1:{port_}/db")
    assert "hunter2" not in two_hosts.told(refusal.value) + repr(vars(refusal.value))


@pytest.mark.parametrize("address", ["postgresql://me:hunter2@[host/db", "postgres://[", "postgresql://h/d?no=1"])
def test_an_address_that_is_none_is_refused_without_the_password(address: str) -> None:
    with pytest.raises(errors.StoreUnusable, match="malformed") as refusal:
        SessionDB(address)
    assert "hunter2" not in str(refusal.value)


def test_a_password_that_is_wrong_is_said_at_once() -> None:
    address = postgres.shared()._replace(password="wrong").dsn(tcp=True)
    with pytest.raises(errors.StoreUnusable, match="password authentication failed") as refusal:
        SessionDB(address)
    assert "wrong" not in str(refusal.value)


def test_a_password_is_in_no_fact_and_no_path() -> None:
    address = postgres.with_schema(postgres.shared().dsn(tcp=True), postgres.empty_schema())
    with SessionDB(address) as db:
        secret = postgres.shared().password
        assert secret not in db.driver.path + repr(db.admin.info())
        assert "search_path" in db.driver.path


def test_a_store_that_takes_no_writes_says_what_to_do() -> None:
    address = postgres.fresh()
    with SessionDB(f"{address}%20-cdefault_transaction_read_only%3Don") as db:
        assert db.list_sessions() == []
        with pytest.raises(errors.StoreUnusable, match="primary"):
            db.create_session("talk", source="test")


def test_a_server_that_the_environment_names_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    port_ = postgres._free_port()
    monkeypatch.setenv("PGHOST", "127.0.0.1")
    monkeypatch.setenv("PGPORT", str(port_))
    monkeypatch.setenv("PGPASSWORD", "hunter2")
    with pytest.raises(errors.StoreUnreachable, match=f"127.0.0.1, port {port_}") as refusal:
        SessionDB("postgresql:///db")
    assert "hunter2" not in two_hosts.told(refusal.value)


# --- TLS --------------------------------------------------------------------------------------------------------

HOST = "db.example"


class Guarded(NamedTuple):
    """A server with TLS, by the name its certificate has, and what its clients may trust."""

    front: tls.Front
    right: Path
    wrong: Path

    def address(self, host: str = HOST, **options: str) -> str:
        secret = postgres.shared().password
        more = "".join(f"&{name}={postgres.quote(value, safe='')}" for name, value in options.items())
        place = f"{postgres.USER}:{secret}@{host}:{self.front.port}/{postgres.DATABASE}?hostaddr=127.0.0.1"
        return postgres.with_schema(f"postgresql://{place}{more}", "guarded")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("tls")
    ours, others = tls.Authority(folder / "ours"), tls.Authority(folder / "others")
    with tls.Front(postgres.shared().port, ours.context(HOST)) as front:
        yield Guarded(front, ours.root, others.root)


def test_what_the_address_asks_of_tls_is_kept(guarded: Guarded) -> None:
    for options in ({"sslmode": "require"}, {"sslmode": "verify-full", "sslrootcert": str(guarded.right)}):
        before = guarded.front.encrypted
        with SessionDB(guarded.address(**options)) as db:
            assert db.list_sessions() == []
            assert db.driver.status()["tls"] == "TLS"  # of which the server behind knows nothing
        assert guarded.front.encrypted > before


@pytest.mark.parametrize("trusted", ["wrong", "missing"])
def test_a_server_that_is_not_trusted_is_not_talked_to(guarded: Guarded, trusted: str) -> None:
    root = guarded.wrong if trusted == "wrong" else guarded.wrong.with_name("nothing.pem")
    with pytest.raises(errors.StoreUnusable, match=r"certificate.*sslrootcert") as refusal:
        SessionDB(guarded.address(sslmode="verify-full", sslrootcert=str(root)))
    assert postgres.shared().password not in two_hosts.told(refusal.value)


def test_a_server_of_another_name_is_not_talked_to(guarded: Guarded) -> None:
    with pytest.raises(errors.StoreUnusable, match=r"does not match host name \"other\.example\"") as refusal:
        SessionDB(guarded.address("other.example", sslmode="verify-full", sslrootcert=str(guarded.right)))
    assert postgres.shared().password not in two_hosts.told(refusal.value)


def test_a_server_without_tls_is_not_talked_to_where_tls_is_asked_for() -> None:
    with pytest.raises(errors.StoreUnusable, match=r"does not support SSL, but SSL was required\. .*sslmode"):
        SessionDB(postgres.shared().dsn(tcp=True, sslmode="require"))


def test_what_the_environment_asks_of_tls_is_kept(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    monkeypatch.setenv("PGSSLROOTCERT", str(guarded.wrong))
    with pytest.raises(errors.StoreUnusable, match="certificate verify failed"):
        SessionDB(guarded.address())
    monkeypatch.setenv("PGSSLROOTCERT", str(guarded.right))
    before = guarded.front.encrypted
    with SessionDB(guarded.address()) as db:
        assert db.list_sessions() == []
    assert guarded.front.encrypted > before


# --- what libpq finds beside the address ------------------------------------------------------------------------


@pytest.fixture
def bare() -> str:
    """An address over TCP, where the server asks for the password, without one."""
    place = postgres.shared()
    return f"postgresql://{postgres.USER}@127.0.0.1:{place.port}/{postgres.DATABASE}"


def test_a_password_that_is_not_given_is_asked_for_in_a_sentence(bare: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSFILE", os.devnull)
    with pytest.raises(errors.StoreUnusable, match=r"no password supplied\. .*\.pgpass or PGPASSWORD"):
        SessionDB(bare)


@pytest.mark.parametrize("where", ["PGPASSFILE", "passfile", "HOME", "PGPASSWORD"])
def test_a_password_is_found_where_libpq_looks(
    bare: str, where: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = postgres.shared()
    file = tmp_path / ".pgpass"
    file.write_text(f"127.0.0.1:{place.port}:*:{postgres.USER}:{place.password}\n")
    file.chmod(0o600)
    named = f"{bare}?passfile={postgres.quote(str(file), safe='')}" if where == "passfile" else bare
    values = {"PGPASSFILE": str(file), "HOME": str(tmp_path), "PGPASSWORD": place.password}
    if where in values:
        monkeypatch.setenv(where, values[where])
    with SessionDB(postgres.with_schema(named, "guarded")) as db:
        assert place.password not in db.driver.path + repr(db.driver.status())
        assert str(file) not in db.driver.path


@pytest.mark.parametrize("where", ["address", "PGSERVICE"])
def test_a_service_is_reached_by_its_name(where: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place = postgres.shared()
    file = tmp_path / "services"
    lines = (f"host=127.0.0.1\nport={place.port}\nuser={postgres.USER}\ndbname={postgres.DATABASE}\n",
             f"password={place.password}\noptions=-csearch_path=guarded\n")  # fmt: skip
    file.write_text("[chats]\n" + "".join(lines))
    monkeypatch.setenv("PGSERVICEFILE", str(file))
    if where == "PGSERVICE":
        monkeypatch.setenv("PGSERVICE", "chats")
    with SessionDB("postgresql://?service=chats" if where == "address" else "postgresql://") as db:
        assert db.admin.info()["schema"] == "guarded"
        assert place.password not in repr(db.driver.status())


def test_a_service_that_nobody_defined_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    (tmp_path / "services").write_text("[chats]\nhost=127.0.0.1\n")
    with pytest.raises(errors.StoreUnusable, match=r"service \"nobody\" not found\. .*PGSERVICEFILE"):
        SessionDB("postgresql://?service=nobody")
