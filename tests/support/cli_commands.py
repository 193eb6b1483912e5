"""Every command of the program, found by walking it: one that is added later cannot be forgotten."""

from __future__ import annotations

from collections.abc import Iterator

import click

from holdfast.cli import program

Path = tuple[str, ...]


def commands() -> set[Path]:
    """The words of each, as in `sessions list`; groups are none."""
    return set(_below(program.program, ()))


def _below(group: click.Group, at: Path) -> Iterator[Path]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from _below(found, (*at, name))
        else:
            yield (*at, name)
