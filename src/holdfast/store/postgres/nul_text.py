"""Text with a NUL in it, which PostgreSQL does not keep: folded on the way in, unfolded on the way out.

Messages are JSON, where it is escaped anyway. What comes in, commands and the audit are text as it is.
"""

from __future__ import annotations

from typing import Any

# A code point that is no character, and will never be one.
_MARK = "\U0010ffff"
# The queries that write such text, or compare with it, and those that read it.
WRITES = frozenset(
    (
        *("inbound_insert", "process_insert", "audit_insert", "audit_redact", "grant_insert"),
        *("copy_inbound", "copy_grant", "copy_act", "grant_get"),
    )
)
READS = frozenset(
    (
        *("inbound_by_key", "inbound_waiting", "inbound_waiting_anywhere", "commands_of", "audit_newest"),
        *("process_get", "processes_of", "processes_everywhere", "processes_running", "grant_get", "grants_of"),
        *("copy_inbox", "copy_processes", "copy_grants", "copy_audit"),
    )
)


def folded(values: dict[str, Any]) -> dict[str, Any]:
    """Parameters as PostgreSQL takes them."""
    return {name: _folded(value) if isinstance(value, str) else value for name, value in values.items()}


def _folded(text: str) -> str:
    return text.replace(_MARK, f"{_MARK}1").replace("\0", f"{_MARK}0")


def unfolded(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row as it was given."""
    return tuple(_unfolded(value) if isinstance(value, str) and _MARK in value else value for value in row)


def _unfolded(text: str) -> str:
    return text.replace(f"{_MARK}0", "\0").replace(f"{_MARK}1", _MARK)
