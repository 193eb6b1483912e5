"""The chat on this terminal, from its store and its model to its end."""

from __future__ import annotations

import os

import holdfast
from holdfast.app import compose
from holdfast.chat import chat as chat_chat
from holdfast.cli import chat as cli_chat
from holdfast.cli import console, shutdown
from holdfast.cli import welcome as cli_welcome
from holdfast.terminal import event_text


def run(out: console.Console, start: cli_chat.Start) -> int:
    """Talk until the person leaves; the exit code."""
    return shutdown.run(_talk(out, start))


async def _talk(out: console.Console, start: cli_chat.Start) -> int:
    async with compose.start(start.settings, database=start.database, model=start.model) as app:
        named = bool(start.model or start.settings.model)
        welcome = await cli_welcome.words(app.db, start.settings, app.model, named)
        opening = chat_chat.Opening(
            conversation_id=start.conversation_id,
            program=f"Holdfast {holdfast.__version__}",
            model=app.model,
            history=os.path.join(start.settings.home, "history"),
            notice=" ".join(line for line in (app.notice, welcome, start.notice) if line) or None,
        )
        marks = event_text.PLAIN if out.glyphs == console.ASCII else event_text.Marks()
        await chat_chat.Chat(app.runtime, out, opening, marks).run()
    return 0
