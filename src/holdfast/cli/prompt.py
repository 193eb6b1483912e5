"""One message and its answer: as text while it comes, as one JSON object, or as one JSON event a line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from holdfast import events, safe_text, types
from holdfast.app import compose
from holdfast.cli import chat, console, json_output, shutdown
from holdfast.runtime import single_turn
from holdfast.terminal import event_text

BLANK = "holdfast: The model answered with nothing. Try again."
INTERRUPTED = "Interrupted."
NONE = "The turn could not be carried out."
SHORT = "The answer is not whole: it reached the longest one the model may give."


def run(out: console.Console, start: chat.Start, message: str, form: str, yes: bool = False) -> int:
    """Ask once. 0 when it was answered, 1 when not, 130 when it was interrupted."""
    leave = shutdown.SignalHandler()
    return leave.run(_ask(out, start, message, form, yes, leave))


def started(start: chat.Start, yes: bool) -> AbstractAsyncContextManager[compose.RunningProgram]:
    """The program, for as long as one message takes."""
    return compose.start(
        start.settings,
        database=start.database,
        model=start.model,
        source=chat.ONE_SHOT,
        reviews=False,  # It would be cancelled when the answer is there.
        yes=yes,
    )


async def _ask(
    out: console.Console, start: chat.Start, message: str, form: str, yes: bool, leave: shutdown.SignalHandler
) -> int:
    result: events.TurnResult | None = None
    try:
        async with started(start, yes) as app:
            if app.notice:
                out.note(app.notice)
            asked = single_turn.Asking(app.runtime, start.conversation_id, showing(out, form))
            result = await answered(asked, leave, message)
    except asyncio.CancelledError:
        cut_off(out, form, result)
        raise
    return told(out, form, result)


async def answered(
    asked: single_turn.Asking, leave: shutdown.SignalHandler, words: str, content: types.Content | None = None
) -> events.TurnResult | None:
    """The result of the turn, which a signal stops."""
    with leave.stopping(asked.stop):
        return await asked.ask(words, content)


def cut_off(out: console.Console, form: str, result: events.TurnResult | None) -> None:
    """Whoever reads a document gets one, though the program has to leave before a turn began or while it closes."""
    if form == "json":
        out.json(json_output.turn(result or json_output.result("", INTERRUPTED, True)))
    elif form == "stream-json" and result is None:
        out.line(json_output.event(events.TurnFinished(json_output.result("", INTERRUPTED, True))))


def told(out: console.Console, form: str, result: events.TurnResult | None) -> int:
    """Tell what became of it, where that was not told as it came; the exit code."""
    if result is None:  # A notice has told why.
        if form == "json":
            out.json(json_output.failed(NONE))
        return 1
    if form == "json":
        out.json(json_output.turn(result))
    if said := _remark(result):
        out.note(said)
    return 130 if result.interrupted else 0 if result.completed and _words(result).strip() else 1


def _remark(result: events.TurnResult) -> str:
    """What else is to be said of an answer: that there is none, or not all of it."""
    if result.error:
        return INTERRUPTED if result.interrupted else f"holdfast: {result.error}"
    if result.partial:
        return SHORT
    return "" if _words(result).strip() else BLANK


def _words(result: events.TurnResult) -> str:
    """What was answered, without the mark at the end of an answer that is not whole."""
    said = result.messages[-1].content if result.partial and result.messages else result.final_response
    return said if isinstance(said, str) else "".join(str(part["text"]) for part in said if part.get("type") == "text")


def showing(out: console.Console, form: str) -> Callable[[events.AnyEvent], None]:
    """How events are told in this form, as they come."""
    if form == "text":
        return _Text(out).show
    return _Lines(out).show if form == "stream-json" else _notes(out)


def _notes(out: console.Console) -> Callable[[events.AnyEvent], None]:
    def show_it(event: events.AnyEvent) -> None:
        if isinstance(event, events.Notice | events.Compacted):
            out.note(event.text)

    return show_it


class _Lines:
    """Every event, one line each, as soon as it comes, up to the result, which is the last line."""

    def __init__(self, out: console.Console) -> None:
        self._out, self._rest = out, _notes(out)
        self._over = self._beside = False

    def show(self, event: events.AnyEvent) -> None:
        if self._over:
            self._rest(event)
        else:
            self._line(event)

    def _line(self, event: events.AnyEvent) -> None:
        self._out.line(json_output.event(event))
        match event:
            case events.TurnStarted(notice=kind):
                # The turn of a notice that waited is not the one that was asked for.
                self._beside = bool(kind)
            case events.TurnFinished():
                self._over, self._beside = not self._beside, False
            case _:
                pass


class _Text:
    """The reply on standard output as it comes; what is done meanwhile, and what goes wrong, on standard error."""

    def __init__(self, out: console.Console) -> None:
        self._out = out
        self._page = event_text.Page(event_text.PLAIN, lambda: out.width or 200)
        self._open = self._said = self._beside = False

    def show(self, event: events.AnyEvent) -> None:
        match event:
            case events.TurnStarted(notice=kind) if kind:
                # What waited for the conversation is answered first; that is not the answer that was asked for.
                self._beside = True
                self._note(event)
            case events.TurnFinished() if self._beside:
                self._beside = False
            case events.TextDelta() if self._beside:
                pass
            case events.TextDelta(words):
                self._write(words)
            case events.TurnFinished(result):
                if result.completed and not self._said:
                    self._write(_words(result))
                self._end_line()
            case events.ReasoningDelta() | events.Titled() | events.ToolProgress():
                pass  # Nobody asked for them, and a script would have to tell them from the rest.
            case _:
                self._note(event)

    def _note(self, event: events.AnyEvent) -> None:
        line = "".join(piece.text for piece in self._page.draw(event)).strip()
        if line:
            self._end_line()
            self._out.note(line)

    def _write(self, words: str) -> None:
        if not words:
            return
        # A file or a pipe gets what was said, to the letter; a terminal only what is safe to show there.
        self._out.out.write(safe_text.flowing(words) if self._out.tty else words)
        self._out.out.flush()
        self._open, self._said = not words.endswith("\n"), True

    def _end_line(self) -> None:
        if self._open:
            self._out.print()
            self._out.out.flush()
            self._open = False
