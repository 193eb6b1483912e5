"""Groups of commands, each loaded only when it is used, and the options they share."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


class LazyGroup(click.Group):
    """A group that knows its commands by name, module and one line of help.

    Each module defines `command`.
    """

    def __init__(self, *args: Any, commands_in: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._modules = commands_in

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._modules:
            return None
        command: click.Command = importlib.import_module(self._modules[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help) for name, (_, help) in self._modules.items()])


def database(function: F) -> F:
    """--db PATH, for commands that need a store."""
    return click.option(
        "--db",
        "path",
        metavar="PATH",
        help="The store to use (default: HOLDFAST_DB, else holdfast.db in the data directory).",
    )(function)


def as_json(function: F) -> F:
    """--json, for programs."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")(function)
