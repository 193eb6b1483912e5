"""All commands of the program, found by walking its groups."""

from __future__ import annotations

import click

from holdfast.cli import program

Path = tuple[str, ...]


def commands(group: click.Group = program.program, prefix: Path = ()) -> dict[Path, click.Command]:
    """Return each command by its words, such as `sessions list`, without groups."""
    context, found = click.Context(group), dict[Path, click.Command]()
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        path = (*prefix, name)
        found |= commands(command, path) if isinstance(command, click.Group) else {path: command}
    return found
