"""The status of a PostgreSQL server: version, configuration, connections and replication."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Any

from psycopg.pq.abc import PGconn

from holdfast import promises

RunQuery = Callable[..., Any]

SETTINGS = (
    *("fsync", "full_page_writes", "synchronous_commit", "synchronous_standby_names", "data_checksums"),
    *("wal_level", "archive_mode"),
)
_SETTINGS = "SELECT name, current_setting(name) FROM unnest(%(names)s::text[]) AS name"
_SERVER = """
SELECT pg_backend_pid(), pg_is_in_recovery(), current_user::text,
       (SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid()),
       pg_database_size(current_database())
"""
_CONNECTIONS = """
SELECT count(*) FILTER (WHERE application_name = current_setting('application_name')), count(*),
       current_setting('max_connections')::bigint
  FROM pg_stat_activity WHERE datname = current_database()
"""
# A role without pg_monitor sees a standby but not its state. Logical subscribers are not standbys. A disconnected
# standby is found by its replication slot.
_STANDBYS = """
SELECT nullif(application_name, '') AS name, client_addr::text, state, sync_state,
       pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn)::bigint
  FROM pg_stat_replication
 WHERE state IS DISTINCT FROM 'backup'
   AND pid NOT IN (SELECT active_pid FROM pg_replication_slots WHERE slot_type = 'logical' AND active)
 UNION ALL
SELECT slot_name::text, NULL, 'away', 'away', pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint
  FROM pg_replication_slots WHERE slot_type = 'physical' AND NOT active AND restart_lsn IS NOT NULL
 ORDER BY name
"""


_FACTS = """
SELECT current_setting('server_version'), current_schema()::text, current_database()::text,
       current_setting('synchronous_commit'), current_setting('fsync'),
       (SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c
         WHERE c.relnamespace = to_regnamespace(quote_ident(current_schema())) AND c.relkind = 'r'),
       (SELECT value FROM meta WHERE key = 'schema_format')
"""
_FACT_NAMES = ("version", "schema", "database", "synchronous_commit", "fsync", "bytes", "format")


def read_info(execute: RunQuery) -> dict[str, Any]:
    """Return version, size and durability settings."""
    found = dict(zip(_FACT_NAMES, execute(_FACTS).fetchone(), strict=True))
    return {"engine": "PostgreSQL", **found, "format": int(found["format"] or 0)}


def is_local(host: str) -> bool:
    """Return whether an IP address or the directory of a socket is on this machine."""
    try:
        return host.startswith("/") or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_status(execute: RunQuery, client: PGconn, execute_concurrently: RunQuery) -> dict[str, Any]:
    """Return configuration, connections and replication. Contains no secrets and needs no special privileges.

    `client` is the connection as the client sees it, which differs from the server's view behind a pooler.
    `execute_concurrently` uses a second connection that is open at the same time.
    """
    backend_pid, in_recovery, role, tls, size = execute(_SERVER).fetchone()
    own, database, maximum = execute(_CONNECTIONS).fetchone()
    standbys = [] if in_recovery else execute(_STANDBYS).fetchall()
    return {
        "settings": dict(execute(_SETTINGS, {"names": list(SETTINGS)}).fetchall()),
        "in_recovery": in_recovery,
        "role": role,
        "local": is_local((client.hostaddr or client.host).decode()),
        "tls": (tls or "TLS") if client.ssl_in_use else None,
        "database_bytes": size,
        "pooler": _detect_pooler(backend_pid, client.backend_pid, execute_concurrently),
        "connections": {"holdfast": own, "database": database, "most": maximum},
        "standbys": [
            dict(zip(("name", "address", "state", "sync_state", "behind_bytes"), row, strict=True)) for row in standbys
        ],
    }


def _detect_pooler(server_pid: int, client_pid: int, execute_concurrently: RunQuery) -> str:
    """Compare backend pids: a pooler reports an invented one, and may serve two clients by the same backend."""
    if server_pid == client_pid:
        return promises.NO_POOLER
    (other,) = execute_concurrently("SELECT pg_backend_pid()").fetchone()
    return promises.TRANSACTION_POOLING if other == server_pid else promises.SESSION_POOLING
