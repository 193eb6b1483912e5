"""The chat and the full screen on this terminal, from opening the store to the end of the session."""

from __future__ import annotations

import os
import time

import holdfast
from holdfast import config, errors
from holdfast.app import compose
from holdfast.cli import chat, console, lazy_group, shutdown
from holdfast.store import async_db
from holdfast.terminal import event_text

WELCOMED = "welcomed_at"
"""The metadata key of the store that records the welcome message."""


def run_chat(out: console.Console, start: chat.Start) -> int:
    """Run the chat until the user leaves; returns the exit code."""
    return shutdown.run(_run_chat(out, start))


def run_tui(out: console.Console, start: chat.Start, light: bool) -> int:
    """Run the full screen until the user leaves; returns the exit code."""
    return shutdown.run(_run_tui(out, start, light))


async def _run_chat(out: console.Console, start: chat.Start) -> int:
    chats = lazy_group.load("holdfast.chat.chat")
    async with compose.start(start.settings, database=start.database, model=start.model) as app:
        opening = chats.ChatOptions(
            conversation_id=start.conversation_id,
            program=f"Holdfast {holdfast.__version__}",
            model=app.model,
            history=os.path.join(start.settings.home, "history"),
            notice=await _notices(app, start),
        )
        await chats.Chat(app.runtime, out, opening, _marks(out)).run()
    return 0


async def _run_tui(out: console.Console, start: chat.Start, light: bool) -> int:
    screens = lazy_group.load("holdfast.tui.app")
    async with compose.start(start.settings, database=start.database, model=start.model) as app:
        opening = screens.ScreenOptions(
            conversation_id=start.conversation_id,
            model=app.model,
            history=os.path.join(start.settings.home, "history"),
            notice=await _notices(app, start),
            light=light,
        )
        screen = screens.FullScreen(app.runtime, opening, _marks(out))
        await screen.run_async()
        if (unsent := screen.session.drop_queued()) is not None:
            out.note(unsent)
        for stopped in await screen.session.interrupt_others():
            out.note(stopped)
    return screen.return_code or 0


def _marks(out: console.Console) -> event_text.Marks:
    return event_text.PLAIN if out.glyphs == console.ASCII else event_text.Marks()


async def _notices(app: compose.RunningProgram, start: chat.Start) -> str | None:
    chosen = bool(start.model or start.settings.model)
    welcome = await _welcome(app.db, start.settings, None if chosen else app.model)
    return " ".join(line for line in (app.notice, welcome, start.notice) if line) or None


async def _welcome(db: async_db.AsyncSessionDB, settings: config.Settings, model: str | None) -> str | None:
    """Return a welcome message the first time: why this model was chosen, if it was, and where settings are."""
    try:
        if await db.admin.get_meta(WELCOMED) is not None:
            return None
        await db.admin.set_meta(WELCOMED, repr(time.time()))
    except errors.HoldfastError:
        return None  # The first message reports a store that cannot be written.
    provider = (model or "").partition("/")[0]
    reason = ""
    if provider in settings.providers and provider in settings.keys:
        reason = f"Using {model} because {settings.providers[provider].key_env} is set. "
    exists = settings.user_file in settings.files
    path = settings.user_file.replace(os.path.join(os.path.expanduser("~"), ""), "~/", 1)
    where = "Your settings are in" if exists else "There are no settings yet in"
    return f"{reason}{where} {path}: run `holdfast config edit` to change them."
