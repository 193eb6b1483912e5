"""The forbidden states in the words of PostgreSQL: the same list, and rules for what is said otherwise there.

Its messages have two columns for a number, text is made by other functions, and a row is replaced by an upsert.
"""

from __future__ import annotations

import re

from holdfast.store import queries
from holdfast.store.postgres import definitions
from tests.faults import forbidden

_SAID = (
    (r"zeroblob\((\d+)\)", r"decode(repeat('00', \1), 'hex')"),
    (r"printf\('%\.(\d+)c', 'x'\)", r"repeat('x', \1)"),
    (r"INTO messages \(id, (.+?)\) VALUES \(\((\d+) << 32\) \+ (\d+),",
     r"INTO messages (conversation, seq, \1) VALUES (\2, \3,"),
    (r"SET id = \((\d+) << 32\) \+ (\d+)", r"SET conversation = \1, seq = \2"),
    (r"WHERE id = \((\d+) << 32\) \+ (\d+)", r"WHERE conversation = \1 AND seq = \2"),
)  # fmt: skip
_KEYS = {
    "budgets": "conversation",
    "conversations": "key",
    "inbox": "key",
    "messages": "conversation, uid",
    "processes": "id",
    "routes": "key",
    "sessions": "conversation, ordinal",
    "tombstones": "id",
}
_COLUMNS = {"routes": "key, conversation, version, updated_at", "tombstones": "id, deleted_at"}
_REPLACE = re.compile(r"INSERT OR REPLACE INTO (\w+)(?: \(([^)]+)\))? (VALUES .+)")


def in_postgres(sql: str) -> str:
    for theirs, ours in _SAID:
        sql = re.sub(theirs, ours, sql)
    return _REPLACE.sub(_upsert, sql)


def _upsert(found: re.Match[str]) -> str:
    table, columns, values = found[1], found[2] or _COLUMNS[found[1]], found[3]
    change = ", ".join(f"{name} = excluded.{name}" for name in columns.split(", "))
    return f"INSERT INTO {table} ({columns}) {values} ON CONFLICT ({_KEYS[table]}) DO UPDATE SET {change}"


# Not those of search, which can be thrown away and made again.
TABLES = [
    part.name
    for part in map(definitions.parse_statement, definitions.split_statements(queries.schema(definitions.FOLDER)))
    if part.kind == "table"
]
POSTGRES = [
    *(forbidden.Forbidden(bad.name, in_postgres(bad.sql), bad.seen) for bad in forbidden.EVERY),
    *(forbidden.Forbidden(f"{table} truncated", f"TRUNCATE {table} CASCADE", seen=False) for table in TABLES),
]
