"""Tables of PostgreSQL written anew, which is what takes the bytes of removed rows out of its files.

Nobody reads or writes a table meanwhile, so this happens when the owner of the tables asks for it, and never as a
part of something else.
"""

from __future__ import annotations

from typing import Any

from holdfast import errors

# Those that hold something of what was said.
TEXTS = (
    *("conversations", "messages", "compactions", "inbox", "arrivals", "outbox", "processes", "audit", "memories"),
    *("blob_parts", "meta"),
)

# It takes as long as it takes; but whoever stands behind it in line for a table must not run out of time because
# it waits for a reader.
_UNHURRIED = "SELECT set_config('statement_timeout', '0', false), set_config('lock_timeout', %(wait)s, false)"
_OTHERS = """
SELECT 1 FROM pg_class c
 WHERE c.relnamespace = to_regnamespace(quote_ident(current_schema())) AND c.relname = ANY(%(tables)s)
   AND NOT pg_has_role(c.relowner, 'USAGE')
"""
_NOT_OURS = (
    "Only the role that made the tables may have them written anew, which is what takes the bytes out of the files. "
    "Run this as that role."
)


def rewrite(execute: Any, tables: tuple[str, ...], write_timeout: float) -> None:
    """One after the other. The timeouts of the connection are others afterwards."""
    # PostgreSQL passes over what is somebody else's with no more than a notice.
    if execute(_OTHERS, {"tables": list(tables)}).fetchone():
        raise errors.StoreUnusable(_NOT_OURS)
    execute(_UNHURRIED, {"wait": f"{max(1, int(write_timeout * 500))}ms"})
    for table in tables:
        execute(f"VACUUM (FULL) {table}")
