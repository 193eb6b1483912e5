"""Rewrite tables with VACUUM FULL, which removes the bytes of deleted rows from the files.

A table is locked meanwhile, so this runs only on request of the owner of the tables.
"""

from __future__ import annotations

from typing import Any

from holdfast import errors

# The tables that contain conversation text.
TEXT_TABLES = (
    *("conversations", "messages", "compactions", "inbox", "arrivals", "outbox", "processes", "audit", "memories"),
    *("blob_parts", "meta"),
)

# No time limit for a rewrite, but one for its lock: writers queue behind it while it waits for a reader.
_TIMEOUTS = "SELECT set_config('statement_timeout', '0', false), set_config('lock_timeout', %(wait)s, false)"
_OWNED_BY_OTHERS = """
SELECT 1 FROM pg_class c
 WHERE c.relnamespace = to_regnamespace(quote_ident(current_schema())) AND c.relname = ANY(%(tables)s)
   AND NOT pg_has_role(c.relowner, 'USAGE')
"""


def rewrite(execute: Any, tables: tuple[str, ...], write_timeout: float) -> None:
    """Rewrite the tables in turn. Changes the timeouts of the session."""
    # VACUUM skips the tables of other owners with a mere warning.
    if execute(_OWNED_BY_OTHERS, {"tables": list(tables)}).fetchone():
        raise errors.StoreUnusable("Only the owner of the tables can rewrite them. Connect as that role.")
    execute(_TIMEOUTS, {"wait": f"{max(1, int(write_timeout * 500))}ms"})
    for table in tables:
        execute(f"VACUUM (FULL) {table}")
