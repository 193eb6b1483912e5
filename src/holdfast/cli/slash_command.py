"""One slash command from the command line: carried out as in a chat, and told in the form that was asked for.

What it has to say is the answer. A command that stands for words, such as /retry, has them said and answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import click

from holdfast import errors, events, safe_text
from holdfast.agent import commands
from holdfast.agent.commands import registry
from holdfast.app import compose
from holdfast.cli import chat, console, json_output, prompt, shutdown
from holdfast.runtime import single_turn
from holdfast.terminal import event_text

MODEL = (
    "A model that is chosen so holds until the program ends, which is at once; --model NAME chooses it for a message."
)
TITLE = "A conversation is there to be named after its first message: say which one with -c or -r."


def run(out: console.Console, start: chat.Start, line: str, form: str, yes: bool = False) -> int:
    """Carry it out. 0 when that went well, 1 when not, 130 when it was interrupted; raises UsageError."""
    name, argument = commands.split(line)
    if name.lower() not in commands.COMMANDS and not start.settings.servers:
        raise click.UsageError(_unknown(name, ()))
    _refuse(name.lower(), argument, start.begins)
    leave = shutdown.Leave()
    return leave.run(_carry_out(out, start, line, form, yes, leave))


def _refuse(name: str, argument: str, begins: bool) -> None:
    """What means nothing where nobody goes on talking."""
    slash = commands.COMMANDS.get(name)
    if slash is not None and "once" not in slash.places:
        raise click.UsageError(f"/{name} is for a chat. {slash.instead}")
    if name == "model" and argument:
        raise click.UsageError(MODEL)
    if name == "title" and argument and begins:
        raise click.UsageError(TITLE)


def _unknown(name: str, others: Sequence[str]) -> str:
    near = registry.nearest(name, [*commands.COMMANDS, *others])
    meant = f" Did you mean /{near}?" if near else ""
    return (
        f"There is no command {errors.shown('/' + name)}.{meant} `holdfast -p /help` lists them; "
        "a message that begins with a slash begins with two."
    )


async def _carry_out(
    out: console.Console, start: chat.Start, line: str, form: str, yes: bool, leave: shutdown.Leave
) -> int:
    heard = _Heard(out, form)
    try:
        async with prompt.started(start, yes) as app:
            name, _ = commands.split(line)
            listed = [each.name for each in commands.list_commands(app.runtime, "once")]
            if name.lower() not in listed:
                raise click.UsageError(_unknown(name, listed))
            interrupted = await _until_told(app, start.conversation_id, line, heard, leave)
            if heard.words is not None and not interrupted:
                if app.notice:  # Who answers matters only now.
                    out.note(app.notice)
                asked = single_turn.Asking(app.runtime, start.conversation_id, prompt.showing(out, form))
                return prompt.told(
                    out, form, await prompt.answered(asked, leave, heard.words.text, heard.words.content)
                )
            result = heard.result(interrupted, *await _place(app, heard.here or start.conversation_id))
    except asyncio.CancelledError:
        if heard.words is None:
            prompt.cut_off(out, form, None)
        raise
    if form == "stream-json":
        out.line(json_output.event(events.TurnFinished(result)))
    elif form == "json":
        out.json(json_output.turn(result))
    if interrupted:
        out.note(prompt.INTERRUPTED)
    return 130 if interrupted else 1 if result.failed else 0


async def _until_told(app: compose.Running, here: str, line: str, heard: _Heard, leave: shutdown.Leave) -> bool:
    """Whether somebody stopped it; what it did until then is kept or not as the command has it."""
    task = asyncio.create_task(single_turn.command(app.runtime, here, line, heard.show))
    try:
        with leave.stopping(task.cancel):
            await asyncio.wait([task])
    finally:
        task.cancel()
        await asyncio.wait([task])
    if task.cancelled():
        return True
    task.result()
    return False


async def _place(app: compose.Running, here: str) -> tuple[str, str]:
    """The session and the conversation, if there is one: most commands begin none."""
    try:
        found = await app.db.conversation(here)
    except errors.NoSuchSession:
        return "", ""
    return found.head_id, found.id


class _Heard:
    """What a command says, told as it comes, and kept for the end."""

    def __init__(self, out: console.Console, form: str) -> None:
        self._out, self._form, self._show = out, form, prompt.showing(out, form)
        self._page = event_text.Page(event_text.PLAIN, lambda: out.width or 200)
        self._said: list[str] = []
        self._wrong: list[str] = []
        self.words: events.Say | None = None
        self.here = ""

    def show(self, event: events.AnyEvent) -> None:
        match event:
            case events.Answer(words):
                self._answer(words)
            case events.Titled() | events.Compacted():
                self._answer("".join(piece.text for piece in self._page.draw(event)).strip())
            case events.Notice(words, "error"):
                self._wrong.append(words)
            case events.Say():
                self.words = event
            case events.Moved(conversation_id):
                self.here = conversation_id
            case _:
                pass
        if self._form != "text" or isinstance(event, events.Notice):
            self._show(event)

    def _answer(self, words: str) -> None:
        self._said.append(words)
        if self._form == "text":
            self._out.print(safe_text.flowing(words) if self._out.tty else words)

    def result(self, interrupted: bool, session_id: str, conversation_id: str) -> events.TurnResult:
        """The same as of a turn: whoever reads one can read the other."""
        error = prompt.INTERRUPTED if interrupted else " ".join(self._wrong)
        return json_output.result(
            "\n".join(self._said), error or None, interrupted, session_id=session_id, conversation_id=conversation_id
        )
