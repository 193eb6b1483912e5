"""`holdfast tui`: talk on the full screen. What that needs is loaded once it is clear that it can be opened."""

from __future__ import annotations

import sys
from importlib import util

import click

from holdfast import config, errors
from holdfast.cli import console, lazy_group, stdin_text

INSTALL = "The full screen needs a part that is not installed: pip install 'holdfast[tui]'"


@click.command(name="tui")
@click.option(
    "-c",
    "--continue",
    "go_on",
    is_flag=True,
    help="Go on with the most recent conversation of this folder, else of any.",
)
@click.option(
    "-r",
    "--resume",
    metavar="ID",
    shell_complete=lazy_group.conversations,
    help="Go on with this conversation: an id, the beginning of one, or a title.",
)
@click.option("--light/--dark", "light", default=False, help="Dark on light, or light on dark (the default).")
@click.option("--model", metavar="PROVIDER/MODEL", help="The model to ask (default: HOLDFAST_MODEL).")
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
    """Talk to the agent on the full screen. Ctrl-P lists commands, Ctrl-O conversations, Ctrl-Q leaves.

    It draws on standard error; warnings and faults go to the file that HOLDFAST_LOG names.
    """
    if go_on and resume is not None:
        raise click.UsageError("--continue and --resume name two conversations.")
    if util.find_spec("textual") is None:
        raise errors.HoldfastError(INSTALL)
    # Textual draws on standard error, and asks standard output how large the terminal is.
    if not (stdin_text.tty() and out.tty and sys.stderr.isatty()):
        raise click.UsageError("The full screen needs a terminal: input, output and errors must all be one.")
    if config.environment().get("TERM", "dumb") == "dumb":
        raise click.UsageError("The full screen needs a terminal that can place text; `holdfast` chats on any.")
    onscreen = lazy_group.load("holdfast.cli.tui_session")
    asked = onscreen.Asked(go_on, resume, light, model, settings or out.settings, path)
    code: int = onscreen.run(out, asked)
    return code
