"""What the keys do at the prompt.

Enter sends. Alt-Enter begins a new line, and what is pasted keeps its lines.
"""

from __future__ import annotations

from typing import Protocol

from prompt_toolkit import filters
from prompt_toolkit.application import get_app
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completion
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from holdfast.terminal import completion

HELP = (
    "Enter sends, Alt-Enter begins a new line, Tab completes commands, what they take, and paths.",
    "While an answer comes, what you send waits for it: /queue lists it. /steer TEXT tells the answer something now.",
    "Ctrl-C takes a line back; at an empty prompt it stops the answer, and twice leaves. Ctrl-D leaves.",
    "//text sends a line that begins with a slash.",
)


class Typist(Protocol):
    """Who is told."""

    def entered(self) -> None:
        """What stands at the prompt is meant."""

    def interrupted(self) -> None:
        """Ctrl-C at an empty prompt."""

    def left(self) -> None:
        """Ctrl-D at an empty prompt."""


def bindings(typist: Typist) -> KeyBindings:
    """All that differs from what is usual."""
    found = KeyBindings()
    typing = filters.has_focus(DEFAULT_BUFFER)
    empty = filters.Condition(lambda: not get_app().current_buffer.text)

    @found.add("enter", filter=typing)
    def _send(_: KeyPressEvent) -> None:
        typist.entered()

    @found.add("c-c", filter=typing)
    @found.add("<sigint>")
    def _stop(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            typist.interrupted()

    @found.add("c-d", filter=typing & empty)
    def _leave(_: KeyPressEvent) -> None:
        typist.left()

    @found.add("tab", filter=typing)
    def _complete(event: KeyPressEvent) -> None:
        complete(event)

    @found.add("escape", "enter", filter=typing)
    def _go_on(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return found


def complete(event: KeyPressEvent) -> None:
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
