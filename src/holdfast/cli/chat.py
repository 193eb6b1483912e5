"""`holdfast` or `holdfast chat`: start the chat, or send one message with -p.

The modules of the chat and of -p are imported only when they are used.
"""

from __future__ import annotations

import itertools
import logging
import time
from typing import Any, NamedTuple

import click
import msgspec

from holdfast import config, errors, events, types
from holdfast.app import logs, open_store
from holdfast.cli import console, json_output, lazy_group, session_choice, stdin_text
from holdfast.store import conversation_row
from holdfast.store import db as store

JSON_FORMATS = ("json", "stream-json")
FORMATS = ("text", *JSON_FORMATS)
PICK = "-"
"""The value of --resume without an argument."""
PIPED = "\0"
"""The value of --prompt without an argument; no command line can contain it."""


class Start(NamedTuple):
    """The conversation, store, model and settings of a chat or a single message."""

    database: str
    model: str | None
    conversation_id: str
    settings: config.Settings
    notice: str | None = None
    """A message for the user about the conversation that is continued."""
    is_new: bool = False
    """Whether the first message creates the conversation."""


class ChatArguments(NamedTuple):
    """The options of the command line."""

    go_on: bool = False
    resume: str | None = None
    words: str | None = None
    form: str | None = None
    yes: bool = False
    model: str | None = None
    steps: int | None = None
    cost: float | None = None
    settings: config.Settings | None = None
    path: str | None = None


