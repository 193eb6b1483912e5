"""`holdfast tour`: play a short conversation with the offline model in a temporary directory.

The tour verifies what it shows: facts are found again after a compaction, and after a restart. It does not use the
store, the settings or the API keys of the user.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence

import click

from holdfast import config, errors, events, safe_text
from holdfast.app import compose, open_store
from holdfast.cli import chat, console, session_choice, shutdown
from holdfast.runtime import single_turn
from holdfast.store import conversation_row
from holdfast.terminal import event_text

FILE = "ferries.txt"
# Long enough for a compaction.
TIMETABLE = "".join(f"The ferry to island {number} sails at noon, weather permitting.\n" for number in range(1, 401))
MAX_LINES = 6


Step = tuple[str, str]
"""A message or command, and a text that the answer must contain."""
FIRST: tuple[Step, ...] = (
    ("Our train to Porto leaves at 9:40 from platform 4.", ""),
    ("Ines carries the tent, Tom the stove, and I have the water filter.", ""),
    (f"read {FILE}", "The ferry to island 1 sails at noon"),
    ("We walked 18 km today, from Caminha to Oia.", ""),
    ("/compact here 1", ""),
    ("From which platform do we leave?", "platform 4"),
)
LATER: tuple[Step, ...] = (("Who carries the stove?", "Tom the stove"), ("/recall 1", "9:40"))


@click.command(name="tour")
@click.pass_obj
def command(out: console.Console) -> int:
    """Play a short conversation with the offline model: facts, a tool, a compaction, and recall.

    It runs in a temporary directory, which is removed afterwards.
    """
    chat.log_to_file(config.load({}, files=False))
    with tempfile.TemporaryDirectory(prefix="holdfast-tour-") as folder:
        return shutdown.run(_play(out, folder))


async def _play(out: console.Console, folder: str) -> int:
    # Without API keys, settings files and MCP servers.
    settings = config.load({"HOLDFAST_HOME": os.path.join(folder, "home"), "HOLDFAST_MODEL": "offline"}, files=False)
    with open(os.path.join(folder, FILE), "w", encoding="utf-8") as file:
        file.write(TIMETABLE)
    out.prose("A short conversation with the built-in offline model, in a temporary directory.", "bold")
    tour = Tour(out, settings, folder)
    await tour.play(conversation_row.generate_session_id(time.time()), FIRST)
    out.print()
    out.prose("The program was restarted. `holdfast --continue` continues the conversation:", "bold")
    with open_store.open_existing(settings.database) as db:
        here = session_choice.find(db, "last").conversation_id
    await tour.play(here, LATER)
    with open_store.open_existing(settings.database) as db:
        sound, kept, made = db.admin.fsck().ok, db.resolve(here).last_seq, len(db.compactions(here))
    if tour.missed or not (sound and made):
        failed = ", ".join(tour.missed) or "the check of the store"
        raise errors.HoldfastError(f"The tour failed at: {failed}. Please report this.")
    out.print()
    out.prose(f"{kept} messages stored, {safe_text.count(made, 'compaction')}; the store passed every check.")
    out.prose("Next: run `holdfast` to start a chat, or `holdfast -p TEXT` to send one message.")
    return 0


class Tour:
    """Plays the steps, and prints messages and answers."""

    def __init__(self, out: console.Console, settings: config.Settings, folder: str) -> None:
        self._out, self._settings, self._folder = out, settings, folder
        self._page = event_text.EventRenderer(
            event_text.PLAIN if out.glyphs == console.ASCII else event_text.Marks(), lambda: out.width or 100
        )
        self._answer: list[str] = []
        self.missed: list[str] = []

    async def play(self, conversation_id: str, steps: Sequence[Step]) -> None:
        """Start the program, run the steps, and close it."""
        started = compose.start(self._settings, source="tour", folder=self._folder, reviews=False)
        async with started as program:
            for line, answer in steps:
                self._answer.clear()
                self._out.print()
                self._out.prose(f"> {line}", "bold")
                if line.startswith("/"):
                    await single_turn.run_command(program.runtime, conversation_id, line, self._show)
                else:
                    await single_turn.SingleTurn(program.runtime, conversation_id, self._show).run(line)
                self._print_answer()
                if answer not in "".join(self._answer):
                    self.missed.append(line)

    def _show(self, event: events.AnyEvent) -> None:
        match event:
            case events.TextDelta(words) | events.Answer(words):
                self._answer.append(words)
            case events.TurnFinished(result) if result.completed:
                pass
            case _:
                self._write(self._page.draw(event))

    def _print_answer(self) -> None:
        """Print the first lines of the answer."""
        lines = "".join(self._answer).strip("\n").splitlines()
        if len(lines) > MAX_LINES:
            more = safe_text.count(len(lines) - MAX_LINES, "more line")
            lines = [*lines[:MAX_LINES], f"{self._page.marks.more} {more}"]
        if lines:
            self._write(self._page.lines("\n".join(lines)))

    def _write(self, pieces: Sequence[event_text.StyledText]) -> None:
        for words, style in pieces:
            self._out.out.write(self._out.style(words, style) if style and words else words)
        self._out.out.flush()
