"""PostgreSQL addresses: how they are shown, opened and refused, with passwords, TLS and services."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import SessionDB, errors
from holdfast.store import driver as store_driver
from holdfast.store.postgres import connection
from holdfast.store.postgres import errors as postgres_errors
from tests.support import postgres, tls, two_hosts


@pytest.mark.parametrize("source", ["address", "environment"])
def test_unreachable_server_is_named_without_the_password(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    port = postgres.free_port()
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
    "unknown service": (lambda: "postgresql://?service=nothing", r"service \"nothing\" not found\. .*PGSERVICEFILE"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_unusable_address_is_refused_with_a_remedy(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "services").write_text("[chats]\nhost=127.0.0.1\n")
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    monkeypatch.setenv("PGPASSFILE", os.devnull)
    address, message = REFUSED[kind]
    with pytest.raises(errors.StoreUnusable, match=message) as refusal:
        SessionDB(address())
    assert "hunter2" not in str(refusal.value)


def test_server_with_another_certificate_or_name_is_refused(tmp_path: Path) -> None:
    ours, others = tls.Authority(tmp_path / "ours"), tls.Authority(tmp_path / "others")
    server = postgres.shared()
    with tls.Front(server.port, ours.context("db.example")) as front:
        for host, trusted, message in (
            ("db.example", others, r"certificate.*sslrootcert"),
            ("other.example", ours, r"does not match host name \"other\.example\""),
        ):
            place = f"{postgres.USER}:{server.password}@{host}:{front.port}/{postgres.DATABASE}?hostaddr=127.0.0.1"
            with pytest.raises(errors.StoreUnusable, match=message) as refusal:
                SessionDB(f"postgresql://{place}&sslmode=verify-full&sslrootcert={trusted.root}")
            assert server.password not in two_hosts.full_message(refusal.value)


def test_password_file_named_in_the_address_is_used_and_not_shown(tmp_path: Path) -> None:
    server, file = postgres.shared(), tmp_path / ".pgpass"
    file.write_text(f"127.0.0.1:{server.port}:*:{postgres.USER}:{server.password}\n")
    file.chmod(0o600)
    address = f"{without_password()}?passfile={postgres.quote(str(file), safe='')}"
    with SessionDB(postgres.with_schema(address, "guarded")) as db:
        assert server.password not in db.driver.path + repr(db.driver.status())
        assert str(file) not in db.driver.path


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://me:secret@host/db", "postgresql://me@host/db"),
        ("postgresql://me:s@cret@host/db", "postgresql://me@host/db"),
        ("postgresql:///db?host=/run&password=secret", "postgresql:///db?host=%2Frun"),
        ("mysql://me:secret@host/db", "mysql://me@host/db"),
        (
            "postgresql://me:secret@a,b:5433/db?options=-csearch_path%3Ds&sslpassword=secret",
            "postgresql://me@a,b:5433/db?options=-csearch_path%3Ds",
        ),
    ],
)
def test_address_is_shown_without_secrets(address: str, shown: str) -> None:
    assert store_driver.hide_password(address) == shown
    assert "secret" not in store_driver.hide_password(address)


def test_address_overrides_the_environment_and_both_override_the_defaults() -> None:
    defaults = connection.build_settings({"host": "h"}, 10.0, {})
    assert {"connect_timeout", "keepalives_idle", "tcp_user_timeout"} <= set(defaults)
    around = {"connect_timeout": "33", "application_name": "mine", "host": "elsewhere"}
    found = connection.build_settings({"application_name": "asked", "client_encoding": "latin1"}, 10.0, around)
    assert (found["connect_timeout"], found["application_name"], found["client_encoding"]) == ("33", "asked", "utf8")
    assert "host" not in found  # libpq reads it from the environment


@pytest.mark.parametrize(
    ("given", "around", "wanted"),
    [
        ({"host": "a"}, {"target_session_attrs": "any"}, None),
        ({"host": "a,b"}, {"target_session_attrs": "any"}, "read-write"),
        ({}, {"host": "a,b"}, "read-write"),
        ({"host": "a,b", "target_session_attrs": "any"}, {}, "any"),
        ({"host": "a,b"}, {"target_session_attrs": "primary"}, "primary"),
    ],
)
def test_writable_server_of_several_is_used(given: dict[str, str], around: dict[str, str], wanted: str | None) -> None:
    assert connection.build_settings(given, 10.0, around).get("target_session_attrs") == wanted


@pytest.mark.parametrize(
    ("text", "reason", "transient", "remedy"),
    [
        ("… failed: FATAL:  the database system is shutting down", "the database system", True, ""),
        ("… failed: FATAL :  server login failed: pgbouncer", "server login failed: pgbouncer", True, ""),
        ("… failed: 致命的エラー:  das Datenbanksystem startet", "das Datenbanksystem startet", True, ""),
        ('… failed: FATAL:  role "nobody" does not exist', 'role "nobody"', False, ""),
        ('… failed: FATAL:  no pg_hba.conf entry for host "10.0.0.1"', "no pg_hba.conf entry", False, ""),
        ('… failed: FATAL:  permission denied for database "db"', "permission denied", False, ""),
        ('… failed: FATAL:  invalid value for parameter "search_path": "x"', "invalid value", False, ""),
        ("… failed: Connection refused\n\tIs the server running on that host?", "Connection refused", True, ""),
        ("[Errno -2] Name or service not known", "[Errno -2] Name or service not known", True, ""),
        ("", "no answer", True, ""),
        ("consuming input failed: SSL error: unexpected eof while reading", "SSL error: unexpected eof", True, ""),
        ("… failed: server does not support SSL, but SSL was required", "server does not", False, "PGSSLMODE"),
        ("… failed: SSL error: certificate verify failed", "SSL error", False, "sslrootcert"),
        ('… failed: server certificate for "a" does not match host name "b"', "server cert", False, "sslrootcert"),
        ('… failed: root certificate file "root.crt" does not exist', "root certificate", False, "sslrootcert"),
        ("… failed: fe_sendauth: no password supplied", "fe_sendauth: no password", False, ".pgpass"),
        ('… failed: definition of service "chats" not found', "definition of", False, "PGSERVICEFILE"),
    ],
)
def test_connection_failure_has_reason_and_remedy(text: str, reason: str, transient: bool, remedy: str) -> None:
    found = postgres_errors.parse_connection_failure(text)
    assert found.reason.startswith(reason)
    assert found.transient == transient
    assert remedy in found.remedy if remedy else found.remedy == ""
