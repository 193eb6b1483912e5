"""How a PostgreSQL server is set up and what stands behind it, as it tells itself: for people, on demand."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast.store import promises

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
# Who may not look is told of a standby, and nothing of it. Subscribers are none; and one that is away has a slot.
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
_NAMES = ("version", "schema", "database", "synchronous_commit", "fsync", "bytes", "format")


def facts(execute: Callable[..., Any]) -> dict[str, Any]:
    """What the server says of itself and of this store."""
    found = dict(zip(_NAMES, execute(_FACTS).fetchone(), strict=True))
    return {"engine": "PostgreSQL", **found, "format": int(found["format"] or 0)}


class Link(NamedTuple):
    """A connection as its client knows it: whatever stands between may know it otherwise."""

    number: int  # what the server is said to know it by
    encrypted: bool
    place: str  # the address of the other end, or the folder of a socket

    @property
    def local(self) -> bool:
        try:
            return self.place.startswith("/") or ipaddress.ip_address(self.place).is_loopback
        except ValueError:
            return False


def told(execute: Callable[..., Any], link: Link, beside: Callable[..., Any]) -> dict[str, Any]:
    """All of it. Nothing here is a secret, and nothing of it needs more rights than to connect.

    `beside` asks on another connection that is open at the same time.
    """
    serves, in_recovery, role, tls, size = execute(_SERVER).fetchone()
    own, database, most = execute(_CONNECTIONS).fetchone()
    standbys = [] if in_recovery else execute(_STANDBYS).fetchall()
    return {
        "settings": dict(execute(_SETTINGS, {"names": list(SETTINGS)}).fetchall()),
        "in_recovery": in_recovery,
        "role": role,
        "local": link.local,
        "tls": (tls or "TLS") if link.encrypted else None,
        "database_bytes": size,
        "pooler": _pooler(serves, link.number, beside),
        "connections": {"holdfast": own, "database": database, "most": most},
        "standbys": [
            dict(zip(("name", "address", "state", "sync_state", "behind_bytes"), row, strict=True)) for row in standbys
        ],
    }


def _pooler(serves: int, number: int, beside: Callable[..., Any]) -> str:
    """A pooler makes up the number it tells its client; and one that shares gives us both the same connection."""
    if serves == number:
        return promises.DIRECT
    (other,) = beside("SELECT pg_backend_pid()").fetchone()
    return promises.SHARES if other == serves else promises.KEEPS
