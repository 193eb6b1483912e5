"""`holdfast db`: the group of commands for the database of a store."""

from __future__ import annotations

from holdfast.cli import lazy_group

COMMANDS = {
    "status": ("holdfast.cli.db_commands:status", "Show the database, and which promises its configuration breaks."),
    "init": ("holdfast.cli.db_commands:init", "Create an empty store, and grant a PostgreSQL role access to it."),
    "scrub": ("holdfast.cli.db_commands:scrub", "Remove deleted and redacted text from the database files."),
    "copy": ("holdfast.cli.db_commands:copy", "Copy a store to another database."),
}
command = lazy_group.group(
    "Create, copy and inspect the database of a store: a SQLite file or a PostgreSQL server.", COMMANDS
)
