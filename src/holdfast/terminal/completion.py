"""What Tab completes: slash commands at the beginning of a line and what may stand behind them, paths anywhere."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from holdfast import safe_text
from holdfast.agent import commands

MOST = 200


Listed = Callable[[], Sequence[commands.CommandInfo]]
Arguments = Callable[[str], Awaitable[Sequence[commands.Candidate]]]
"""What a line with a command and the beginning of its argument may become, each the whole line."""


async def nothing(_: str) -> Sequence[commands.Candidate]:
    return ()


class Words(Completer):
    """Commands are offered while they are typed; the rest only when Tab asks, as most words are neither."""

    def __init__(self, more: Listed = lambda: (), arguments: Arguments = nothing) -> None:
        self._more, self._arguments = more, arguments

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """All that can be said at once."""
        before = document.text_before_cursor
        if begins_command(before):
            yield from _commands(before, [*commands.COMMANDS.values(), *self._more()])
        if complete_event.completion_requested:
            yield from _paths(re.split(r"\s", before)[-1])

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        """The same, and what the store has to be asked for."""
        before = document.text_before_cursor
        found: Sequence[commands.Candidate] = ()
        if complete_event.completion_requested and begins_argument(before):
            found = await self._arguments(before)
        for each in found[:MOST]:
            shown = safe_text.safe(each.value.partition(" ")[2])
            yield Completion(each.value, -len(before), display=shown, display_meta=safe_text.safe(each.help))
        if not (found or _takes_listed(before)):
            for completion in self.get_completions(document, complete_event):
                yield completion


def begins_command(before: str) -> bool:
    """Whether the name of a command is being typed."""
    return re.fullmatch(r"/[\w:-]*", before) is not None


def begins_argument(before: str) -> bool:
    """Whether what a command takes is being typed."""
    return re.fullmatch(r"/[\w:-]+ .*", before) is not None


def _takes_listed(before: str) -> bool:
    """Whether it is known what the command takes: then a path is none of it."""
    slash = commands.COMMANDS.get(before[1:].partition(" ")[0])
    return slash is not None and slash.completes is not None and begins_argument(before)


def _commands(before: str, every: Iterable[commands.CommandInfo]) -> Iterator[Completion]:
    for slash in every:
        if slash.name.startswith(before[1:]):
            name = f"/{slash.name}{' ' if slash.argument else ''}"
            shown = f"/{slash.name} {slash.argument}".rstrip()
            yield Completion(name, -len(before), display=shown, display_meta=slash.help)


def _paths(word: str) -> Iterator[Completion]:
    folder, begun = os.path.split(word)
    try:
        with os.scandir(os.path.expanduser(folder) or ".") as entries:
            found = sorted(
                (entry.name, entry.is_dir())
                for entry in entries
                if entry.name.startswith(begun) and (begun or not entry.name.startswith("."))
            )
    except (OSError, ValueError):
        return
    for name, is_folder in found[:MOST]:
        shown = f"{name}{os.sep if is_folder else ''}"
        yield Completion(shown[len(begun) :], display=shown)
