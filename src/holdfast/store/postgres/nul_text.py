"""Escape NUL characters, which PostgreSQL text cannot contain.

Messages are JSON and escape them anyway; the columns of the queries below hold raw text.
"""

from __future__ import annotations

from typing import Any

# A noncharacter: no valid text contains it by accident.
_ESCAPE = "\U0010ffff"
# The queries whose parameters are escaped, and those whose rows are unescaped.
ESCAPED_QUERIES = frozenset(
    (
        *("inbox_insert", "process_insert", "audit_insert", "audit_redact", "grant_insert"),
        *("copy_inbox_entry", "copy_grant", "copy_act", "grant_get"),
    )
)
UNESCAPED_QUERIES = frozenset(
    (
        *("inbox_by_key", "inbox_open", "inbox_open_everywhere", "commands_of", "audit_newest"),
        *("process_get", "processes_of", "processes_everywhere", "processes_running", "grant_get", "grants_of"),
        *("copy_inbox", "copy_processes", "copy_grants", "copy_audit"),
    )
)


def escape(values: dict[str, Any]) -> dict[str, Any]:
    return {name: _escape(value) if isinstance(value, str) else value for name, value in values.items()}


def _escape(text: str) -> str:
    return text.replace(_ESCAPE, f"{_ESCAPE}1").replace("\0", f"{_ESCAPE}0")


def unescape(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(_unescape(value) if isinstance(value, str) and _ESCAPE in value else value for value in row)


def _unescape(text: str) -> str:
    return text.replace(f"{_ESCAPE}0", "\0").replace(f"{_ESCAPE}1", _ESCAPE)
