"""The `holdfast` program: its commands, and what becomes of errors.

Data goes to standard output, the rest to standard error. Exit codes: 0, 1 (something went wrong),
2 (used wrongly), 130 (interrupted). An error of Holdfast is one sentence, never a traceback.
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
    "chat": ("holdfast.cli.chat", "Talk to the agent; `holdfast` alone does this, too."),
    "tui": ("holdfast.cli.tui", "Talk to the agent on the full screen."),
    "rpc": ("holdfast.cli.rpc", "Serve front ends of their own, by JSON-RPC on standard input or by WebSocket."),
    "acp": ("holdfast.cli.acp", "Be the agent of an editor: Zed, JetBrains, Neovim and others."),
    "gateway": ("holdfast.cli.gateway", "Answer chats and programs, and say who may talk to the agent."),
    "sessions": ("holdfast.cli.sessions", "Look at conversations, and look after them."),
    "mcp": ("holdfast.cli.mcp", "Look at the servers of tools that settings name."),
    "audit": ("holdfast.cli.audit", "Show what tools did, and who allowed it."),
    "backup": ("holdfast.cli.backup:backup", "Write a checked copy of the store."),
    "restore": ("holdfast.cli.backup:restore", "Put a backup in the place of what the store holds."),
    "salvage": ("holdfast.cli.salvage", "Read what can be read of a damaged store into a new one."),
    "doctor": ("holdfast.cli.doctor", "Check the store and its surroundings; say what to do."),
    "db": ("holdfast.cli.db", "Make, move and look at the database under the store."),
    "config": ("holdfast.cli.config_commands", "Look at settings, find mistakes in them, change them."),
    "completion": ("holdfast.cli.completion", "Print the script that completes commands in your shell."),
    "tour": ("holdfast.cli.tour", "Watch a short conversation with the offline model, in a place of its own."),
    "demo": ("holdfast.cli.demo", "Race processes on naive tables and on the store; draw what became of both."),
}
# These begin though a file of settings is wrong: to mend it, where none is needed, or since they tell of it in the
# form that was asked for.
WITHOUT_FILES = {"config", "completion", "tour", "doctor", "chat", "acp"}


@click.group(
    cls=lazy_group.LazyGroup,
    commands_in=COMMANDS,
    alone="chat",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(holdfast.__version__, "-V", "--version", prog_name="holdfast", message="%(prog)s %(version)s")
def program() -> None:
    """Conversations that last for months, and cannot fork.

    \b
    holdfast            talk, in a new conversation
    holdfast -c         go on with the most recent one of this folder
    holdfast -r [ID]    go on with another: an id, the beginning of one, or a title
    holdfast -p TEXT    send one message, print the answer and leave

    These and more are options of the chat: `holdfast chat --help` lists them.
    """


def run() -> NoReturn:
    """Run the command line of this process and leave with its exit code."""
    if lazy_group.COMPLETING in config.environment():
        sys.exit(lazy_group.load("holdfast.cli.completion").answer(program, config.environment()))
    out = console.Console(*_settings())
    if out.wrong is not None and {*sys.argv[1:2]} & COMMANDS.keys() - WITHOUT_FILES:
        out.note(lazy_group.wrong_file(out.wrong))
        sys.exit(2)
    try:
        code = _outcome(sys.argv[1:], out)
        out.out.flush()
    except BrokenPipeError:
        code = 0  # Whoever read has seen enough.
        console.silence(out.out)
    except OSError as error:
        out.note(f"holdfast: the output could not be written: {error.strerror or error}.")
        code = 1
        console.silence(out.out)
    sys.exit(code)


def _settings() -> tuple[config.Settings, errors.SettingInvalid | None]:
    """The settings; where a file is wrong, those of the environment alone, and what is wrong with it."""
    try:
        return config.load(), None
    except errors.SettingInvalid as error:
        return config.load(files=False), error


def _outcome(arguments: Sequence[str], out: console.Console) -> int:
    try:
        with program.make_context("holdfast", list(arguments), obj=out) as context:
            return program.invoke(context) or 0
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.ClickException as error:
        out.note(_usage(error, arguments))
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        out.progress("")
        out.note("Interrupted.")
        return 130
    except errors.HoldfastError as error:
        out.progress("")
        if isinstance(error, errors.SettingInvalid) and error is out.wrong:
            out.note(lazy_group.wrong_file(error))
            return 2
        out.note(f"holdfast: {error}")
        return 1
    except (msgspec.MsgspecError, AssertionError) as fault:
        # What is damaged in a store has its own error: this should not be.
        logger.exception("the command failed")
        out.note(f"holdfast: a fault of the program ({type(fault).__name__}). Its trace is logged; please report it.")
        return 1


def _usage(error: click.ClickException, arguments: Sequence[str]) -> str:
    context = getattr(error, "ctx", None)
    where = context.command_path if context else "holdfast"
    meant = next((each for each in arguments if each in COMMANDS), None)
    if meant is not None and arguments[0].startswith("-"):
        # What begins with an option is the chat's.
        return f"holdfast: Options come after the command, as in `holdfast {meant} ... {arguments[0]} ...`."
    return f"{where}: {error.format_message()} Try `{where} --help`."
