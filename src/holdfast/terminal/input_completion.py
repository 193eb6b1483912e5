"""Tab completion: slash commands at the beginning of a line, their arguments, and paths anywhere."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from holdfast import safe_text
from holdfast.agent import commands

MAX_CANDIDATES = 200

ListCommands = Callable[[], Sequence[commands.CommandInfo]]
CompleteArgument = Callable[[str], Awaitable[Sequence[commands.Candidate]]]
"""Returns the whole lines that a command with the beginning of an argument may become."""


async def complete_nothing(_: str) -> Sequence[commands.Candidate]:
    """Offer no arguments."""
    return ()


class InputCompleter(Completer):
    """Completes commands while they are typed; arguments and paths only on Tab."""

    def __init__(
        self, more_commands: ListCommands = lambda: (), complete_argument: CompleteArgument = complete_nothing
    ) -> None:
        self._more_commands, self._complete_argument = more_commands, complete_argument

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Return the candidates that need no look-up in the store."""
        before = document.text_before_cursor
        if is_command_name(before):
            yield from _complete_command(before, [*commands.COMMANDS.values(), *self._more_commands()])
        if complete_event.completion_requested:
            yield from _complete_path(re.split(r"\s", before)[-1])

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        """Return all candidates."""
        before = document.text_before_cursor
        found: Sequence[commands.Candidate] = ()
        if complete_event.completion_requested and is_argument(before):
            found = await self._complete_argument(before)
        for each in found[:MAX_CANDIDATES]:
            shown = safe_text.safe(each.value.partition(" ")[2])
            yield Completion(each.value, -len(before), display=shown, display_meta=safe_text.safe(each.help))
        if not (found or _completes_arguments(before)):
            for completion in self.get_completions(document, complete_event):
                yield completion


def is_command_name(before: str) -> bool:
    """Return whether the text before the cursor is the beginning of a command."""
    return re.fullmatch(r"/[\w:-]*", before) is not None


def is_argument(before: str) -> bool:
    """Return whether the text before the cursor is a command with the beginning of an argument."""
    return re.fullmatch(r"/[\w:-]+ .*", before) is not None


def _completes_arguments(before: str) -> bool:
    """Return whether the command has candidates of its own, so that paths are not offered."""
    command = commands.COMMANDS.get(before[1:].partition(" ")[0])
    return command is not None and command.completes is not None and is_argument(before)


def _complete_command(before: str, every: Iterable[commands.CommandInfo]) -> Iterator[Completion]:
    for command in every:
        if command.name.startswith(before[1:]):
            text = f"/{command.name}{' ' if command.argument else ''}"
            shown = f"/{command.name} {command.argument}".rstrip()
            yield Completion(text, -len(before), display=shown, display_meta=command.help)


def _complete_path(word: str) -> Iterator[Completion]:
    folder, prefix = os.path.split(word)
    try:
        with os.scandir(os.path.expanduser(folder) or ".") as entries:
            found = sorted(
                (entry.name, entry.is_dir())
                for entry in entries
                if entry.name.startswith(prefix) and (prefix or not entry.name.startswith("."))
            )
    except (OSError, ValueError):
        return
    for name, is_folder in found[:MAX_CANDIDATES]:
        shown = f"{name}{os.sep if is_folder else ''}"
        yield Completion(shown[len(prefix) :], display=shown)
