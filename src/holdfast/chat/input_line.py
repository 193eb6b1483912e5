"""The prompt of the chat: it stays at the end of the screen, and all other text appears above it.

Finished text is printed above once. Unfinished text stands directly above the prompt until it is finished, as far as
there is room. Both are drawn a few times per second at most.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TextIO

from prompt_toolkit import PromptSession, filters, formatted_text, styles
from prompt_toolkit.application import get_app
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completion
from prompt_toolkit.data_structures import Point
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import ConditionalContainer, Dimension, FormattedTextControl, HSplit, Layout, Window
from prompt_toolkit.output import color_depth

from holdfast import safe_text
from holdfast.chat import renderer
from holdfast.runtime import interactive
from holdfast.terminal import event_text, input_completion, input_history

MARK = "> "
# Seconds between drawings of output; typed text is drawn at once.
FRAME_SECONDS = 0.04
# A question waits until the person has not typed for this long.
TYPING_PAUSE_SECONDS = 0.7

HELP = """\
Enter sends, Alt-Enter starts a new line, Tab completes commands, arguments and paths.
Messages sent during a reply are queued: /queue lists them. /steer TEXT adds to the running turn.
Ctrl-C clears the line; at an empty prompt it interrupts the reply, and twice exits. Ctrl-D exits.
//text sends a message that starts with a slash."""

STYLE = styles.Style(
    [
        ("bottom-toolbar", "noreverse"),
        ("bottom-toolbar.text", "noreverse"),
        ("status", "fg:ansibrightblack"),
        ("status.soft", "fg:ansiyellow"),
        ("status.hard", "fg:ansired"),
        ("dim", "fg:ansibrightblack"),
        ("yellow", "fg:ansiyellow"),
        ("red", "fg:ansired"),
        ("bold", "bold"),
    ]
)


class TextOutput(Protocol):
    """A stream, and the styles it supports."""

    @property
    def out(self) -> TextIO: ...
    @property
    def colour(self) -> bool: ...
    def style(self, line: str, *names: str) -> str: ...


class TerminalDevice(NamedTuple):
    """A terminal other than that of this process."""

    keys: Input | None = None
    output: renderer.TerminalOutput | None = None


class LineRequest(NamedTuple):
    """A question that takes the next line."""

    text: str
    answer: asyncio.Future[str | None]
    before: Document
    """The text at the prompt when the question was asked."""


