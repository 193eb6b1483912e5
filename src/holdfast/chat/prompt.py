"""The line people type on: it stays at the end of the screen for the whole chat, and all else appears above it.

What is finished is printed above, once. What is still being written stands right over the line until it is finished,
as much of it as has room. Both are drawn a few times a second at most, however fast they come.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TextIO

from prompt_toolkit import PromptSession, filters, formatted_text, styles
from prompt_toolkit.application import get_app
from prompt_toolkit.data_structures import Point
from prompt_toolkit.document import Document
from prompt_toolkit.input import Input
from prompt_toolkit.layout import ConditionalContainer, Dimension, FormattedTextControl, HSplit, Layout, Window
from prompt_toolkit.output import color_depth

from holdfast import safe_text
from holdfast.chat import key_bindings, renderer
from holdfast.terminal import completion, event_text, input_history

MARK = "> "
# Seconds between drawings of what comes by itself; what is typed is seen at once.
FRAME = 0.04
# Whoever typed so few seconds ago is still writing: a question waits until then.
PAUSE = 0.7

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


class Paper(Protocol):
    """What is written on."""

    @property
    def out(self) -> TextIO: ...
    @property
    def colour(self) -> bool: ...
    def style(self, line: str, *names: str) -> str: ...


class Person(Protocol):
    """Who is told what a person does."""

    def typed(self, line: str) -> None: ...
    def interrupted(self) -> None: ...
    def leave(self) -> None: ...


class Shown(NamedTuple):
    """What stands beside the line, each asked for whenever it is drawn."""

    open: Callable[[], Sequence[event_text.Piece]]
    """What is still being written, above it."""
    standing: Callable[[], Any]
    """How things stand, under it."""


class Device(NamedTuple):
    """The terminal, where it is another than the one this process was started in."""

    keys: Input | None = None
    screen: renderer.Screen | None = None


class Question(NamedTuple):
    """What is asked instead of the next line."""

    words: str
    answer: asyncio.Future[str | None]
    before: Document
    """What stood at the prompt."""


class Prompt:
    """One line to type on, and all that was and is said above it."""

    def __init__(
        self,
        paper: Paper,
        shown: Shown,
        person: Person,
        history_path: str,
        completer: completion.Words,
        device: Device | None = None,
    ) -> None:
        device = device or Device()
        self._paper, self._shown, self._person = paper, shown, person
        self._screen = device.screen or renderer.Screen(sys.stdout, renderer.size)
        self._above: list[str] = []
        self._line: list[event_text.Piece] = []
        self._blank = True
        self._asked: Question | None = None
        self._frame: asyncio.TimerHandle | None = None
        self._drawn = self._pressed = -PAUSE
        self._session = self._made(history_path, completer, device.keys)
        self._session.app.key_processor.before_key_press += self._press

    def _made(self, history_path: str, completer: completion.Words, source: Input | None) -> PromptSession[str]:
        colour = self._paper.colour
        session: PromptSession[str] = PromptSession(
            self._mark,
            multiline=True,
            prompt_continuation="  ",
            history=input_history.at(history_path),
            completer=completer,
            complete_while_typing=filters.Condition(self._is_command),
            key_bindings=key_bindings.bindings(self),
            bottom_toolbar=self._shown.standing,
            style=STYLE,
            color_depth=color_depth.ColorDepth.DEPTH_4_BIT if colour else color_depth.ColorDepth.DEPTH_1_BIT,
            input=source,
            output=self._screen,
            refresh_interval=0,
            enable_suspend=True,
            erase_when_done=True,
        )
        under_way = ConditionalContainer(
            Window(
                FormattedTextControl(self._open, get_cursor_position=self._end_of_open),
                wrap_lines=True,
                dont_extend_height=True,
            ),
            filters.Condition(lambda: bool(self._tail())),
        )
        session.app.layout = Layout(
            HSplit([under_way, Window(height=self._gap), session.layout.container]), session.default_buffer
        )
        session.app.renderer = renderer.Renderer(session.app.renderer.style, self._screen, self._finished)
        return session

    # --- for the chat --------------------------------------------------------------------------------

    echoes = False
    """Whether what is typed stays on the screen by itself."""

    @property
    def columns(self) -> int:
        return self._screen.get_size().columns

    async def run(self) -> None:
        """Until somebody leaves."""
        try:
            await self._session.prompt_async(set_exception_handler=False)
        except EOFError:
            pass  # The terminal is gone.
        finally:
            if self._frame:
                self._frame.cancel()
            self._print_now()

    def leave(self) -> None:
        """Take the line away, for good."""
        app = self._session.app
        if app.is_running and not app.is_done:
            app.exit(result="")

    def write(self, pieces: Sequence[event_text.Piece]) -> None:
        """Print above the line, once there is a whole row to print; the rest of it is still being written."""
        for words, style in pieces:
            whole, broken, rest = words.rpartition("\n")
            if broken:
                row = [*self._line, event_text.Piece(whole, style)]
                self._above += [self._paper.style(said, name) if name and said else said for said, name in row] + ["\n"]
                self._blank = not any(piece.text for piece in row) or whole.endswith("\n")
                self._line = []
            self._line += [event_text.Piece(rest, style)] if rest else []
        if self._session.app.is_running:
            self.changed()
        else:
            self._print_now()

    def echo(self, line: str) -> None:
        """Print what was typed, broken between words."""
        before = [] if self._blank else [event_text.Piece("\n")]
        room = max(self.columns - len(MARK), 1)
        rows = [row for each in line.split("\n") for row in safe_text.wrapped(each, room)]
        self.write(
            [*before, event_text.Piece(MARK, "bold"), event_text.Piece("\n  ".join(rows)), event_text.Piece("\n")]
        )

    def changed(self) -> None:
        """Something else is to be seen: it is, with the next frame."""
        if self._frame is None:
            loop = asyncio.get_running_loop()
            self._frame = loop.call_at(max(self._drawn + FRAME, loop.time()), self._draw)

    def ready(self) -> None:
        """Nothing goes on any more: here, people could type all the while."""

    async def line(self, words: str) -> str | None:
        """What is typed behind these words, from now on; None: Ctrl-C.

        What stood at the prompt is back afterwards. It is no part of the answer, nor is what somebody types who is in
        the middle of it.
        """
        loop, buffer = asyncio.get_running_loop(), self._session.default_buffer
        while buffer.text and (rest := self._pressed + PAUSE - loop.time()) > 0:
            await asyncio.sleep(rest)
        self._asked = asked = Question(words, loop.create_future(), buffer.document)
        buffer.reset()
        self._session.app.invalidate()
        try:
            return await asked.answer
        finally:
            self._settle(asked)

    def remember(self, line: str) -> None:
        """Keep it among what was typed: the arrows bring it back."""
        self._session.default_buffer.history.append_string(line)

    def draft(self, line: str) -> None:
        """Have it at the prompt, behind what stands there already."""
        buffer = self._session.default_buffer
        words = f"{buffer.text}\n{line}" if buffer.text else line
        buffer.reset(Document(words))

    # --- for the keys --------------------------------------------------------------------------------

    def entered(self) -> None:
        buffer = self._session.default_buffer
        words = buffer.text
        if self._asked is not None:
            self._answered(self._asked, words)
            return
        buffer.append_to_history()
        buffer.reset()
        self._person.typed(words)

    def interrupted(self) -> None:
        if self._asked is not None:
            self._answered(self._asked, None)
        else:
            self._person.interrupted()

    def left(self) -> None:
        self._person.leave()

    def _answered(self, asked: Question, words: str | None) -> None:
        asked.answer.set_result(words)
        # At once: the next key is no answer any more.
        self._settle(asked)
        # With Enter a line is over: what is asked next has nobody to wait for.
        self._pressed = -PAUSE

    def _settle(self, asked: Question) -> None:
        if self._asked is asked:
            self._asked = None
            self._session.default_buffer.reset(asked.before)
            self._session.app.invalidate()

    def _press(self, _: object) -> None:
        self._pressed = asyncio.get_running_loop().time()

    def _is_command(self) -> bool:
        return completion.begins_command(get_app().current_buffer.document.text_before_cursor)

    # --- drawing -------------------------------------------------------------------------------------

    def _mark(self) -> formatted_text.FormattedText:
        return formatted_text.FormattedText([("bold", self._asked.words if self._asked else MARK)])

    def _draw(self) -> None:
        self._frame, self._drawn = None, asyncio.get_running_loop().time()
        self._session.app.invalidate()

    def _finished(self) -> str:
        """What is to be printed above, once."""
        words, self._above = self._spelled("".join(self._above)), []
        return words.replace("\n", "\r\n")

    def _print_now(self) -> None:
        """Without a prompt it is written as it comes."""
        self._paper.out.write("".join(self._above))
        self._paper.out.flush()
        self._above = []

    def _open(self) -> formatted_text.FormattedText:
        return formatted_text.FormattedText(
            [(f"class:{style}" if style else "", words) for words, style in self._tail()]
        )

    def _tail(self) -> list[event_text.Piece]:
        """The end of what is being written: more than the terminal has room for is not looked at."""
        size, tail = self._screen.get_size(), list[event_text.Piece]()
        room = size.columns * size.rows
        pieces = [*self._line, *([event_text.Piece("\n")] if self._line else ()), *self._shown.open()]
        for words, style in reversed(pieces):
            if room <= 0:
                break
            tail.insert(0, event_text.Piece(self._spelled(words[-room:]), style))
            room -= len(words)
        if tail:
            tail[-1] = event_text.Piece(tail[-1].text.removesuffix("\n"), tail[-1].style)
        return tail

    def _end_of_open(self) -> Point:
        last = "".join(piece.text for piece in self._tail()).split("\n")
        return Point(len(last[-1]), len(last) - 1)

    def _gap(self) -> Dimension:
        """An empty row over the line, unless there is one already."""
        wanted = 0 if self._blank and not self._tail() else 1
        return Dimension(min=0, max=wanted, preferred=wanted)

    def _spelled(self, words: str) -> str:
        """What the terminal's encoding has no letters for is spelled out."""
        encoding = self._paper.out.encoding or "utf-8"
        return words.encode(encoding, "backslashreplace").decode(encoding)
