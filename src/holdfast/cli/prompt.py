"""`holdfast -p`: send one message, or run one slash command, and print the answer.

The answer is streamed text, one JSON object, or one JSON event per line. The output of a command is its answer. A
command that expands to a message, such as /retry, sends that message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

import click

from holdfast import errors, events, safe_text, types
from holdfast.agent import commands
from holdfast.agent.commands import registry
from holdfast.app import compose
from holdfast.cli import chat, console, json_output, session_choice, shutdown
from holdfast.runtime import single_turn, wording
from holdfast.terminal import event_text

NOT_RUN = "The turn could not be run."
MODEL = "/model has no effect with -p: use --model NAME to choose the model of a message."
TITLE = "/title needs an existing conversation: name it with -c or -r."

Show = Callable[[events.AnyEvent], None]


def run(out: console.Console, start: chat.Start, message: str, form: str, yes: bool = False) -> int:
    """Send a message. Returns 0 if it was answered, 1 if not, and 130 if it was interrupted."""
    signals = shutdown.SignalHandler()
    return signals.run(_send(out, start, message, form, yes, signals))


def _open(start: chat.Start, yes: bool) -> AbstractAsyncContextManager[compose.RunningProgram]:
    return compose.start(
        start.settings,
        database=start.database,
        model=start.model,
        source=session_choice.ONE_SHOT_SOURCE,
        reviews=False,  # A memory review would be cancelled when the answer is complete.
        yes=yes,
    )


async def _send(
    out: console.Console, start: chat.Start, message: str, form: str, yes: bool, signals: shutdown.SignalHandler
) -> int:
    result: events.TurnResult | None = None
    try:
        async with _open(start, yes) as app:
            if app.notice:
                out.note(app.notice)
            result = await _run_turn(app, start.conversation_id, _renderer(out, form), signals, message)
    except asyncio.CancelledError:
        _print_interrupted(out, form, result)
        raise
    return _print_result(out, form, result)


async def _run_turn(
    app: compose.RunningProgram,
    conversation_id: str,
    show: Show,
    signals: shutdown.SignalHandler,
    text: str,
    content: types.Content | None = None,
) -> events.TurnResult | None:
    """Run a turn, which a signal stops."""
    turn = single_turn.SingleTurn(app.runtime, conversation_id, show)
    with signals.stopping(turn.stop):
        return await turn.run(text, content)


def _print_interrupted(out: console.Console, form: str, result: events.TurnResult | None) -> None:
    """Print a JSON result if the program was cancelled before a turn began, or while it closed."""
    if form == "json":
        out.json(json_output.turn(result or json_output.result("", wording.INTERRUPTED, True)))
    elif form == "stream-json" and result is None:
        out.json_line(json_output.event(events.TurnFinished(json_output.result("", wording.INTERRUPTED, True))))


def _print_result(out: console.Console, form: str, result: events.TurnResult | None) -> int:
    """Print the parts of a result that were not streamed; returns the exit code."""
    if result is None:  # A notice has reported the reason.
        if form == "json":
            out.json(json_output.failed(NOT_RUN))
        return 1
    if form == "json":
        out.json(json_output.turn(result))
    text = _answer_text(result).strip()
    sentence = wording.turn_finished(result)
    if result.interrupted:
        out.note(wording.INTERRUPTED)
    elif sentence is not None:
        out.note(f"holdfast: {sentence.text}" if result.error or not text else sentence.text)
    return 130 if result.interrupted else 0 if result.completed and text else 1


def _answer_text(result: events.TurnResult) -> str:
    """Return the answer, without the mark at the end of a truncated one."""
    content = result.messages[-1].content if result.partial and result.messages else result.final_response
    if isinstance(content, str):
        return content
    return "".join(str(part["text"]) for part in content if part.get("type") == "text")


# --- output formats ------------------------------------------------------------------------------------


def _renderer(out: console.Console, form: str) -> Show:
    """Return the function that prints events in this format as they arrive."""
    if form == "text":
        return _TextRenderer(out).show
    return _JsonLinesRenderer(out).show if form == "stream-json" else _notes_renderer(out)


def _notes_renderer(out: console.Console) -> Show:
    def show(event: events.AnyEvent) -> None:
        sentence = wording.describe(event) if isinstance(event, events.Notice | events.Compacted) else None
        if sentence is not None:
            out.note(sentence.text)

    return show


class _JsonLinesRenderer:
    """Prints each event as a line, up to the result, which is the last line."""

    def __init__(self, out: console.Console) -> None:
        self._out, self._show_note = out, _notes_renderer(out)
        self._finished = self._other_turn = False

    def show(self, event: events.AnyEvent) -> None:
        if self._finished:
            self._show_note(event)
            return
        self._out.json_line(json_output.event(event))
        match event:
            case events.TurnStarted(notice=kind):
                self._other_turn = bool(kind)  # the turn of a notice that was waiting
            case events.TurnFinished():
                self._finished, self._other_turn = not self._other_turn, False
            case _:
                pass


class _TextRenderer:
    """Streams the answer to standard output; tool calls and errors go to standard error."""

    def __init__(self, out: console.Console) -> None:
        self._out = out
        self._page = event_text.EventRenderer(event_text.PLAIN, lambda: out.width or 200)
        self._line_open = self._has_text = self._other_turn = False

    def show(self, event: events.AnyEvent) -> None:
        match event:
            case events.TurnStarted(notice=kind) if kind:
                # A waiting notice is answered first; that is not the answer to the message.
                self._other_turn = True
                self._note(event)
            case events.TurnFinished() if self._other_turn:
                self._other_turn = False
            case events.TextDelta() if self._other_turn:
                pass
            case events.TextDelta(text):
                self._write(text)
            case events.TurnFinished(result):
                if result.completed and not self._has_text:
                    self._write(_answer_text(result))
                self._end_line()
            case events.ReasoningDelta() | events.Titled() | events.ToolProgress():
                pass  # Scripts would have to filter them out.
            case _:
                self._note(event)

    def _note(self, event: events.AnyEvent) -> None:
        line = "".join(piece.text for piece in self._page.draw(event)).strip()
        if line:
            self._end_line()
            self._out.note(line)

    def _write(self, text: str) -> None:
        if not text:
            return
        # A file or a pipe gets the exact text; a terminal gets no control sequences.
        self._out.out.write(safe_text.safe_stream(text) if self._out.tty else text)
        self._out.out.flush()
        self._line_open, self._has_text = not text.endswith("\n"), True

    def _end_line(self) -> None:
        if self._line_open:
            self._out.print()
            self._out.out.flush()
            self._line_open = False


# --- slash commands ------------------------------------------------------------------------------------


def run_command(out: console.Console, start: chat.Start, line: str, form: str, yes: bool = False) -> int:
    """Run a slash command. Returns 0 if it succeeded, 1 if not, and 130 if it was interrupted; raises UsageError."""
    name, argument = commands.split(line)
    if name.lower() not in commands.COMMANDS and not start.settings.servers:
        raise click.UsageError(_unknown_command(name, ()))
    _refuse_command(name.lower(), argument, start.is_new)
    signals = shutdown.SignalHandler()
    return signals.run(_run_command(out, start, line, form, yes, signals))


def _refuse_command(name: str, argument: str, is_new: bool) -> None:
    """Refuse commands that only have an effect in a chat."""
    known = commands.COMMANDS.get(name)
    if known is not None and "once" not in known.places:
        raise click.UsageError(f"/{name} works only in a chat. {known.instead}")
    if name == "model" and argument:
        raise click.UsageError(MODEL)
    if name == "title" and argument and is_new:
        raise click.UsageError(TITLE)


def _unknown_command(name: str, others: Sequence[str]) -> str:
    similar = registry.nearest(name, [*commands.COMMANDS, *others])
    suggestion = f" Did you mean /{similar}?" if similar else ""
    return (
        f"Unknown command: {errors.quote('/' + name)}.{suggestion} Run `holdfast -p /help` for the list. To send a "
        "message that begins with a slash, start it with two."
    )


async def _run_command(
    out: console.Console, start: chat.Start, line: str, form: str, yes: bool, signals: shutdown.SignalHandler
) -> int:
    output = _CommandOutput(out, form)
    try:
        async with _open(start, yes) as app:
            name, _ = commands.split(line)
            listed = [each.name for each in commands.list_commands(app.runtime, "once")]
            if name.lower() not in listed:
                raise click.UsageError(_unknown_command(name, listed))
            interrupted = await _execute(app, start.conversation_id, line, output, signals)
            if (message := output.message) is not None and not interrupted:
                if app.notice:
                    out.note(app.notice)
                show = _renderer(out, form)
                result = await _run_turn(app, start.conversation_id, show, signals, message.text, message.content)
                return _print_result(out, form, result)
            outcome = output.result(interrupted, *await _find_ids(app, output.moved_to or start.conversation_id))
    except asyncio.CancelledError:
        if output.message is None:
            _print_interrupted(out, form, None)
        raise
    if form == "stream-json":
        out.json_line(json_output.event(events.TurnFinished(outcome)))
    elif form == "json":
        out.json(json_output.turn(outcome))
    if interrupted:
        out.note(wording.INTERRUPTED)
    return 130 if interrupted else 1 if outcome.failed else 0


async def _execute(
    app: compose.RunningProgram,
    conversation_id: str,
    line: str,
    output: _CommandOutput,
    signals: shutdown.SignalHandler,
) -> bool:
    """Run a command; returns whether a signal interrupted it."""
    task = asyncio.create_task(single_turn.run_command(app.runtime, conversation_id, line, output.show))
    try:
        with signals.stopping(task.cancel):
            await asyncio.wait([task])
    finally:
        task.cancel()
        await asyncio.wait([task])
    if task.cancelled():
        return True
    task.result()
    return False


async def _find_ids(app: compose.RunningProgram, conversation_id: str) -> tuple[str, str]:
    """Return the ids of session and conversation; empty if the command created none."""
    try:
        found = await app.db.conversation(conversation_id)
    except errors.NoSuchSession:
        return "", ""
    return found.head_id, found.id


class _CommandOutput:
    """Prints the output of a command as it arrives, and collects it for the result."""

    def __init__(self, out: console.Console, form: str) -> None:
        self._out, self._form, self._show = out, form, _renderer(out, form)
        self._answers: list[str] = []
        self._errors: list[str] = []
        self.message: events.Say | None = None
        """The message that the command expands to."""
        self.moved_to = ""

    def show(self, event: events.AnyEvent) -> None:
        match event:
            case events.Answer(text):
                self._answer(text)
            case events.Titled() | events.Compacted():
                sentence = wording.describe(event)
                self._answer(sentence.text if sentence else "")
            case events.Notice(text, "error"):
                self._errors.append(text)
            case events.Say():
                self.message = event
            case events.Moved(conversation_id):
                self.moved_to = conversation_id
            case _:
                pass
        if self._form != "text" or isinstance(event, events.Notice):
            self._show(event)

    def _answer(self, text: str) -> None:
        self._answers.append(text)
        if self._form == "text":
            self._out.print(safe_text.safe_stream(text) if self._out.tty else text)

    def result(self, interrupted: bool, session_id: str, conversation_id: str) -> events.TurnResult:
        """Return the output in the form of a turn's result."""
        error = wording.INTERRUPTED if interrupted else " ".join(self._errors)
        return json_output.result(
            "\n".join(self._answers), error or None, interrupted, session_id=session_id, conversation_id=conversation_id
        )
