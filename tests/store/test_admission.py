"""Opening a store on a PostgreSQL server: addresses, passwords, TLS and services."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast import SessionDB, errors
from tests.support import postgres, tls, two_hosts

# --- servers that are not there, or do not let us in ------------------------------------------------------------


@pytest.mark.parametrize("source", ["address", "environment"])
def test_unreachable_server_is_named_without_the_password(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    port = postgres._free_port()
    address = f"postgresql://me:hunter2@127.0.0.1:{port}/db"
    if source == "environment":
        address = "postgresql:///db"
        for name, value in (("PGHOST", "127.0.0.1"), ("PGPORT", str(port)), ("PGPASSWORD", "hunter2")):
            monkeypatch.setenv(name, value)
    with pytest.raises(errors.StoreUnreachable, match=f"127.0.0.1, port {port}") as refusal:
        SessionDB(address)
    assert "hunter2" not in two_hosts.full_message(refusal.value) + repr(vars(refusal.value))


def without_password() -> str:
    """An address over TCP, where the server asks for the password."""
    return f"postgresql://{postgres.USER}@127.0.0.1:{postgres.shared().port}/{postgres.DATABASE}"


def shared(**options: str) -> str:
    return postgres.shared().dsn(tcp=True, **options)


REFUSED: dict[str, tuple[Callable[[], str], str]] = {
    "malformed host": (lambda: "postgresql://me:hunter2@[host/db", "malformed"),
    "unknown option": (lambda: "postgresql://h/d?no=1", "malformed"),
    "wrong password": (
        lambda: postgres.shared()._replace(password="hunter2").dsn(tcp=True),
        "password authentication failed",
    ),
    "no password": (without_password, r"no password supplied\. .*\.pgpass or PGPASSWORD"),
    "no TLS": (lambda: shared(sslmode="require"), r"does not support SSL, but SSL was required\. .*sslmode"),
    "unknown service": (
        lambda: "postgresql://?service=nothing",
        r"service \"nothing\" not found\. .*PGSERVICEFILE",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_unusable_address_is_refused_with_the_remedy(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "services").write_text("[chats]\nhost=127.0.0.1\n")
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    monkeypatch.setenv("PGPASSFILE", os.devnull)
    address, message = REFUSED[kind]
    with pytest.raises(errors.StoreUnusable, match=message) as refusal:
        SessionDB(address())
    assert "hunter2" not in str(refusal.value)


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


@pytest.mark.parametrize("mode", ["require", "verify-full"])
def test_tls_options_of_the_address_are_used(guarded: Guarded, mode: str) -> None:
    before = guarded.front.encrypted
    root = {"sslrootcert": str(guarded.right)} if mode == "verify-full" else {}
    with SessionDB(guarded.address(sslmode=mode, **root)) as db:
        assert db.list_sessions() == []
        assert db.driver.status()["tls"] == "TLS"  # the front terminates TLS
        assert postgres.shared().password not in db.driver.path + repr(db.admin.info())
    assert guarded.front.encrypted > before


@pytest.mark.parametrize(
    ("host", "trusted", "message"),
    [
        (HOST, "wrong", r"certificate.*sslrootcert"),
        (HOST, "missing", r"certificate.*sslrootcert"),
        ("other.example", "right", r"does not match host name \"other\.example\""),
    ],
)
def test_untrusted_server_is_refused(guarded: Guarded, host: str, trusted: str, message: str) -> None:
    roots = {"wrong": guarded.wrong, "missing": guarded.wrong.with_name("nothing.pem"), "right": guarded.right}
    with pytest.raises(errors.StoreUnusable, match=message) as refusal:
        SessionDB(guarded.address(host, sslmode="verify-full", sslrootcert=str(roots[trusted])))
    assert postgres.shared().password not in two_hosts.full_message(refusal.value)


# --- what libpq finds beside the address ------------------------------------------------------------------------


def test_password_file_named_in_the_address_is_used_and_not_shown(tmp_path: Path) -> None:
    server, file = postgres.shared(), tmp_path / ".pgpass"
    file.write_text(f"127.0.0.1:{server.port}:*:{postgres.USER}:{server.password}\n")
    file.chmod(0o600)
    address = f"{without_password()}?passfile={postgres.quote(str(file), safe='')}"
    with SessionDB(postgres.with_schema(address, "guarded")) as db:
        assert server.password not in db.driver.path + repr(db.driver.status())
        assert str(file) not in db.driver.path
