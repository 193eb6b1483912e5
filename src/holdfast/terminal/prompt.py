"""The line people type on: history, completion, lines that go on, and under it how things stand.

Enter sends. Alt-Enter begins a new line, and what is pasted keeps its lines.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from prompt_toolkit import PromptSession, filters, formatted_text, styles
from prompt_toolkit.application import get_app
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completion
from prompt_toolkit.data_structures import Size
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import color_depth, vt100

from holdfast.terminal import completion, history

Session = PromptSession[str]

KEYS = (
    "Enter sends, Alt-Enter begins a new line, Tab completes commands, what they take, and paths.",
    "Ctrl-C stops the answer; at an empty prompt, twice leaves. Ctrl-D leaves.",
    "//text sends a line that begins with a slash.",
)


STYLE = styles.Style(
    [
        ("bottom-toolbar", "noreverse"),
        ("bottom-toolbar.text", "noreverse"),
        ("status", "fg:ansibrightblack"),
        ("status.soft", "fg:ansiyellow"),
        ("status.hard", "fg:ansired"),
    ]
)


class Screen(vt100.Vt100_Output):
    """The terminal. Where its cursor is, is not asked: the answer would arrive as if typed, at any later moment."""

    def get_rows_below_cursor_position(self) -> int:
        """One is always there, or made by scrolling: enough to know that something can be drawn under the prompt."""
        return 1


def session(
    history_path: str,
    *,
    colour: bool,
    completer: completion.Words | None = None,
    standing: Callable[[], Any] | None = None,
) -> Session:
    """A prompt on the terminal this process was started in."""
    output = Screen(sys.stdout, _size, enable_cpr=False)
    depth = color_depth.ColorDepth.DEPTH_4_BIT if colour else color_depth.ColorDepth.DEPTH_1_BIT
    return PromptSession(
        formatted_text.FormattedText([("bold", "> ")]),
        multiline=True,
        prompt_continuation="  ",
        history=history.at(history_path),
        completer=completer or completion.Words(),
        complete_while_typing=filters.Condition(_typing_a_command),
        key_bindings=_bindings(),
        bottom_toolbar=standing,
        style=STYLE,
        color_depth=depth,
        output=output,
        refresh_interval=0,
    )


def _size() -> Size:
    """As large as the terminal is now. Some pseudo-terminals say 0."""
    try:
        found = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        found = os.terminal_size((0, 0))
    return Size(rows=found.lines or 24, columns=found.columns or 80)


def _typing_a_command() -> bool:
    return completion.begins_command(get_app().current_buffer.document.text_before_cursor)


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")
    def _send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @bindings.add("tab")
    def _complete(event: KeyPressEvent) -> None:
        line = event.current_buffer
        if line.complete_state is not None:
            line.complete_next()
            return
        if completion.begins_argument(line.document.text_before_cursor):
            event.app.create_background_task(_offered(line))
            return
        # Looked up here and now: while the menu is on its way, a Tab would be lost.
        found = line.completer.get_completions(line.document, CompleteEvent(completion_requested=True))
        _offer(line, list(found))

    @bindings.add("escape", "enter")
    def _go_on(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return bindings


async def _offered(line: Buffer) -> None:
    """What the store has to be asked for; whoever has typed on meanwhile is not disturbed."""
    asked = line.document
    found = line.completer.get_completions_async(asked, CompleteEvent(completion_requested=True))
    every = [each async for each in found]
    if line.document == asked:
        _offer(line, every)


def _offer(line: Buffer, found: list[Completion]) -> None:
    if len(found) == 1:
        line.apply_completion(found[0])
    elif found:
        line.start_completion(insert_common_part=True)
