"""Groups of commands, each loaded only when it is used, and the options they share."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click
from click import shell_completion

from holdfast import config, errors

# What the script of a shell sets when it asks how a line could go on; click's name for it.
COMPLETING = "_HOLDFAST_COMPLETE"

F = TypeVar("F", bound=Callable[..., Any])


class LazyGroup(click.Group):
    """A group that knows its commands by name, module and one line of help.

    Each module defines `command`, or what is named after a colon. `alone` names the command that is meant
    when none is named: its options are taken where the name would stand.
    """

    def __init__(self, *, commands_in: Mapping[str, tuple[str, str]], alone: str | None = None, **kwargs: Any) -> None:
        super().__init__(invoke_without_command=True, **kwargs)
        self._modules = commands_in
        self._alone = alone

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Whoever completes a line has not named a command yet, and may be about to.
        if self._alone is not None and self._is_nameless(ctx, args) and (args or not ctx.resilient_parsing):
            args = [self._alone, *args]
        return super().parse_args(ctx, args)

    def _is_nameless(self, ctx: click.Context, args: list[str]) -> bool:
        own = {option for parameter in self.get_params(ctx) for option in parameter.opts}
        return not args or (args[0].startswith("-") and args[0] not in own)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in self._modules:
            return None
        module, _, name = self._modules[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name or "command")
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[shell_completion.CompletionItem]:
        """The names of commands, which are known without loading one, and options."""
        if incomplete.startswith("-") and self._alone is not None:
            own = click.Command.shell_complete(self, ctx, incomplete)
            alone = self.get_command(ctx, self._alone)
            return own + (alone.shell_complete(ctx, incomplete) if alone else [])
        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        return [
            shell_completion.CompletionItem(name, help=purpose)
            for name, (_, purpose) in self._modules.items()
            if name.startswith(incomplete)
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, purpose) for name, (_, purpose) in self._modules.items()])


def load(module: str) -> Any:
    """A module that only some uses of a command need."""
    return importlib.import_module(module)


def conversations(
    context: click.Context, _option: click.Parameter, incomplete: str
) -> list[shell_completion.CompletionItem]:
    """What a shell may complete where a conversation is named."""
    found: list[shell_completion.CompletionItem] = load("holdfast.cli.completion_values").conversations(
        context, incomplete
    )
    return found


def help_when_alone(context: click.Context) -> None:
    """A group named without a command explains itself."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def database(function: F) -> F:
    """--db, for commands that need a store: a path, or the address of a server."""
    return click.option(
        "--db",
        "path",
        metavar="STORE",
        callback=named,
        help="The store: a path or postgresql://... (default: HOLDFAST_DB, else holdfast.db in the data directory).",
    )(function)


def named(_context: click.Context, _option: click.Parameter, path: str | None) -> str | None:
    """A store that is named by its path or its address."""
    # An empty variable in a script must not lead to another store than the one that was meant.
    if path == "":
        raise click.BadParameter("the path is empty.")
    return path


def profile(function: F) -> F:
    """--profile NAME, for commands that settings matter to: they are given the settings with it, or None."""
    return click.option(
        "--profile",
        "settings",
        metavar="NAME",
        callback=_profiled,
        help="The profile of your settings to use (default: HOLDFAST_PROFILE).",
    )(function)


def _profiled(context: click.Context, _option: click.Parameter, name: str | None) -> config.Settings | None:
    if name == "":
        raise click.BadParameter("the name is empty.")
    try:
        return config.load(profile=name) if name else None
    except errors.SettingInvalid as error:
        if str(error) == str(context.obj.wrong):
            return None  # The file is wrong, whichever is chosen: whoever needs settings is told of that.
        raise click.BadParameter(str(error)) from None


def wrong_file(error: errors.SettingInvalid) -> str:
    """What is said where settings cannot be read: it is wrong use of the program, whichever command needed them."""
    return f"holdfast: {error} `holdfast config check` names every mistake."


def logged(level: str) -> Callable[[F], F]:
    """--log-format and --log-level, for commands that run on; the least they log unless they are told otherwise."""
    levels = click.Choice(["debug", "info", "warning", "error"])
    forms = click.Choice(["text", "json"])

    def options(function: F) -> F:
        least = click.option("--log-level", type=levels, default=level, help="The least that is logged.")
        form = click.option("--log-format", type=forms, default="text", help="How log lines are written.")
        return form(least(function))

    return options


def as_json(function: F) -> F:
    """--json, for programs."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")(function)