class ChatCommand(click.Command):
    """A command that reports usage errors as JSON if a JSON format was requested."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        form = _requested_json(args)
        try:
            return super().parse_args(ctx, self._fill_prompt(args))
        except click.UsageError as error:
            if form is not None:
                _print_error(ctx.obj, form, error.format_message())
            raise

    def _fill_prompt(self, args: list[str]) -> list[str]:
        """Give --prompt without an argument a value. An argument may begin with a dash if it is not an option."""
        options = {name for parameter in self.params for name in parameter.opts}
        filled = list[str]()
        for index, argument in enumerate(args):
            filled.append(argument)
            following = args[index + 1 : index + 2]
            if argument in ("-p", "--prompt") and (not following or following[0].partition("=")[0] in options):
                filled.append(PIPED)
        return filled


def _requested_json(args: list[str]) -> str | None:
    """Return the JSON format that a command line requests, before it is parsed."""
    words = [word for argument in args for word in argument.split("=", 1)]
    values = [value for option, value in itertools.pairwise(words) if option == "--output-format"]
    return values[-1] if values and values[-1] in JSON_FORMATS else None


@click.command(name="chat", cls=ChatCommand)
@click.option(
    "-c",
    "--continue",
    "go_on",
    is_flag=True,
    help="Continue the most recent conversation of this folder, else of any folder. With -p, this includes "
    "conversations that -p created.",
)
@click.option(
    "-r",
    "--resume",
    metavar="[ID]",
    is_flag=False,
    flag_value=PICK,
    shell_complete=lazy_group.conversations,
    help="Continue this conversation: an id, the beginning of one, or a title. Without ID, pick one from a list.",
)
@click.option(
    "-p",
    "--prompt",
    "words",
    metavar="[TEXT]",
    help="Send one message, print the answer and exit. Standard input is appended to TEXT, or is the message. "
    "A /command is executed; start a message with two slashes to send one that begins with a slash.",
)
@click.option(
    "--output-format",
    "form",
    type=click.Choice(FORMATS),
    help="Format of the answer to -p: streamed text, one JSON object, or one JSON event per line.",
)
@click.option("--yes", is_flag=True, help="With -p: allow tool calls that would ask, except dangerous and denied ones.")
@lazy_group.model
@click.option("--max-steps", "steps", type=click.IntRange(1), help="Maximum number of model calls per turn.")
@click.option("--max-cost", "cost", type=click.FloatRange(0), metavar="DOLLARS", help="Maximum cost of a turn.")
@lazy_group.profile
@lazy_group.database
@click.pass_obj
def command(out: console.Console, /, **given: Any) -> int:
    """Chat with the agent. This is the default command."""
    options = ChatArguments(**given)
    try:
        settings = options.settings or out.settings
        if options.go_on and options.resume is not None:
            raise click.UsageError("Use either --continue or --resume, not both.")
        if options.words == PIPED and not stdin_text.is_piped():
            raise click.UsageError("There is no message: use -p TEXT, or pipe one to standard input.")
        message = stdin_text.read_message(out, None if options.words == PIPED else options.words)
        if message is None:
            return _chat(out, options, settings)
        if not message.strip():
            raise click.UsageError("There is no message.")
        if options.resume == PICK:
            raise click.UsageError("Name the conversation to resume: --resume ID.")
        return _prompt(out, options, settings, message)
    except (errors.HoldfastError, click.UsageError) as error:
        if options.form in JSON_FORMATS and (options.words is not None or stdin_text.is_piped()):
            _print_error(
                out, options.form, error.format_message() if isinstance(error, click.UsageError) else str(error)
            )
        raise


def _prompt(out: console.Console, options: ChatArguments, settings: config.Settings, message: str) -> int:
    """Send one message or run one command. Standard input is never a command, because others may have written it."""
    text = "" if options.words == PIPED else stdin_text.decode(options.words)
    commands = lazy_group.load("holdfast.agent.commands")
    is_command = commands.is_command(text)
    if is_command and message != text:
        raise click.UsageError("A command takes no standard input.")
    start = find_start(out, options, settings, one_shots=True)
    if start.notice:
        out.note(start.notice)
    message = message[1:] if commands.is_escaped(text) else message
    run = lazy_group.load("holdfast.cli.one_shot").run
    code: int = run(out, start, message, options.form or "text", options.yes, is_command=is_command)
    return code


def _chat(out: console.Console, options: ChatArguments, settings: config.Settings) -> int:
    if options.yes:
        raise click.UsageError("--yes works only with -p.")
    if options.form is not None:
        raise click.UsageError("--output-format works only with -p.")
    if not (out.tty and stdin_text.is_terminal()):
        if stdin_text.is_terminal() or any(value is not None and value is not False for value in options):
            raise click.UsageError("The chat needs a terminal. Use -p TEXT to send one message without it.")
        context = click.get_current_context()
        out.print((context.parent or context).get_help())
        return 0
    start = find_start(out, options, settings)
    code: int = lazy_group.load("holdfast.cli.terminal_session").run_chat(out, start)
    return code


def _print_error(out: console.Console, form: str, error: str) -> None:
    if form == "json":
        out.json(json_output.failed(error))
    else:
        out.json_line({"type": events.TurnFinished.__struct_config__.tag, "result": json_output.failed(error)})


# --- the conversation ----------------------------------------------------------------------------------


def find_start(
    out: console.Console, options: ChatArguments, settings: config.Settings, *, one_shots: bool = False
) -> Start:
    """Return the conversation that the options name. With `one_shots`, -c considers those that -p created, too."""
    given = {name: value for name, value in (("steps", options.steps), ("cost", options.cost)) if value is not None}
    settings = msgspec.structs.replace(settings, limits=msgspec.structs.replace(settings.limits, **given))
    log_to_file(settings)
    target = options.path or settings.database
    if not options.go_on and options.resume is None:
        new_id = conversation_row.generate_session_id(time.time())
        return Start(target, options.model, new_id, settings, is_new=True)
    with open_store.open_existing(target) as db:
        elsewhere = None
        if options.resume is None:
            found, elsewhere = session_choice.find_latest(db, one_shots=one_shots)
        elif options.resume != PICK:
            found = session_choice.find(db, options.resume)
        else:
            found = session_choice.pick(out, db)
        notices = [notice for notice in (elsewhere, _unfinished_turn(db, found)) if notice]
    return Start(target, options.model, found.conversation_id, settings, notice=" ".join(notices) or None)


def _unfinished_turn(db: store.SessionDB, head: types.Session) -> str | None:
    """Return a notice if the last turn was cut off and no process is running it."""
    last = db.transcript(head.id, max(head.last_seq - 1, 0))
    if not last or (last[-1].role == "assistant" and not last[-1].tool_calls):
        return None
    try:
        held = [lease.conversation_id for lease in db.leases() if lease.purpose == "turn" and lease.state == "held"]
    except Exception:  # noqa: BLE001 -- a failed lock never stops a turn
        held = []
    if head.conversation_id in held:
        return None
    return f"The answer to the last message ({last[-1].seq}) was not finished. Send it again, or continue."


def log_to_file(settings: config.Settings) -> None:
    """Log warnings and errors to the log file of the settings, without secrets, and never to the terminal."""
    handler: logging.Handler = logging.NullHandler()
    if settings.log is not None:
        handler = logs.PrivateFileHandler(settings.log)
        handler.setFormatter(logs.RedactingFormatter("text", logs.known_secrets(settings)))
    logging.getLogger().addHandler(handler)
