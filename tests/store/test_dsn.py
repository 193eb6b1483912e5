"""Addresses of PostgreSQL servers: how they are shown, their settings, and the meaning of connection failures."""

from __future__ import annotations

import pytest

from holdfast.store import driver as store_driver
from holdfast.store.postgres import connection, errors


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://host/db", "postgresql://host/db"),
        ("postgres://me@host:5433/db", "postgres://me@host:5433/db"),
        ("postgresql://me:secret@host/db", "postgresql://me@host/db"),
        ("postgresql://me:s@cret@host/db", "postgresql://me@host/db"),
        ("postgresql://:secret@host/db", "postgresql://@host/db"),
        ("postgresql:///db?host=/run&password=secret", "postgresql:///db?host=%2Frun"),
        ("postgresql:///db?password=secret", "postgresql:///db"),
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
        ({"hostaddr": "10.0.0.1,10.0.0.2"}, {}, "read-write"),
        ({}, {"host": "a,b"}, "read-write"),
        ({"host": "a"}, {"host": "b,c"}, None),
        ({"host": "a,b", "target_session_attrs": "any"}, {}, "any"),
        ({"host": "a,b"}, {"target_session_attrs": "primary"}, "primary"),
    ],
)
def test_writable_server_is_selected_of_several(
    given: dict[str, str], around: dict[str, str], wanted: str | None
) -> None:
    assert connection.build_settings(given, 10.0, around).get("target_session_attrs") == wanted


@pytest.mark.parametrize(
    "reason",
    [
        "the database system is shutting down",
        "terminating connection due to administrator command",
        "server login failed: pgbouncer cannot connect to server",
        "remaining connection slots are reserved for roles with the SUPERUSER attribute",
        "sorry, too many clients already",
        "das Datenbanksystem startet",
    ],
)
@pytest.mark.parametrize("severity", ["FATAL:  ", "FATAL :  ", "致命的エラー:  "])
def test_temporary_refusal_is_transient_in_any_language(severity: str, reason: str) -> None:
    text = f'connection failed: connection to server at "h" (::1), port 1 failed: {severity}{reason}'
    assert errors.parse_connection_failure(text) == (reason, True, "")


@pytest.mark.parametrize(
    "reason",
    [
        'role "nobody" does not exist',
        'database "none" does not exist',
        'no pg_hba.conf entry for host "10.0.0.1", user "me", database "db", no encryption',
        'pg_hba.conf rejects connection for host "10.0.0.1", user "me", database "db"',
        'role "me" is not permitted to log in',
        'permission denied for database "db"',
        'Ident authentication failed for user "me"',
        "empty password returned by client",
        'unrecognized configuration parameter "serach_path"',
        'invalid value for parameter "search_path": "x"',
    ],
)
def test_lasting_refusal_is_not_transient(reason: str) -> None:
    assert errors.parse_connection_failure(f"connection failed: … failed: FATAL:  {reason}") == (reason, False, "")


@pytest.mark.parametrize(
    ("text", "reason", "transient", "remedy"),
    [
        ("… failed: Connection refused\n\tIs the server running on that host?", "Connection refused", True, ""),
        ("consuming input failed: server closed the connection unexpectedly", "server closed the con", True, ""),
        ("[Errno -2] Name or service not known", "[Errno -2] Name or service not known", True, ""),
        ("", "no answer", True, ""),
        ("consuming input failed: SSL SYSCALL error: Connection reset by peer", "SSL SYSCALL error", True, ""),
        ("consuming input failed: SSL error: unexpected eof while reading", "SSL error: unexpected eof", True, ""),
        ("… failed: server does not support SSL, but SSL was required", "server does not", False, "PGSSLMODE"),
        ("… failed: SSL error: certificate verify failed", "SSL error", False, "sslrootcert"),
        ("… failed: SSL error: tlsv1 alert unknown ca", "SSL error", False, "sslrootcert"),
        ('… failed: server certificate for "a" does not match host name "b"', "server cert", False, "sslrootcert"),
        ('… failed: root certificate file "root.crt" does not exist', "root certificate", False, "sslrootcert"),
        ('… failed: weak sslmode "require" may not be used with sslrootcert=system', "weak", False, "sslmode"),
        ("… failed: fe_sendauth: no password supplied", "fe_sendauth: no password", False, ".pgpass"),
        ('… failed: definition of service "chats" not found', "definition of", False, "PGSERVICEFILE"),
    ],
)
def test_connection_failure_has_reason_and_remedy(text: str, reason: str, transient: bool, remedy: str) -> None:
    found = errors.parse_connection_failure(text)
    assert found.reason.startswith(reason)
    assert found.transient == transient
    assert remedy in found.remedy if remedy else found.remedy == ""
