"""What Tab completes: slash commands at the beginning of a line, paths anywhere."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from holdfast.agent import commands

MOST = 200


Listed = Callable[[], Sequence[commands.Standing]]


class Words(Completer):
    """Commands are offered while they are typed; paths only when Tab asks, as most words are none."""

    def __init__(self, more: Listed = lambda: ()) -> None:
        self._more = more

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        before = document.text_before_cursor
        if begins_command(before):
            yield from _commands(before, [*commands.COMMANDS.values(), *self._more()])
        if complete_event.completion_requested:
            yield from _paths(re.split(r"\s", before)[-1])


def begins_command(before: str) -> bool:
    """Whether the name of a command is being typed."""
    return re.fullmatch(r"/[\w:-]*", before) is not None


def _commands(before: str, every: Iterable[commands.Standing]) -> Iterator[Completion]:
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
