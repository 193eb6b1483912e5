"""All commands of the program, found by walking its groups."""

from __future__ import annotations

from collections.abc import Iterator

import click

from holdfast.cli import program

Path = tuple[str, ...]


def commands() -> set[Path]:
    """Return the words of each command, such as `sessions list`, without groups."""
    return set(_walk(program.program, ()))


def _walk(group: click.Group, prefix: Path) -> Iterator[Path]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from _walk(found, (*prefix, name))
        else:
            yield (*prefix, name)
