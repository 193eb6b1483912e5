"""All commands of the program, found by walking its groups."""

from __future__ import annotations

import click

from holdfast.cli import program

Path = tuple[str, ...]


def commands(group: click.Group = program.program, prefix: Path = ()) -> set[Path]:
    """Return the words of each command, such as `sessions list`, without groups."""
    context, paths = click.Context(group), set[Path]()
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        paths |= commands(found, (*prefix, name)) if isinstance(found, click.Group) else {(*prefix, name)}
    return paths
