"""`holdfast tour`: a short conversation with the offline model, played and printed, in a place of its own.

What it shows is checked while it is shown: something told is found again after a compaction, and after the program
was closed. Nothing of the person's own store, settings or keys is touched.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from typing import NamedTuple

import click

from holdfast import config, errors, events, safe_text
from holdfast.app import compose, open_store
from holdfast.cli import chat, console, sessions, shutdown
from holdfast.runtime import single_turn
from holdfast.store import conversation_row
from holdfast.terminal import event_text

BOOK = "ferries.txt"
# Long enough that there is something to sum up.
FERRIES = "".join(f"The ferry to island {number} sails at noon, weather permitting.\n" for number in range(1, 401))
LINES = 6


class Scene(NamedTuple):
    """Something that is said, and what the answer must have in it."""

    line: str
    answer: str = ""


FIRST: tuple[Scene, ...] = (
    Scene("Our train to Porto leaves at 9:40 from platform 4."),
    Scene("Ines carries the tent, Tom the stove, and I have the water filter."),
    Scene(f"read {BOOK}", "The ferry to island 1 sails at noon"),
    Scene("We walked 18 km today, from Caminha to Oia."),
    Scene("/compact here 1"),
    Scene("From which platform do we leave?", "platform 4"),
)
LATER: tuple[Scene, ...] = (Scene("Who carries the stove?", "Tom the stove"), Scene("/recall 1", "9:40"))


@click.command(name="tour")
@click.pass_obj
def command(out: console.Console) -> int:
    """Watch a short conversation with the offline model: facts, a tool, a compaction, and what is remembered.

    It is played in a place of its own, which is removed afterwards.
    """
    chat.keep_logs(config.load({}, files=False))
    with tempfile.TemporaryDirectory(prefix="holdfast-tour-") as folder:
        return shutdown.run(_play(out, folder))


async def _play(out: console.Console, folder: str) -> int:
    # Only what is said here counts: no key, no file of settings, no server of tools.
    settings = config.load({"HOLDFAST_HOME": os.path.join(folder, "home"), "HOLDFAST_MODEL": "offline"}, files=False)
    with open(os.path.join(folder, BOOK), "w", encoding="utf-8") as file:
        file.write(FERRIES)
    out.prose("A short conversation with the built-in offline model, in a place of its own.", "bold")
    tour = Tour(out, settings, folder)
    await tour.play(conversation_row.generate_session_id(time.time()), FIRST)
    out.print()
    out.prose("The program was closed. `holdfast --continue` goes on where it was:", "bold")
    with open_store.open_existing(settings.database) as db:
        here = sessions.find(db, "last").conversation_id
    await tour.play(here, LATER)
    with open_store.open_existing(settings.database) as db:
        sound, kept, made = db.admin.fsck().ok, db.resolve(here).last_seq, len(db.compactions(here))
    if tour.missed or not (sound and made):
        raise errors.HoldfastError(f"The tour did not go as it should: {', '.join(tour.missed) or 'the store'}.")
    out.print()
    out.prose(
        f"{kept} messages were stored, {safe_text.count(made, 'compaction')} made; every check of the store passed."
    )
    out.prose("Your turn: `holdfast` opens a chat in a terminal, `holdfast -p TEXT` sends one message.")
    return 0


class Tour:
    """The conversation, as it is shown."""

    def __init__(self, out: console.Console, settings: config.Settings, folder: str) -> None:
        self._out, self._settings, self._folder = out, settings, folder
        self._page = event_text.Page(
            event_text.PLAIN if out.glyphs == console.ASCII else event_text.Marks(), lambda: out.width or 100
        )
        self._heard: list[str] = []
        self.missed: list[str] = []

    async def play(self, conversation_id: str, scenes: Sequence[Scene]) -> None:
        """Start the program, say all of this, and close it."""
        started = compose.start(self._settings, source="tour", folder=self._folder, reviews=False)
        async with started as program:
            for line, answer in scenes:
                self._heard.clear()
                self._out.print()
                self._out.prose(f"> {line}", "bold")
                if line.startswith("/"):
                    await single_turn.command(program.runtime, conversation_id, line, self._show)
                else:
                    await single_turn.Asking(program.runtime, conversation_id, self._show).ask(line)
                self._answered()
                if answer not in "".join(self._heard):
                    self.missed.append(line)

    def _show(self, event: events.AnyEvent) -> None:
        match event:
            case events.TextDelta(words) | events.Answer(words):
                self._heard.append(words)
            case events.TurnFinished(result) if result.completed:
                pass
            case _:
                self._write(self._page.draw(event))

    def _answered(self) -> None:
        """The answer, as far as one wants to see it here."""
        lines = "".join(self._heard).strip("\n").splitlines()
        more = (
            [f"{self._page.marks.more} {safe_text.count(len(lines) - LINES, 'more line')}"]
            if len(lines) > LINES
            else []
        )
        if lines:
            self._write(self._page.lines("\n".join([*lines[:LINES], *more])))

    def _write(self, pieces: Sequence[event_text.Piece]) -> None:
        for words, style in pieces:
            self._out.out.write(self._out.style(words, style) if style and words else words)
        self._out.out.flush()
