"""The chat on this terminal, from its store and its model to its end."""

from __future__ import annotations

import os

import holdfast
from holdfast.app import running
from holdfast.cli import chatting, console, leaving, welcoming
from holdfast.terminal import chat, show


def run(out: console.Console, start: chatting.Start) -> int:
    """Talk until the person leaves; the exit code."""
    return leaving.run(_talk(out, start))


async def _talk(out: console.Console, start: chatting.Start) -> int:
    async with running.started(start.settings, database=start.database, model=start.model) as app:
        named = bool(start.model or start.settings.model)
        welcome = await welcoming.words(app.db, start.settings, app.model, named)
        opening = chat.Opening(
            conversation_id=start.conversation_id,
            program=f"Holdfast {holdfast.__version__}",
            model=app.model,
            history=os.path.join(start.settings.home, "history"),
            notice=" ".join(line for line in (app.notice, welcome, start.notice) if line) or None,
        )
        marks = show.PLAIN if out.glyphs == console.ASCII else show.Marks()
        await chat.Chat(app.runtime, out, opening, marks).run()
    return 0
