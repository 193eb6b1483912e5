"""The command palette: every command there is, from the one registry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.markup import escape

from holdfast.agent import commands


class Commanded(Protocol):
    """Who carries them out."""

    def listed(self) -> Sequence[commands.CommandInfo]: ...
    def take(self, command: commands.CommandInfo) -> None:
        """A command was picked."""


class Commands(Provider):
    """Found by name, and by what they do."""

    def _every(self) -> list[tuple[commands.CommandInfo, str, Callable[[], None]]]:
        # Textual makes these by class, so whose they are is known from where they are.
        app = cast("Commanded", self.app)
        return [(each, f"/{each.name} {each.argument}".rstrip(), partial(app.take, each)) for each in app.listed()]

    async def discover(self) -> Hits:
        for each, form, take in self._every():
            yield DiscoveryHit(Content(form), take, form, escape(each.help))

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for each, form, take in self._every():
            name = f"/{each.name}"
            score = max(matcher.match(name), matcher.match(each.help) * 0.8)
            if score > 0:
                # Only the name: what it takes stands in brackets, which would be read as a style.
                shown = Content.assemble(matcher.highlight(name), form.removeprefix(name))
                yield Hit(score, shown, take, form, escape(each.help))
