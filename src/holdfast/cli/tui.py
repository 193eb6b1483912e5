"""`holdfast tui`: chat on the full screen. Textual is imported after the terminal has been checked."""

from __future__ import annotations

import sys
from importlib import util

import click

from holdfast import config, errors, installation
from holdfast.cli import console, lazy_group


@click.command(name="tui")
@click.option(
    "-c", "--continue", "go_on", is_flag=True, help="Continue the most recent conversation of this folder, else of any."
)
@click.option(
    "-r",
    "--resume",
    metavar="ID",
    shell_complete=lazy_group.conversations,
    help="Continue this conversation: an id, the beginning of one, or a title.",
)
@click.option("--light/--dark", "light", default=False, help="Colour scheme (default: dark).")
@lazy_group.model
@lazy_group.profile
@lazy_group.database
@click.pass_obj
def command(
    out: console.Console,
    go_on: bool,
    resume: str | None,
    light: bool,
    model: str | None,
    settings: config.Settings | None,
    path: str | None,
) -> int:
    """Chat on the full screen. Ctrl-P lists commands, Ctrl-O conversations, Ctrl-Q quits.

    The screen is drawn on standard error. Warnings and errors are logged to the file that HOLDFAST_LOG names.
    """
    if go_on and resume is not None:
        raise click.UsageError("Use either --continue or --resume, not both.")
    if util.find_spec("textual") is None:
        raise errors.HoldfastError(f"The full screen is not installed. Run: {installation.install_command('tui')}")
    # Textual draws on standard error, and reads the size of the terminal from standard output.
    if not (console.is_tty(sys.stdin) and out.tty and console.is_tty(sys.stderr)):
        raise click.UsageError("The full screen needs a terminal for standard input, output and error.")
    if config.environment().get("TERM", "dumb") == "dumb":
        raise click.UsageError("The full screen does not work on a dumb terminal. Run `holdfast` instead.")
    chat = lazy_group.load("holdfast.cli.chat")
    options = chat.ChatArguments(go_on=go_on, resume=resume, model=model, path=path)
    start = chat.find_start(out, options, settings or out.settings)
    code: int = lazy_group.load("holdfast.cli.terminal_session").run_tui(out, start, light)
    return code
