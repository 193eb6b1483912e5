"""`holdfast -p`: send one message, or run one slash command, and print the answer.

The answer is streamed text, one JSON object, or one JSON event per line. The output of a command is its answer. A
command that expands to a message, such as /retry, sends that message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any

import click

from holdfast import errors, events, safe_text, types
from holdfast.agent import commands
from holdfast.agent.commands import conversations, registry, status
from holdfast.app import compose
from holdfast.cli import chat, console, json_output, session_choice, shutdown
from holdfast.runtime import single_turn, wording
from holdfast.terminal import event_text

NOT_RUN = "The turn could not be run."

Show = Callable[[events.AnyEvent], None]


def run(
    out: console.Console, start: chat.Start, message: str, form: str, yes: bool = False, *, is_command: bool = False
) -> int:
    """Send a message, or run a slash command.

    Returns 0 if it was answered, 1 if not, and 130 if it was interrupted. Raises UsageError for a command that does not
    exist, or that has an effect only in a chat.
    """
    if is_command:
        _check_command(message, is_new=start.is_new, has_servers=bool(start.settings.servers))
    one_shot = _OneShot(out, start, form, yes)
    return one_shot.signals.run(one_shot.run_command(message) if is_command else one_shot.send(message))


def _check_command(line: str, *, is_new: bool, has_servers: bool) -> None:
    (name, argument), command = commands.split(line), commands.find(line)
    if command is not None and "once" not in command.places:
        raise click.UsageError(f"/{command.name} works only in a chat. {command.instead}")
    if command is not None and command.run is status.model and argument:
        raise click.UsageError(f"/{command.name} has no effect with -p. Use --model PROVIDER/MODEL.")
    if command is not None and command.run is conversations.title and is_new:
        raise click.UsageError(f"/{command.name} needs a conversation. Add -c for the most recent one, or -r ID.")
    if command is None and not has_servers:  # MCP servers have commands, too.
        similar = registry.nearest(name, list(commands.COMMANDS))
        suggestion = f" Did you mean /{similar}?" if similar else ""
        raise click.UsageError(
            f"Unknown command: {errors.quote('/' + name)}.{suggestion} Run `holdfast -p /help` for the list. To send a "
            "message that begins with a slash, start it with two."
        )


class _OneShot:
    """One message or command."""

    def __init__(self, out: console.Console, start: chat.Start, form: str, yes: bool) -> None:
        self._out, self._start, self._form, self._yes = out, start, form, yes
        self._show = _renderer(out, form)
        self.signals = shutdown.SignalHandler()

    def _open(self) -> AbstractAsyncContextManager[compose.RunningProgram]:
        start = self._start
        return compose.start(
            start.settings,
            database=start.database,
            model=start.model,
            source=session_choice.ONE_SHOT_SOURCE,
            reviews=False,  # A memory review would be cancelled when the answer is complete.
            yes=self._yes,
        )

    async def send(self, message: str) -> int:
        result: events.TurnResult | None = None
        try:
            async with self._open() as app:
                result = await self._run_turn(app, message)
        except asyncio.CancelledError:
            self._print_interrupted(result)
            raise
        return self._print_result(result)

    async def _run_turn(
        self, app: compose.RunningProgram, text: str, content: types.Content | None = None
    ) -> events.TurnResult | None:
        """Run a turn, which a signal stops."""
        if app.notice:
            self._out.note(app.notice)
        turn = single_turn.SingleTurn(app.runtime, self._start.conversation_id, self._show)
        with self.signals.stopping(turn.stop):
            return await turn.run(text, content)

    async def run_command(self, line: str) -> int:
        output = _CommandOutput(self._out, self._form, self._show)
        here = self._start.conversation_id
        try:
            async with self._open() as app:
                work = single_turn.run_command(app.runtime, here, line, output.show)
                interrupted = await self._wait_or_cancel(work)
                if (message := output.message) is not None and not interrupted:
                    return self._print_result(await self._run_turn(app, message.text, message.content))
                outcome = output.result(interrupted, *await _find_ids(app, output.moved_to or here))
        except asyncio.CancelledError:
            if output.message is None:
                self._print_interrupted(None)
            raise
        if self._form == "stream-json":
            self._out.json_line(json_output.event(events.TurnFinished(outcome)))
        elif self._form == "json":
            self._out.json(json_output.turn(outcome))
        if interrupted:
            self._out.note(wording.INTERRUPTED)
        return 130 if interrupted else 1 if outcome.failed else 0

    async def _wait_or_cancel(self, work: Coroutine[Any, Any, None]) -> bool:
        """Wait for the work, which a signal cancels; returns whether one did."""
        task = asyncio.create_task(work)
        try:
            with self.signals.stopping(task.cancel):
                await asyncio.wait([task])
        finally:
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled():
            task.result()
        return task.cancelled()

    def _print_interrupted(self, result: events.TurnResult | None) -> None:
        """Print a JSON result if the program was cancelled before a turn began, or while it closed."""
        interrupted = json_output.result("", wording.INTERRUPTED, True)
        if self._form == "json":
            self._out.json(json_output.turn(result or interrupted))
        elif self._form == "stream-json" and result is None:
            self._out.json_line(json_output.event(events.TurnFinished(interrupted)))

    def _print_result(self, result: events.TurnResult | None) -> int:
        """Print the parts of a result that were not streamed; returns the exit code."""
        if self._form == "json":
            self._out.json(json_output.turn(result) if result else json_output.failed(NOT_RUN))
        if result is None:  # A notice has reported the reason.
            return 1
        text = _answer_text(result).strip()
        sentence = wording.turn_finished(result)
        if result.interrupted:
            self._out.note(wording.INTERRUPTED)
        elif sentence is not None:
            self._out.note(f"holdfast: {sentence.text}" if result.error or not text else sentence.text)
        return 130 if result.interrupted else 0 if result.completed and text else 1


def _answer_text(result: events.TurnResult) -> str:
    """Return the answer, without the mark at the end of a truncated one."""
    content = result.messages[-1].content if result.partial and result.messages else result.final_response
    if isinstance(content, str):
        return content
    return "".join(str(part["text"]) for part in content if part.get("type") == "text")


async def _find_ids(app: compose.RunningProgram, conversation_id: str) -> tuple[str, str]:
    """Return the ids of session and conversation; empty if the command created none."""
    try:
        found = await app.db.conversation(conversation_id)
    except errors.NoSuchSession:
        return "", ""
    return found.head_id, found.id


# --- output formats ------------------------------------------------------------------------------------


def _renderer(out: console.Console, form: str) -> Show:
    """Return the function that prints events in this format as they arrive."""
    if form == "text":
        return _TextRenderer(out).show
    return _JsonLinesRenderer(out).show if form == "stream-json" else _notes_renderer(out)


def _notes_renderer(out: console.Console) -> Show:
    def show(event: events.AnyEvent) -> None:
        if isinstance(event, events.Notice):
            out.note(event.text)
        elif isinstance(event, events.Compacted):
            out.note(wording.compacted(event).text)

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


class _CommandOutput:
    """Prints the output of a command as it arrives, and collects it for the result."""

    def __init__(self, out: console.Console, form: str, show: Show) -> None:
        self._out, self._form, self._show = out, form, show
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
        answer = "\n".join(self._answers)
        return json_output.result(answer, error or None, interrupted, session_id, conversation_id)
