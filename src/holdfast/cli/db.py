"""`holdfast db`: the database under the store, to make, to move and to look at."""

from __future__ import annotations

import click

from holdfast.cli import lazy_group

COMMANDS = {
    "status": ("holdfast.cli.db_status", "The database under the store, and which promises hold as it is set up."),
    "init": ("holdfast.cli.db_copy:init", "Make an empty store, and let a role without further rights use it."),
    "scrub": (
        "holdfast.cli.db_scrub",
        "Take what was deleted and redacted out of the files, as the owner of the tables.",
    ),
    "copy": ("holdfast.cli.db_copy:copy", "Move everything a store holds into another, of either database."),
}


@click.group(cls=lazy_group.LazyGroup, commands_in=COMMANDS)
@click.pass_context
def command(context: click.Context) -> None:
    """Make, move and look at the database under the store: a file, or a PostgreSQL server."""
    lazy_group.help_when_alone(context)
