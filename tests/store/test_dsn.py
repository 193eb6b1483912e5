"""Addresses of PostgreSQL servers: what of them is shown, and what a failed connection means."""

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
def test_an_address_is_shown_without_what_is_secret(address: str, shown: str) -> None:
    assert store_driver.hide_password(address) == shown
    assert "secret" not in store_driver.hide_password(address)


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ({"host": "db.example", "port": "5433"}, "db.example, port 5433"),
        ({"hostaddr": "10.0.0.1"}, "10.0.0.1, port 5432"),
        ({"host": "/run/postgresql"}, "the socket in /run/postgresql, port 5432"),
        ({}, "this machine, port 5432"),
        ({"service": "chats"}, "the service chats"),
    ],
)
def test_a_place_is_told_in_a_few_words(settings: dict[str, str], place: str) -> None:
    assert connection.describe_location(settings) == place


def test_what_stands_in_the_address_wins_over_what_keeps_a_call_from_hanging() -> None:
    ours = connection.build_settings({"host": "h"}, 10.0, {})
    assert {"connect_timeout", "keepalives_idle", "tcp_user_timeout"} <= set(ours)
    given = {"connect_timeout": "99", "sslmode": "verify-full"}
    assert connection.build_settings(given, 10.0, {})["connect_timeout"] == "99"
    assert connection.build_settings({"client_encoding": "latin1"}, 10.0, {})["client_encoding"] == "utf8"


def test_what_is_set_in_the_environment_wins_over_it_too_and_the_address_over_both() -> None:
    around = {"connect_timeout": "33", "application_name": "mine", "host": "elsewhere"}
    found = connection.build_settings({"application_name": "asked"}, 10.0, around)
    assert (found["connect_timeout"], found["application_name"]) == ("33", "asked")
    assert "host" not in found  # which libpq finds by itself


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
def test_of_several_servers_the_one_that_takes_writes_is_asked_for(
    given: dict[str, str], around: dict[str, str], wanted: str | None
) -> None:
    assert connection.build_settings(given, 10.0, around).get("target_session_attrs") == wanted


@pytest.mark.parametrize(
    "word",
    [
        "FATAL:  the database system is shutting down",
        "FATAL:  terminating connection due to administrator command",
        "FATAL:  canceling authentication due to timeout",
        "FATAL:  server login failed: pgbouncer cannot connect to server",
        "FATAL:  query_wait_timeout",
        "FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attribute",
        "FATAL:  das Datenbanksystem startet",
        "FATAL :  le système de bases de données se lance",
        "ВАЖНО:  система баз данных запускается",
        "致命的エラー:  データベースシステムは起動しています",
    ],
)
def test_a_server_that_may_take_us_in_a_moment_is_waited_for_whatever_it_speaks(word: str) -> None:
    text = f'connection failed: connection to server at "h" (::1), port 1 failed: {word}'
    assert errors.parse_connection_failure(text) == (word.split(":  ")[1], True, "")


@pytest.mark.parametrize(
    "word",
    [
        'role "nobody" does not exist',
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
def test_what_a_server_does_not_change_its_mind_about_is_said_at_once(word: str) -> None:
    assert errors.parse_connection_failure(f"connection failed: … failed: FATAL:  {word}") == (word, False, "")


@pytest.mark.parametrize(
    ("text", "why", "soon"),
    [
        (
            (
                'connection failed: connection to server at "127.0.0.1", port 1 failed: Connection refused\n'
                "\tIs the server running on that host and accepting TCP/IP connections?"
            ),
            "Connection refused",
            True,
        ),
        ('… failed: FATAL:  password authentication failed for user "me"', "password authentication failed for", False),
        ('… failed: FATAL:  database "none" does not exist', 'database "none" does not exist', False),
        ("… failed: FATAL:  the database system is starting up", "the database system is starting up", True),
        ("… failed: FATAL:  sorry, too many clients already", "sorry, too many clients already", True),
        ("consuming input failed: server closed the connection unexpectedly", "server closed the connection", True),
        ("[Errno -2] Name or service not known", "[Errno -2] Name or service not known", True),
        ("", "no answer", True),
    ],
)
def test_a_connection_that_failed_says_why_and_whether_to_try_again(text: str, why: str, soon: bool) -> None:
    told = errors.parse_connection_failure(text)
    assert told.reason.startswith(why)
    assert (told.transient, told.remedy) == (soon, "")


@pytest.mark.parametrize(
    ("why", "remedy"),
    [
        ("server does not support SSL, but SSL was required", "PGSSLMODE"),
        ("SSL error: certificate verify failed", "sslrootcert"),
        ('server certificate for "a" does not match host name "b"', "sslrootcert"),
        ("SSL error: tlsv1 alert unknown ca", "sslrootcert"),
        ('root certificate file "root.crt" does not exist', "sslrootcert"),
        ('weak sslmode "require" may not be used with sslrootcert=system', "sslmode"),
        ("fe_sendauth: no password supplied", ".pgpass"),
        ('definition of service "chats" not found', "PGSERVICEFILE"),
    ],
)
def test_what_no_waiting_cures_says_what_to_do(why: str, remedy: str) -> None:
    told = errors.parse_connection_failure(f'connection failed: connection to server at "h", port 1 failed: {why}')
    assert (told.reason, told.transient) == (why, False)
    assert remedy in told.remedy


@pytest.mark.parametrize(
    "why",
    [
        "SSL SYSCALL error: Connection reset by peer",
        "SSL connection has been closed unexpectedly",
        "SSL error: unexpected eof while reading",
    ],
)
def test_a_connection_that_was_lost_under_tls_is_tried_again(why: str) -> None:
    assert errors.parse_connection_failure(f"consuming input failed: {why}") == (why, True, "")
