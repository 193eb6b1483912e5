"""Command groups that import a command only when it runs, and the options that commands share."""

from __future__ import annotations

import datetime
import importlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click
from click import shell_completion

from holdfast import config, errors

COMPLETE_VARIABLE = "_HOLDFAST_COMPLETE"
"""Set by the completion script of a shell when it asks for completions; click defines the name."""

F = TypeVar("F", bound=Callable[..., Any])


class LazyGroup(click.Group):
    """A group that knows its commands by name, module and one line of help.

    Each module defines `command`, or the name after a colon. `default_command` runs when no command is named: its
    options are accepted in place of the name.
    """

    def __init__(
        self, *, commands_in: Mapping[str, tuple[str, str]], default_command: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(invoke_without_command=True, **kwargs)
        self._modules = commands_in
        self._default = default_command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # While a line is completed, an empty one may still become the name of a command.
        if self._default is not None and self._names_no_command(ctx, args) and (args or not ctx.resilient_parsing):
            args = [self._default, *args]
        return super().parse_args(ctx, args)

    def _names_no_command(self, ctx: click.Context, args: list[str]) -> bool:
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
        """Return the matching commands, without importing any, or the matching options."""
        if incomplete.startswith("-"):
            default = self.get_command(ctx, self._default) if self._default is not None else None
            own = click.Command.shell_complete(self, ctx, incomplete)
            return own + (default.shell_complete(ctx, incomplete) if default else [])
        return [
            shell_completion.CompletionItem(name, help=purpose)
            for name, (_, purpose) in self._modules.items()
            if name.startswith(incomplete)
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, purpose) for name, (_, purpose) in self._modules.items()])


def load(module: str) -> Any:
    """Import a module that only some uses of a command need."""
    return importlib.import_module(module)


def conversations(
    context: click.Context, _option: click.Parameter, incomplete: str
) -> list[shell_completion.CompletionItem]:
    """Complete the id or title of a conversation."""
    found: list[shell_completion.CompletionItem] = load("holdfast.cli.shell_completion").conversations(
        context, incomplete
    )
    return found


def group(purpose: str, commands: Mapping[str, tuple[str, str]]) -> LazyGroup:
    """Return a group of commands that prints its help when it is run without one."""

    def help_when_alone() -> None:
        context = click.get_current_context()
        if context.invoked_subcommand is None:
            click.echo(context.get_help())

    return LazyGroup(commands_in=commands, callback=help_when_alone, help=purpose)


def settings_message(error: errors.SettingInvalid) -> str:
    """Return the message for invalid settings, which every command reports in the same way."""
    return f"holdfast: {error} Run `holdfast config check` to list all mistakes."


def parse_local_time(text: str) -> float:
    """Return the timestamp of a local date, or date and time. Raises BadParameter."""
    try:
        return datetime.datetime.fromisoformat(text.strip()).astimezone().timestamp()
    except (ValueError, OverflowError, OSError):
        raise click.BadParameter("expected a date such as 2026-05-28, or a time: '2026-05-28 14:30'.") from None


# --- options -------------------------------------------------------------------------------------------


def named(_context: click.Context, _option: click.Parameter, path: str | None) -> str | None:
    """Refuse an empty path: an unset variable in a script must not select the default store."""
    if path == "":
        raise click.BadParameter("the path is empty.")
    return path


def database(function: F) -> F:
    """Add --db, for commands that open a store."""
    return click.option(
        "--db",
        "path",
        metavar="STORE",
        callback=named,
        help="Path or postgresql://... of the store (default: HOLDFAST_DB, then holdfast.db in the data directory).",
    )(function)


def profile(function: F) -> F:
    """Add --profile NAME. The command receives the settings with that profile, or None."""
    return click.option(
        "--profile",
        "settings",
        metavar="NAME",
        callback=_load_profile,
        help="Profile of your settings to use (default: HOLDFAST_PROFILE).",
    )(function)


def _load_profile(context: click.Context, _option: click.Parameter, name: str | None) -> config.Settings | None:
    if name == "":
        raise click.BadParameter("the name is empty.")
    try:
        return config.load(profile=name) if name else None
    except errors.SettingInvalid as error:
        if str(error) == str(context.obj.settings_error):
            return None  # The file is invalid with any profile; the command reports it when it needs settings.
        raise click.BadParameter(str(error)) from None


def model(function: F) -> F:
    """Add --model."""
    return click.option("--model", metavar="PROVIDER/MODEL", help="Model to use (default: HOLDFAST_MODEL).")(function)


def logged(level: str) -> Callable[[F], F]:
    """Add --log-format and --log-level with this default, for commands that keep running."""
    levels = click.Choice(["debug", "info", "warning", "error"])

    def options(function: F) -> F:
        least = click.option("--log-level", type=levels, default=level, show_default=True, help="Minimum log level.")
        formats = click.Choice(["text", "json"])
        form = click.option(
            "--log-format", type=formats, default="text", show_default=True, help="Format of log lines."
        )
        return form(least(function))

    return options


def limit(default: int, *names: str, largest: int = 1_000_000) -> Callable[[F], F]:
    """Add --limit."""
    kind = click.IntRange(1, largest)
    return click.option(
        *names, "--limit", type=kind, default=default, show_default=True, help="Maximum number of results."
    )


def as_json(function: F) -> F:
    """Add --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def yes(function: F) -> F:
    """Add --yes, for commands that delete or replace data."""
    return click.option("--yes", "-y", is_flag=True, help="Don't ask for confirmation.")(function)