class PromptLine:
    """One editable line below all output.

    `draw_open` returns the unfinished text above the prompt, `draw_status` the line below it.
    """

    def __init__(
        self,
        output: TextOutput,
        session: interactive.InteractiveSession,
        completer: input_completion.InputCompleter,
        *,
        draw_open: Callable[[], Sequence[event_text.StyledText]],
        draw_status: Callable[[], Any],
        history_path: str,
        device: TerminalDevice | None = None,
    ) -> None:
        device = device or TerminalDevice()
        self._output, self._handler = output, session
        self._draw_open, self._draw_status = draw_open, draw_status
        self._terminal = device.output or renderer.TerminalOutput(sys.stdout, renderer.terminal_size)
        self._finished: list[str] = []
        self._line: list[event_text.StyledText] = []
        self._blank = True
        self._question: LineRequest | None = None
        self._frame: asyncio.TimerHandle | None = None
        self._drawn_at = self._pressed_at = -TYPING_PAUSE_SECONDS
        self._session = self._create_session(history_path, completer, device.keys)
        self._session.app.key_processor.before_key_press += self._note_key

    def _create_session(
        self, history_path: str, completer: input_completion.InputCompleter, source: Input | None
    ) -> PromptSession[str]:
        colour = self._output.colour
        session: PromptSession[str] = PromptSession(
            self._prompt_text,
            multiline=True,
            prompt_continuation="  ",
            history=input_history.open_history(history_path),
            completer=completer,
            complete_while_typing=filters.Condition(_is_typing_command),
            key_bindings=self._key_bindings(),
            bottom_toolbar=self._draw_status,
            style=STYLE,
            color_depth=color_depth.ColorDepth.DEPTH_4_BIT if colour else color_depth.ColorDepth.DEPTH_1_BIT,
            input=source,
            output=self._terminal,
            refresh_interval=0,
            enable_suspend=True,
            erase_when_done=True,
        )
        unfinished = ConditionalContainer(
            Window(
                FormattedTextControl(self._format_tail, get_cursor_position=self._end_of_tail),
                wrap_lines=True,
                dont_extend_height=True,
            ),
            filters.Condition(lambda: bool(self._tail())),
        )
        session.app.layout = Layout(
            HSplit([unfinished, Window(height=self._gap), session.layout.container]), session.default_buffer
        )
        session.app.renderer = renderer.PromptRenderer(session.app.renderer.style, self._terminal, self._take_finished)
        return session

    def _key_bindings(self) -> KeyBindings:
        """Bind the keys that differ from prompt_toolkit's defaults."""
        keys = KeyBindings()
        typing = filters.has_focus(DEFAULT_BUFFER)
        empty = filters.Condition(lambda: not get_app().current_buffer.text)

        @keys.add("enter", filter=typing)
        def _send(_: KeyPressEvent) -> None:
            self._enter()

        @keys.add("c-c", filter=typing)
        @keys.add("<sigint>")
        def _stop(event: KeyPressEvent) -> None:
            if event.current_buffer.text:
                event.current_buffer.reset()
            elif self._question is not None:
                self._answer(self._question, None)
            else:
                self._handler.interrupt()

        @keys.add("c-d", filter=typing & empty)
        def _leave(_: KeyPressEvent) -> None:
            self._handler.leave()

        @keys.add("tab", filter=typing)
        def _complete(event: KeyPressEvent) -> None:
            complete(event)

        @keys.add("escape", "enter", filter=typing)
        def _start_line(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        return keys

    # --- for the chat --------------------------------------------------------------------------------

    echoes = False
    """Whether typed lines stay on the screen by themselves."""

    @property
    def columns(self) -> int:
        return self._terminal.get_size().columns

    async def run(self) -> None:
        """Show the prompt until `leave` is called or the terminal is gone."""
        try:
            await self._session.prompt_async(set_exception_handler=False)
        except EOFError:
            pass  # The terminal is gone.
        finally:
            if self._frame:
                self._frame.cancel()
            self._print_now()

    def leave(self) -> None:
        """Remove the prompt and end `run`."""
        app = self._session.app
        if app.is_running and not app.is_done:
            app.exit(result="")

    def write(self, pieces: Sequence[event_text.StyledText]) -> None:
        """Print whole rows above the prompt; the rest of the text is unfinished."""
        for text, style in pieces:
            whole, newline, rest = text.rpartition("\n")
            if newline:
                row = [*self._line, event_text.StyledText(whole, style)]
                styled = [self._output.style(each, name) if name and each else each for each, name in row]
                self._finished += [*styled, "\n"]
                self._blank = not any(piece.text for piece in row) or whole.endswith("\n")
                self._line = []
            self._line += [event_text.StyledText(rest, style)] if rest else []
        if self._session.app.is_running:
            self.redraw()
        else:
            self._print_now()

    def echo(self, line: str) -> None:
        """Print a line that was typed, wrapped between words."""
        before = [] if self._blank else [event_text.StyledText("\n")]
        room = max(self.columns - len(MARK), 1)
        rows = [row for each in line.split("\n") for row in safe_text.wrap(each, room)]
        text = event_text.StyledText("\n  ".join(rows))
        self.write([*before, event_text.StyledText(MARK, "bold"), text, event_text.StyledText("\n")])

    def redraw(self) -> None:
        """Draw the text around the prompt again, with the next frame."""
        if self._frame is None:
            loop = asyncio.get_running_loop()
            self._frame = loop.call_at(max(self._drawn_at + FRAME_SECONDS, loop.time()), self._draw_frame)

    def ready(self) -> None:
        """Do nothing: this prompt accepts input all the time."""

    async def read_line(self, text: str) -> str | None:
        """Return the line typed after this text, from now on; None for Ctrl-C.

        Text at the prompt is no part of the answer and returns afterwards. A person who is typing is not interrupted.
        """
        loop, buffer = asyncio.get_running_loop(), self._session.default_buffer
        while buffer.text and (rest := self._pressed_at + TYPING_PAUSE_SECONDS - loop.time()) > 0:
            await asyncio.sleep(rest)
        self._question = question = LineRequest(text, loop.create_future(), buffer.document)
        buffer.reset()
        self._session.app.invalidate()
        try:
            return await question.answer
        finally:
            self._end_question(question)

    def remember(self, line: str) -> None:
        self._session.default_buffer.history.append_string(line)

    def draft(self, line: str) -> None:
        """Put a line to the prompt, behind the text that is there."""
        buffer = self._session.default_buffer
        buffer.reset(Document(f"{buffer.text}\n{line}" if buffer.text else line))

    # --- input ---------------------------------------------------------------------------------------

    def _enter(self) -> None:
        buffer = self._session.default_buffer
        text = buffer.text
        if self._question is not None:
            self._answer(self._question, text)
            return
        buffer.append_to_history()
        buffer.reset()
        self._handler.enter(text)

    def _answer(self, question: LineRequest, text: str | None) -> None:
        question.answer.set_result(text)
        # At once: the next key is not part of the answer.
        self._end_question(question)
        # The line is finished, so the next question need not wait.
        self._pressed_at = -TYPING_PAUSE_SECONDS

    def _end_question(self, question: LineRequest) -> None:
        if self._question is question:
            self._question = None
            self._session.default_buffer.reset(question.before)
            self._session.app.invalidate()

    def _note_key(self, _: object) -> None:
        self._pressed_at = asyncio.get_running_loop().time()

    # --- drawing -------------------------------------------------------------------------------------

    def _prompt_text(self) -> formatted_text.FormattedText:
        return formatted_text.FormattedText([("bold", self._question.text if self._question else MARK)])

    def _draw_frame(self) -> None:
        self._frame, self._drawn_at = None, asyncio.get_running_loop().time()
        self._session.app.invalidate()

    def _take_finished(self) -> str:
        """Return the finished text and forget it."""
        text, self._finished = self._encodable("".join(self._finished)), []
        return text.replace("\n", "\r\n")

    def _print_now(self) -> None:
        """Write the finished text without a prompt."""
        self._output.out.write("".join(self._finished))
        self._output.out.flush()
        self._finished = []

    def _format_tail(self) -> formatted_text.FormattedText:
        return formatted_text.FormattedText([(f"class:{style}" if style else "", text) for text, style in self._tail()])

    def _tail(self) -> list[event_text.StyledText]:
        """Return the end of the unfinished text: no more than the terminal has room for."""
        size, tail = self._terminal.get_size(), list[event_text.StyledText]()
        room = size.columns * size.rows
        pieces = [*self._line, *([event_text.StyledText("\n")] if self._line else ()), *self._draw_open()]
        for text, style in reversed(pieces):
            if room <= 0:
                break
            tail.insert(0, event_text.StyledText(self._encodable(text[-room:]), style))
            room -= len(text)
        if tail:
            tail[-1] = event_text.StyledText(tail[-1].text.removesuffix("\n"), tail[-1].style)
        return tail

    def _end_of_tail(self) -> Point:
        lines = "".join(piece.text for piece in self._tail()).split("\n")
        return Point(len(lines[-1]), len(lines) - 1)

    def _gap(self) -> Dimension:
        """Return the height of the empty row above the prompt: 0 if there is an empty row already."""
        rows = 0 if self._blank and not self._tail() else 1
        return Dimension(min=0, max=rows, preferred=rows)

    def _encodable(self, text: str) -> str:
        """Escape characters that the terminal's encoding lacks."""
        encoding = self._output.out.encoding or "utf-8"
        return text.encode(encoding, "backslashreplace").decode(encoding)


def _is_typing_command() -> bool:
    return input_completion.is_command_name(get_app().current_buffer.document.text_before_cursor)


def complete(event: KeyPressEvent) -> None:
    """Complete the text before the cursor, or go to the next candidate."""
    buffer = event.current_buffer
    if buffer.complete_state is not None:
        buffer.complete_next()
    elif input_completion.is_argument(buffer.document.text_before_cursor):
        event.app.create_background_task(_complete_argument(buffer))
    else:
        # Looked up synchronously: a Tab pressed while the menu is being built would be lost.
        found = buffer.completer.get_completions(buffer.document, CompleteEvent(completion_requested=True))
        _offer(buffer, list(found))


async def _complete_argument(buffer: Buffer) -> None:
    """Look candidates up in the store; discard them if the text has changed meanwhile."""
    before = buffer.document
    found = buffer.completer.get_completions_async(before, CompleteEvent(completion_requested=True))
    candidates = [each async for each in found]
    if buffer.document == before:
        _offer(buffer, candidates)


def _offer(buffer: Buffer, found: list[Completion]) -> None:
    if len(found) == 1:
        buffer.apply_completion(found[0])
    elif found:
        buffer.start_completion(insert_common_part=True)
