"""The full screen on this terminal, from its store and its model to its end."""

from __future__ import annotations

import os
from typing import NamedTuple

from holdfast import config
from holdfast.app import compose
from holdfast.cli import chat, console, shutdown
from holdfast.cli import welcome as cli_welcome
from holdfast.terminal import event_text
from holdfast.tui import app as screens


class Asked(NamedTuple):
    """What the command line says."""

    go_on: bool
    resume: str | None
    light: bool
    model: str | None
    settings: config.Settings
    path: str | None


def run(out: console.Console, asked: Asked) -> int:
    """Talk until the person leaves; the exit code."""
    said = chat.Asked(asked.go_on, asked.resume, None, None, False, asked.model, None, None, None, asked.path)
    return shutdown.run(_talk(out, chat.start(out, said, asked.settings), asked.light))


async def _talk(out: console.Console, start: chat.Start, light: bool) -> int:
    async with compose.start(start.settings, database=start.database, model=start.model) as app:
        named = bool(start.model or start.settings.model)
        welcome = await cli_welcome.words(app.db, start.settings, app.model, named)
        opening = screens.Opening(
            conversation_id=start.conversation_id,
            model=app.model,
            history=os.path.join(start.settings.home, "history"),
            notice=" ".join(line for line in (app.notice, welcome, start.notice) if line) or None,
            light=light,
        )
        marks = event_text.PLAIN if out.glyphs == console.ASCII else event_text.Marks()
        screen = screens.FullScreen(app.runtime, opening, marks)
        await screen.run_async()
        if (unsent := screen.talk.give_up()) is not None:
            out.note(unsent)
        for stopped in await screen.talk.stop_elsewhere():
            out.note(stopped)
    return screen.return_code or 0
