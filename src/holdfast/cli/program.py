"""The `holdfast` program: its commands, and the conversion of errors to messages and exit codes.

Data goes to standard output, everything else to standard error. Exit codes: 0, 1 (failure), 2 (usage error or invalid
settings), 130 (interrupted). An error of Holdfast is printed as one sentence, without a traceback.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import NoReturn

import click
import msgspec

import holdfast
from holdfast import config, errors
from holdfast.cli import console, lazy_group

logger = logging.getLogger("holdfast.cli")

COMMANDS = {
    "chat": ("holdfast.cli.chat", "Chat with the agent (default)."),
    "tui": ("holdfast.cli.tui", "Chat on the full screen."),
    "rpc": ("holdfast.cli.rpc", "Run the JSON-RPC server for custom clients (stdio or WebSocket)."),
    "acp": ("holdfast.cli.acp", "Run the agent for an editor (Zed, JetBrains, Neovim and others)."),
    "gateway": ("holdfast.cli.gateway", "Run the gateway for chat platforms and HTTP clients, and manage access."),
    "sessions": ("holdfast.cli.sessions", "Show, search, export and delete conversations."),
    "mcp": ("holdfast.cli.mcp", "Check the MCP servers of your settings."),
    "audit": ("holdfast.cli.audit", "List tool calls, and who allowed or denied them."),
    "backup": ("holdfast.cli.backup:backup", "Write a verified copy of the store."),
    "restore": ("holdfast.cli.backup:restore", "Replace the contents of the store with a backup."),
    "salvage": ("holdfast.cli.salvage", "Recover a damaged store into a new one."),
    "doctor": ("holdfast.cli.doctor", "Check the store and its environment, and repair problems."),
    "db": ("holdfast.cli.db", "Create, copy and inspect the database of the store."),
    "config": ("holdfast.cli.config_commands", "Show, check and edit settings."),
    "completion": ("holdfast.cli.shell_completion", "Print the completion script for your shell."),
    "tour": ("holdfast.cli.tour", "Play a short conversation with the offline model in a temporary directory."),
    "demo": ("holdfast.cli.demo", "Run concurrent processes on naive tables and on the store, and compare."),
}
RUN_WITH_INVALID_SETTINGS = {"config", "completion", "tour", "doctor", "chat", "acp"}
"""The commands that start although a settings file is invalid: to fix it, or to report it in their own format."""


@click.group(
    cls=lazy_group.LazyGroup,
    commands_in=COMMANDS,
    default_command="chat",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(holdfast.__version__, "-V", "--version", prog_name="holdfast", message="%(prog)s %(version)s")
def program() -> None:
    """An AI agent for conversations that last for months, and cannot fork.

    \b
    holdfast            start a new conversation
    holdfast -c         continue the most recent conversation of this folder
    holdfast -r [ID]    continue another conversation: an id, the beginning of one, or a title
    holdfast -p TEXT    send one message, print the answer and exit

    Run `holdfast chat --help` for all options of the chat.
    """


def run() -> NoReturn:
    """Run the command line of this process, and exit with its exit code."""
    if lazy_group.COMPLETE_VARIABLE in config.environment():
        sys.exit(lazy_group.load("holdfast.cli.shell_completion").answer(program, config.environment()))
    out = console.Console(*_load_settings())
    if out.settings_error is not None and {*sys.argv[1:2]} & COMMANDS.keys() - RUN_WITH_INVALID_SETTINGS:
        out.note(lazy_group.settings_message(out.settings_error))
        sys.exit(2)
    try:
        code = _invoke(sys.argv[1:], out)
        out.out.flush()
    except BrokenPipeError:
        code = 0  # The reader has closed the pipe.
        console.silence(out.out)
    except OSError as error:
        out.note(f"holdfast: cannot write the output: {error.strerror or error}.")
        code = 1
        console.silence(out.out)
    sys.exit(code)


def _load_settings() -> tuple[config.Settings, errors.SettingInvalid | None]:
    """Return the settings; if a file is invalid, those of the environment alone, and the error."""
    try:
        return config.load(), None
    except errors.SettingInvalid as error:
        return config.load(files=False), error


def _invoke(arguments: Sequence[str], out: console.Console) -> int:
    try:
        with program.make_context("holdfast", list(arguments), obj=out) as context:
            return program.invoke(context) or 0
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        out.note(_usage_message(error, arguments))
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        out.progress("")
        out.note("Interrupted.")
        return 130
    except errors.HoldfastError as error:
        out.progress("")
        is_setting = isinstance(error, errors.SettingInvalid)
        out.note(lazy_group.settings_message(error) if error is out.settings_error else f"holdfast: {error}")
        return 2 if is_setting else 1
    except (msgspec.MsgspecError, AssertionError) as error:
        logger.exception("the command failed")
        out.note(f"holdfast: internal error ({type(error).__name__}). The traceback is logged; please report it.")
        return 1


def _usage_message(error: click.ClickException, arguments: Sequence[str]) -> str:
    context = getattr(error, "ctx", None)
    where = context.command_path if context else "holdfast"
    command = next((each for each in arguments if each in COMMANDS), None)
    if command is not None and arguments[0].startswith("-"):
        # Options before the command are parsed as options of the chat.
        return f"holdfast: Put options after the command: `holdfast {command} ... {arguments[0]} ...`."
    return f"{where}: {error.format_message()} Try `{where} --help`."
