"""The command palette: all slash commands of the registry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.markup import escape

from holdfast.agent import commands

HELP_WEIGHT = 0.8


class CommandApp(Protocol):
    """An app that runs slash commands."""

    def list_commands(self) -> Sequence[commands.CommandInfo]: ...
    def run_command(self, command: commands.CommandInfo) -> None: ...


class SlashCommands(Provider):
    """Finds commands by name and by description."""

    def _commands(self) -> list[tuple[commands.CommandInfo, str, Callable[[], None]]]:
        app = cast("CommandApp", self.app)  # Textual creates providers by class and passes no arguments.
        return [
            (each, f"/{each.name} {each.argument}".rstrip(), partial(app.run_command, each))
            for each in app.list_commands()
        ]

    async def discover(self) -> Hits:
        """Offer all commands."""
        for each, usage, run in self._commands():
            yield DiscoveryHit(Content(usage), run, usage, escape(each.help))

    async def search(self, query: str) -> Hits:
        """Offer the commands that match."""
        matcher = self.matcher(query)
        for each, usage, run in self._commands():
            name = f"/{each.name}"
            score = max(matcher.match(name), matcher.match(each.help) * HELP_WEIGHT)
            if score > 0:
                # Only the name is highlighted: brackets of the arguments would be read as markup.
                shown = Content.assemble(matcher.highlight(name), usage.removeprefix(name))
                yield Hit(score, shown, run, usage, escape(each.help))
