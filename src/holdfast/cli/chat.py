"""`holdfast` alone, or `holdfast chat`: talk to the agent, in a chat or with one message.

What a chat needs is loaded when one opens, and what one message needs when there is one.
"""

from __future__ import annotations

import itertools
import logging
import time
from typing import Any, NamedTuple

import click
import msgspec

from holdfast import app, config, errors, events, types
from holdfast.app import logs
from holdfast.cli import console, json_output, lazy_group, sessions, stdin_text
from holdfast.store import conversation_row
from holdfast.store import db as store

# The source of conversations that -p begins.
ONE_SHOT = "cli"
DOCUMENTS = ("json", "stream-json")
FORMATS = ("text", *DOCUMENTS)
# What --resume is when it is given without its value.
NOTHING_SAID = "-"
# What --prompt is then: no system passes on such a word, so nobody can mean it.
PIPED = "\0"


class Start(NamedTuple):
    """What to talk with, and where."""

    database: str
    model: str | None
    conversation_id: str
    settings: config.Settings
    begins: bool = False
    """Whether nothing was said there yet."""
    notice: str | None = None
    """What the user should know about the conversation before it continues."""


class Command(click.Command):
    """The chat. Whoever asked for a document gets one also where the rest of the command line is wrong."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        form = _form(args)
        try:
            return super().parse_args(ctx, self._filled(args))
        except click.UsageError as error:
            if form is not None:
                _document(ctx.obj, form, error.format_message())
            raise

    def _filled(self, args: list[str]) -> list[str]:
        """--prompt without its value takes what is piped in. A value may begin with a dash: it is no option by that."""
        options = {name for parameter in self.params for name in parameter.opts}
        filled = list[str]()
        for place, each in enumerate(args):
            filled.append(each)
            behind = args[place + 1 : place + 2]
            if each in ("-p", "--prompt") and (not behind or behind[0].partition("=")[0] in options):
                filled.append(PIPED)
        return filled


def _form(args: list[str]) -> str | None:
    """The form for programs that these words ask for, before all of them are understood."""
    words = [word for each in args for word in each.split("=", 1)]
    named = [after for before, after in itertools.pairwise(words) if before == "--output-format"]
    return named[-1] if named and named[-1] in DOCUMENTS else None


@click.command(name="chat", cls=Command)
@click.option(
    "-c",
    "--continue",
    "go_on",
    is_flag=True,
    help="Go on with the most recent conversation of this folder, else of any; with -p also with those -p began.",
)
@click.option(
    "-r",
    "--resume",
    metavar="[ID]",
    is_flag=False,
    flag_value=NOTHING_SAID,
    shell_complete=lazy_group.conversations,
    help="Go on with this conversation: an id, the beginning of one, or a title. Without it, pick one from a list.",
)
@click.option(
    "-p",
    "--prompt",
    "words",
    metavar="[TEXT]",
    help="Send one message, print the answer and leave. What is piped in comes after the text, or is the message. "
    "A /command is carried out; two slashes begin a message with one.",
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
@click.option("--max-steps", "steps", type=click.IntRange(1), help="How often the model is asked in one turn.")
@click.option("--max-cost", "cost", type=click.FloatRange(0), metavar="DOLLARS", help="What one turn may cost.")
@lazy_group.profile
@lazy_group.database
@click.pass_obj
def command(out: console.Console, /, **given: Any) -> int:
    """Talk to the agent. `holdfast` alone does this, too."""
    asked = Asked(**given)
    try:
        settings = asked.settings or out.settings
        if asked.go_on and asked.resume is not None:
            raise click.UsageError("--continue and --resume name two conversations.")
        if asked.words == PIPED and not stdin_text.piped():
            raise click.UsageError("There is no message: -p TEXT sends one, and so does what is piped in.")
        message = stdin_text.message(out, None if asked.words == PIPED else asked.words)
        if message is None:
            return _without_message(out, asked, settings)
        if not message.strip():
            raise click.UsageError("There is no message.")
        if asked.resume == NOTHING_SAID:
            raise click.UsageError("Say which conversation to resume.")
        return _once(out, asked, settings, message)
    except (errors.HoldfastError, click.UsageError) as error:
        if asked.form in DOCUMENTS and (asked.words is not None or stdin_text.piped()):
            # Whoever reads a document gets one, also where no turn began.
            _document(out, asked.form, error.format_message() if isinstance(error, click.UsageError) else str(error))
        raise


class Asked(NamedTuple):
    """What the command line says."""

    go_on: bool
    resume: str | None
    words: str | None
    form: str | None
    yes: bool
    model: str | None
    steps: int | None
    cost: float | None
    settings: config.Settings | None
    path: str | None


def _once(out: console.Console, asked: Asked, settings: config.Settings, message: str) -> int:
    """One message, or one command. What is piped in is never a command: others may have written it."""
    given = "" if asked.words == PIPED else stdin_text.given(asked.words)
    commands = lazy_group.load("holdfast.agent.commands")
    slash = commands.is_command(given)
    if slash and message != given:
        raise click.UsageError("A command takes nothing from standard input.")
    begins = start(out, asked, settings, one_shots=True)
    if begins.notice:
        out.note(begins.notice)
    module = lazy_group.load("holdfast.cli.slash_command" if slash else "holdfast.cli.prompt")
    code: int = module.run(
        out, begins, message[1:] if commands.is_escaped(given) else message, asked.form or "text", asked.yes
    )
    return code


def _without_message(out: console.Console, asked: Asked, settings: config.Settings) -> int:
    if asked.yes:
        raise click.UsageError("--yes is for one message: give it with -p.")
    if asked.form is not None:
        raise click.UsageError("--output-format is for one message: give it with -p.")
    if not (out.tty and stdin_text.tty()):
        if stdin_text.tty() or any(value is not None and value is not False for value in asked):
            raise click.UsageError("A chat needs a terminal; -p TEXT sends one message without it.")
        # Nobody is there to talk to, and nothing was asked.
        context = click.get_current_context()
        out.print((context.parent or context).get_help())
        return 0
    begins = start(out, asked, settings)
    code: int = lazy_group.load("holdfast.cli.chat_session").run(out, begins)
    return code


def _document(out: console.Console, form: str, error: str) -> None:
    if form == "json":
        out.json(json_output.failed(error))
    else:
        out.line({"type": events.TurnFinished.__struct_config__.tag, "result": json_output.failed(error)})


# --- the conversation ----------------------------------------------------------------------------------


def start(out: console.Console, asked: Asked, settings: config.Settings, *, one_shots: bool = False) -> Start:
    """What to talk with and where, as the command line says. With `one_shots`, -c considers those that -p made, too."""
    settings = _limited(settings, asked)
    keep_logs(settings)
    target = asked.path or settings.database
    if not asked.go_on and asked.resume is None:
        return Start(target, asked.model, conversation_row.generate_session_id(time.time()), settings, begins=True)
    # Who goes on never makes a store: nothing is there to go on with.
    with app.open_to_look(target) as db:
        notices = list[str | None]()
        if asked.resume is None:
            found, elsewhere = lazy_group.load("holdfast.cli.latest_session").find(db, one_shots=one_shots)
            notices.append(elsewhere)
        elif asked.resume != NOTHING_SAID:
            found = sessions.find(db, asked.resume)
        else:
            found = lazy_group.load("holdfast.cli.session_picker").chosen(out, db)
        notices.append(_unfinished(db, found))
    notice = " ".join(each for each in notices if each) or None
    return Start(target, asked.model, found.conversation_id, settings, notice=notice)


def _unfinished(db: store.SessionDB, head: types.Session) -> str | None:
    """What there is to say of a turn that was ended in its middle. One that runs elsewhere is not over."""
    last = db.transcript(head.id, max(head.last_seq - 1, 0))
    if not last or (last[-1].role == "assistant" and not last[-1].tool_calls):
        return None
    if _turn_runs(db, head.conversation_id):
        return None
    return f"The answer to the last message ({last[-1].seq}) was not finished. Say it again, or go on."


def _turn_runs(db: store.SessionDB, conversation_id: str) -> bool:
    """Whether a turn of the conversation holds its lease; False where leases cannot be read."""
    try:
        held = db.leases()
    except Exception:  # noqa: BLE001 -- a failed lock never stops a turn
        return False
    return any(
        lease.conversation_id == conversation_id and lease.purpose == "turn" and lease.state == "held" for lease in held
    )


def _limited(settings: config.Settings, asked: Asked) -> config.Settings:
    """The settings, with the limits that were given for this time."""
    said = {"steps": asked.steps, "cost": asked.cost}
    limits = {name: value for name, value in said.items() if value is not None}
    return msgspec.structs.replace(settings, limits=msgspec.structs.replace(settings.limits, **limits))


# --- the log -------------------------------------------------------------------------------------------


def keep_logs(settings: config.Settings) -> None:
    """Log warnings and errors to the log file of the settings, without secrets, and never to the terminal."""
    handler: logging.Handler = logging.NullHandler()
    if settings.log is not None:
        handler = logs.File(settings.log)
        handler.setFormatter(logs.Lines("text", logs.known(settings)))
    logging.getLogger().addHandler(handler)
