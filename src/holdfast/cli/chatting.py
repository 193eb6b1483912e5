"""`holdfast` alone, or `holdfast chat`: talk to the agent, in a chat or with one message.

What a chat needs is loaded when one opens, and what one message needs when there is one.
"""

from __future__ import annotations

import logging
import os
import select
import stat
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import click

from holdfast import app, errors, types
from holdfast.cli import console, lazy, sessions
from holdfast.store import state
from holdfast.terminal import text

FORMATS = ("text", "json", "stream-json")
# What --resume is when it is given without its value.
NOTHING_SAID = "-"
OFFERED = 15
# Seconds to wait for the first byte of what may be piped in, when the message is there without it. Programs are
# often started with a pipe that stays open and silent; a download, on the other hand, needs a moment to begin.
FIRST_BYTE = 1.5
SILENT = "Nothing came on standard input; going on without it."

Find = Callable[[str], types.Session]


class Start(NamedTuple):
    """What to talk with, and where."""

    database: str
    model: str | None
    conversation_id: str


@click.command(name="chat")
@click.option("-c", "--continue", "go_on", is_flag=True, help="Go on with the most recent conversation.")
@click.option(
    "-r",
    "--resume",
    metavar="[ID]",
    is_flag=False,
    flag_value=NOTHING_SAID,
    help="Go on with this conversation: an id, the beginning of one, or a title. Without it, choose from a list.",
)
@click.option(
    "-p",
    "--prompt",
    "words",
    metavar="TEXT",
    help="Send one message, print the answer and leave. What is piped in comes after the text.",
)
@click.option(
    "--output-format",
    "form",
    type=click.Choice(FORMATS),
    help="How one answer is printed: as text while it comes, as one JSON object, or as one JSON event a line.",
)
@click.option(
    "--yes",
    is_flag=True,
    help="With -p: let tools do what they would ask for, but for what is dangerous or forbidden by a rule.",
)
@click.option("--model", metavar="PROVIDER/MODEL", help="The model to ask (default: HOLDFAST_MODEL).")
@lazy.database
@click.pass_obj
def command(
    out: console.Console,
    go_on: bool,
    resume: str | None,
    words: str | None,
    form: str | None,
    yes: bool,
    model: str | None,
    path: str | None,
) -> int:
    """Talk to the agent. `holdfast` alone does this, too."""
    if go_on and resume is not None:
        raise click.UsageError("--continue and --resume name two conversations.")
    message = _message(out, words)
    if message is None:
        if yes:
            raise click.UsageError("--yes is for one message: give it with -p.")
        return _without_message(out, go_on, resume, form, model, path)
    if not message.strip():
        raise click.UsageError("There is no message.")
    if resume == NOTHING_SAID:
        raise click.UsageError("Say which conversation to resume.")
    start = _start(out, go_on, resume, model, path)
    keep_logs(out.settings.log)
    code: int = lazy.load("holdfast.cli.once").run(out, start, message, form or "text", yes)
    return code


def _without_message(
    out: console.Console, go_on: bool, resume: str | None, form: str | None, model: str | None, path: str | None
) -> int:
    if form is not None:
        raise click.UsageError("--output-format is for one message: give it with -p.")
    if not (out.tty and _tty()):
        if _tty() or go_on or resume is not None or model or path:
            raise click.UsageError("A chat needs a terminal; -p TEXT sends one message without it.")
        # Nobody is there to talk to, and nothing was asked.
        context = click.get_current_context()
        out.print((context.parent or context).get_help())
        return 0
    start = _start(out, go_on, resume, model, path)
    keep_logs(out.settings.log)
    code: int = lazy.load("holdfast.cli.talking").run(out, start)
    return code


# --- the message ---------------------------------------------------------------------------------------


def _message(out: console.Console, words: str | None) -> str | None:
    """The one message: what was given, and after it what is piped in; None when there is neither."""
    piped = None
    if _piped():
        if words is None or _begins():
            piped = sys.stdin.buffer.read().decode("utf-8", "replace")
        else:
            out.note(SILENT)
    if words is None and piped is None:
        return None
    return "\n\n".join(part for part in ((words or "").strip(), (piped or "").strip("\n")) if part)


def _tty() -> bool:
    try:
        return sys.stdin is not None and sys.stdin.isatty()
    except ValueError:
        return False


def _piped() -> bool:
    """Whether somebody sends something: a pipe, a file, a socket. A device is nobody."""
    try:
        return sys.stdin is not None and not stat.S_ISCHR(os.fstat(sys.stdin.fileno()).st_mode)
    except (OSError, ValueError):
        return False


def _begins() -> bool:
    """Whether something comes, or the end does, before long."""
    try:
        return bool(select.select([sys.stdin.fileno()], [], [], FIRST_BYTE)[0])
    except (OSError, ValueError):
        return True  # Not every system can wait for a pipe; there it is read as it comes.


# --- the conversation ----------------------------------------------------------------------------------


def _start(out: console.Console, go_on: bool, resume: str | None, model: str | None, path: str | None) -> Start:
    target = path or out.settings.database
    if not go_on and resume is None:
        return Start(target, model, state.mint_session_id(time.time()))
    # Who goes on never makes a store: nothing is there to go on with.
    with app.open_to_look(target) as db:
        if resume != NOTHING_SAID:
            found = sessions.find(db, resume if resume is not None else "last")
        else:
            found = _chosen(out, db.list_sessions(limit=OFFERED), lambda text: sessions.find(db, text))
    return Start(target, model, found.conversation_id)


def _chosen(out: console.Console, heads: list[types.Session], find: Find) -> types.Session:
    """The one a person picks from a list."""
    if not heads:
        raise errors.NoSuchSession("last", "There are no conversations yet.")
    for number, head in enumerate(heads, 1):
        line = f"{number:>3}  {text.when(head.active_at)}  {text.safe(head.title or head.conversation_id)}"
        out.print(out.clipped(line, out.width))
    answer = str(click.prompt("Which one? A number, an id or a title", default="1", err=True)).strip()
    if answer.isascii() and answer.isdigit() and 1 <= int(answer) <= len(heads):
        return heads[int(answer) - 1]
    return find(answer)


# --- the log -------------------------------------------------------------------------------------------


def keep_logs(path: str | None) -> None:
    """Warnings and faults go to the file that was asked for, and never onto the screen."""
    handler: logging.Handler = logging.NullHandler()
    if path is not None:
        try:
            handler = logging.FileHandler(path, encoding="utf-8")
        except OSError as error:
            raise errors.SettingInvalid(f"The log {path} cannot be written: {error.strerror or error}.") from None
        handler.setFormatter(logging.Formatter("%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)
