"""The full screen: a transcript that opens at once however long it is, a prompt, a panel for questions of tools.

A front end like any other: it sends commands to the runtime and renders events, and knows one conversation at a time.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import ClassVar

import msgspec
from rich.text import Text
from textual import events as keys
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Static

from holdfast import errors, events, types
from holdfast.agent import commands
from holdfast.runtime import interactive, runtime
from holdfast.terminal import completion, event_text, recap
from holdfast.tui import (
    approval_panel,
    compaction_view,
    conversation_list,
    entries,
    entry_rows,
    live_turn,
    notices,
    overlays,
    palette,
    prompt_input,
    status_poller,
    suspend,
    transcript,
    transcript_source,
)
from holdfast.tui import theme as tui_theme

ONCE_MORE = "Ctrl-C once more leaves, as Ctrl-Q does."
# Seconds for which that is so.
WARNED = 3.0
INTERRUPTED = 130
# Seconds between looks at what goes on beside the talk: while something does, and while nothing seems to.
LOOK, GLANCE = 1.0, 3.0
# Seconds between two drawings of what streams in, and of what moves.
FRAME, PULSE = 0.03, 0.12


class Opening(msgspec.Struct, frozen=True):
    """How it begins."""

    conversation_id: str
    """The conversation; one that nobody knows yet begins with the first message."""
    model: str
    history: str
    """The file of what was typed before."""
    notice: str | None = None
    light: bool = False


class FullScreen(App[None]):
    """One person at one terminal."""

    CSS = tui_theme.CSS
    TITLE = "Holdfast"
    # Where there are but a few rows, they are for what is said and written.
    VERTICAL_BREAKPOINTS = tui_theme.ROWS
    COMMANDS = App.COMMANDS | {palette.Commands}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "stop", "stop", priority=True, system=True),
        Binding("ctrl+q", "leave", "leave", priority=True),
        Binding("ctrl+d", "done", "leave, where nothing is written", show=False, priority=True),
        Binding("ctrl+o", "conversations", "conversations", priority=True),
        Binding("ctrl+t", "turn_light", "light or dark", priority=True),
        Binding("ctrl+z", "suspend_process", "to the shell; fg comes back", priority=True),
        Binding("f6", "walk", "transcript, question, prompt", priority=True),
        Binding("escape", "write", "back to the prompt", show=False),
    ]

    def __init__(self, door: runtime.Runtime, opening: Opening, marks: event_text.Marks | None = None) -> None:
        super().__init__()
        # Before anything is drawn, lest it be drawn twice.
        for theme in tui_theme.THEMES:
            self.register_theme(theme)
        self.ansi_theme_dark, self.ansi_theme_light = tui_theme.CODE_DARK, tui_theme.CODE_LIGHT
        self.theme = tui_theme.LIGHT if opening.light else tui_theme.DARK
        self.door, self.marks = door, marks or event_text.Marks()
        self.talk = interactive.Talk(door, opening.conversation_id, self)
        self._opening = opening
        self.transcript = transcript.Transcript(self._reader(), self.marks, id="transcript")
        self.question = approval_panel.Approval()
        words = completion.Words(door.prompt_commands.listed if door.prompt_commands else tuple, self._arguments)
        self.prompt = prompt_input.Prompt(words, opening.history)
        self.watched = status_poller.Watch(door, opening.model)
        self.transcript.tail = self._tail = live_turn.Tail(lambda: self.watched.standing.model)
        # Held here: while something lies over the screen, it is not found by its name.
        self._heading, self._offer = Static(id="heading", markup=False), Static(id="candidates", markup=False)
        self._progress, self._line = Static(id="progress"), Static(id="standing")
        self._reading = asyncio.Lock()
        self._turn_from: int | None = None
        self._stored = 0
        self._meanwhile: list[tuple[int, entries.Kind, str, events.Level]] = []
        self._moving: tuple[Text | None, Text] | None = None
        self._known: transcript_source.Told | None = None
        self._fault: str | None = None
        self._to_paint = False

    def compose(self) -> ComposeResult:
        yield self._heading
        yield self.transcript
        yield self._progress
        yield self.question
        yield self._offer
        yield self.prompt
        yield self._line

    async def on_mount(self) -> None:
        # A signal from outside; Ctrl-C is a key here. There are loops, and threads, that take none.
        with suppress(NotImplementedError, RuntimeError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, partial(self.exit, return_code=INTERRUPTED))
        # Textual has tasks begin before whoever makes them knows them; what is below here counts on the usual order.
        asyncio.get_running_loop().set_task_factory(None)
        self.prompt.focus()
        await self.talk.arrive()
        if self._opening.notice:
            self.transcript.aside("notice", self._opening.notice)
        self._pulsing = self.set_interval(PULSE, self._pulse, pause=True)
        self._calming = self.set_timer(WARNED, self.talk.calm, pause=True)
        for job in (self.talk.hear(), self.talk.work(), self._look()):
            self.run_worker(job, group="jobs")
        self.theme_changed_signal.subscribe(self, lambda _: self._repaint())

    def on_unmount(self) -> None:
        with suppress(NotImplementedError, RuntimeError):
            asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)

    @property
    def here(self) -> str:
        """The conversation this is."""
        return self.talk.here

    @property
    def covered(self) -> bool:
        """Whether something lies over the screen."""
        return len(self.screen_stack) > 1

    # --- where it is ---------------------------------------------------------------------------------

    async def arrived(self, left: str | None) -> None:
        """Show where the conversation stands, from its end."""
        self._turn_from, self._stored, self._meanwhile = None, 0, []
        async with self._reading:
            await self._show_from_end()
        if left is not None:
            self._aside("notice", f"The answer goes on there: /resume {left} goes back.")
        self._show_waiting()

    async def _show_from_end(self) -> None:
        self._fault, self._known = None, None
        try:
            self._known = told = await transcript_source.read(self.door.db, self.here)
            await self.transcript.show(told.story, self._reader())
            self._stored = told.story.last
            self._head(told.conversation)
            if self.door.running(self.here):
                self._turn_from = told.story.last + 1  # Nobody will tell that it began.
            elif await transcript_source.unfinished(self.door.db, told):
                self.transcript.aside("notice", f"{recap.UNFINISHED} {recap.AGAIN}", "warning")
        except errors.HoldfastError as error:
            await self._show_nothing()
            await self._unreadable(error)

    async def _show_nothing(self) -> None:
        self._known = None
        await self.transcript.show(entries.Story(), self._reader())
        self._head(None)

    async def _unreadable(self, error: errors.HoldfastError) -> None:
        """What keeps it from being read, told once; of what was deleted nothing stays on the screen."""
        if self._fault == str(error):
            return
        self._fault = str(error)
        if isinstance(error, errors.NoSuchSession) and self.transcript.story.last:
            await self._show_nothing()
        self._aside("notice", *recap.unread(error))

    def departed(self) -> None:
        self.question.leave()

    async def _refresh(self, turn_over: bool = False) -> None:
        """What the log has now; of a turn under way, the tail tells."""
        # One after the other, each looking anew: what was read before something never comes after it.
        here = self.here
        async with self._reading:
            if here != self.here:
                return  # It was left, and nothing of it is shown any more.
            try:
                await self._read_on(turn_over)
            except errors.HoldfastError as error:
                await self._unreadable(error)
            else:
                self._fault = None

    async def _read_on(self, turn_over: bool) -> None:
        upto = self._turn_from - 1 if self._turn_from is not None and not turn_over else None
        self._known = told = await transcript_source.read(self.door.db, self.here, upto, self._known)
        # What the log could not be asked for when a turn was over is still in the tail.
        over = turn_over or (self._turn_from is None and not self._tail.empty)
        await self.transcript.tell(told.story, turn_over=over)
        self._stored = max(self._stored, told.story.last)
        self._head(told.conversation)
        if over:
            for seq, kind, words, level in self._meanwhile:
                self.transcript.aside(kind, words, level, seq)
            self._meanwhile = []

    def _head(self, found: types.Conversation | None) -> None:
        self._heading.update(transcript_source.heading(found, self.transcript.story, self.marks))

    def _reader(self) -> transcript.Read:
        """Reads the conversation this is now, wherever one goes on."""
        return partial(self.door.db.transcript, self.here)

    # --- the person ----------------------------------------------------------------------------------

    def on_prompt_sent(self, sent: prompt_input.Prompt.Sent) -> None:
        self._sent(sent.line)

    def _sent(self, line: str) -> None:
        self.talk.typed(line)
        self.transcript.action_to_end()
        self._show_waiting()

    def on_text_area_changed(self) -> None:
        self.talk.calm()

    def on_key(self, event: keys.Key) -> None:
        """What is typed where no key means that is meant for the prompt."""
        if event.is_printable and event.key not in self.active_bindings:
            self._meant(event.character or "")

    def on_paste(self, event: keys.Paste) -> None:
        self._meant(event.text)

    def _meant(self, words: str) -> None:
        if not self.covered and not self.prompt.has_focus:
            self.set_focus(self.prompt)  # At once: what follows is for it, too.
            self.prompt.insert(words)

    def on_prompt_offered(self, offered: prompt_input.Prompt.Offered) -> None:
        self._offer.update(prompt_input.offered(offered.candidates, max(self.size.height // 3, 3)))
        self._offer.set_class(bool(offered.candidates), "shown")

    async def _arguments(self, line: str) -> Sequence[commands.Candidate]:
        return await commands.complete(self.door, self.here, line)

    def listed(self) -> Sequence[commands.CommandInfo]:
        """The commands of the palette."""
        return commands.list_commands(self.door)

    def take(self, command: commands.CommandInfo) -> None:
        """A command from the palette: carried out, or written to the prompt where it needs something behind it."""
        self.prompt.focus()
        if command.argument and not command.argument.startswith("["):
            self.prompt.keep()
            self.prompt.put(f"/{command.name} ")
        elif command.name == "resume":
            self.action_conversations()
        else:
            self._sent(f"/{command.name}")

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        yield SystemCommand("Light or dark", "Turn the lights on, or off.", self.action_turn_light)
        yield SystemCommand("Conversations", "Find another one, and see its lineage.", self.action_conversations)
        if screen.query("HelpPanel"):
            yield SystemCommand("Hide keys", "Hide what the keys do.", self.action_hide_help_panel)
        else:
            yield SystemCommand("Keys", "Show what the keys do here.", self.action_show_help_panel)

    def action_stop(self) -> None:
        """Copy what is marked; else take back what is written; else stop what runs; else leave, the second time."""
        if marked := self.screen.get_selected_text() or ("" if self.covered else self.prompt.selected_text):
            self.copy_to_clipboard(marked)
            # Once: the next one is for what runs.
            self.screen.clear_selection()
            self.prompt.move_cursor(self.prompt.cursor_location)
        elif self.covered:
            overlays.step_back(self)
        elif self.prompt.text:
            self.prompt.put("")
        else:
            self.talk.interrupted()

    def warned(self) -> None:
        self.notify(ONCE_MORE, timeout=WARNED)
        self._calming.stop()
        self._calming = self.set_timer(WARNED, self.talk.calm)

    def leave(self) -> None:
        self.exit()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return super().check_action(action, parameters) if action not in overlays.BENEATH or not self.covered else False

    def action_leave(self) -> None:
        self.exit()

    def action_suspend_process(self) -> None:
        suspend.step_out(self)

    def action_done(self) -> None:
        if not self.prompt.text:
            self.exit()

    def action_turn_light(self) -> None:
        self.theme = tui_theme.LIGHT if self.theme == tui_theme.DARK else tui_theme.DARK

    def action_write(self) -> None:
        self.set_focus(self.prompt)

    def action_walk(self) -> None:
        """From the prompt to a question, to the transcript, and back."""
        stops = [self.prompt, *([self.question] if self.question.asked else []), self.transcript]
        now = next((n for n, each in enumerate(stops) if each.has_focus), 0)
        self.set_focus(stops[(now + 1) % len(stops)])  # At once: the next key is for it.

    def on_prompt_paged(self, paged: prompt_input.Prompt.Paged) -> None:
        self.transcript.page(paged.step)

    def action_conversations(self) -> None:
        pen = entry_rows.Pen(0, self.transcript.ink, self.marks)
        found = conversation_list.Conversations(self.door.db, self.door.owner, self.here, pen)
        self.push_screen(found, self._picked)

    def _picked(self, conversation_id: str | None) -> None:
        if conversation_id is not None:
            self._sent(f"/resume {conversation_id}")

    def on_transcript_mark_opened(self, opened: transcript.Transcript.MarkOpened) -> None:
        shown = compaction_view.Compacted(opened.compaction, self.transcript.story, self.transcript.read, self.marks)
        self.push_screen(shown)

    # --- what was typed ------------------------------------------------------------------------------

    def commanded(self, line: str) -> None:
        self._show_waiting()
        self._aside("notice", f"{self.marks.call} {line}")

    async def carried_out(self, line: str) -> None:
        await self._refresh()
        if line == "/help":
            self._aside("answer", prompt_input.HELP)

    def answered(self, answer: events.Answer | events.Notice) -> None:
        self._aside("answer" if isinstance(answer, events.Answer) else "notice", *notices.told(answer))
        self._show_waiting()

    def queued(self, _: str) -> None:
        self._show_waiting()

    def said(self, sent: events.Submit, answered: asyncio.Future[events.TurnResult], _: bool) -> None:
        self._show_waiting()
        if sent.content is None:
            answered.add_done_callback(partial(self._back_to_prompt, self.here, sent.text))

    def _back_to_prompt(self, where: str, words: str, answered: asyncio.Future[events.TurnResult]) -> None:
        """What was not stored is written again, or told where that has no room; unless the person took it back."""
        if answered.cancelled() or self._exit or not (answered.exception() or not answered.result().messages):
            return
        if where != self.here or self.prompt.text:
            self._aside("notice", f"Not sent: {words}", "warning")
        else:
            self.prompt.put(f"/{words}" if commands.is_command(words) or commands.is_escaped(words) else words)

    def _show_waiting(self) -> None:
        """What waits for its turn, below the one under way."""
        waiting = [each.text for each in self.talk.waiting]
        if list(self._tail.waiting) != waiting:
            self._tail.waiting = waiting
            self._paint()

    # --- what happens --------------------------------------------------------------------------------

    async def happened(self, event: events.AnyEvent) -> None:
        match event:
            case events.TurnStarted():
                await self._begun(event)
            case events.TurnFinished(result):
                await self._ended(result)
            case events.MessageStored(seq):
                self._stored = max(self._stored, seq)
            case events.ApprovalAsked() | events.ApprovalSettled():
                self._asked(event)
            case events.TurnQueued() | events.Notice() | events.Answer() | events.Titled() | events.Compacted():
                await self._told(event)
            case events.Say() | events.Moved() | events.Quit():
                pass
            case _:
                self._tail.heard(event)
                self._paint_soon()

    async def _begun(self, event: events.TurnStarted) -> None:
        self._turn_from = event.seq
        if self.transcript.story.last != event.seq - 1:
            await self._refresh()  # Others spoke here before it, or it was read before it was told.
        self._tail.heard(event)
        self._show_waiting()
        self._paint()

    async def _ended(self, result: events.TurnResult) -> None:
        await self._refresh(turn_over=True)
        self._turn_from = None
        if (word := notices.ended(result)) is not None:
            self._aside("notice", *word)
        self._show_waiting()

    async def _told(self, event: notices.Told) -> None:
        self._aside("answer" if isinstance(event, events.Answer) else "notice", *notices.told(event))
        if isinstance(event, events.Titled | events.Compacted):
            await self._refresh()

    def _asked(self, event: events.ApprovalAsked | events.ApprovalSettled) -> None:
        first, self.question.where = not self.question.asked, self.here
        self.question.heard(event)
        if isinstance(event, events.ApprovalSettled):
            self._aside("notice", *notices.settled(event))
            if not self.question.asked and self.question.has_focus:
                self.prompt.focus()
        elif first and self.prompt.has_focus and not self.prompt.text and not self.covered:
            self.question.focus()

    def on_approval_answered(self, answered: approval_panel.Approval.Answered) -> None:
        self.run_worker(self.door.send(answered.where, answered.given), group="answers")

    def on_approval_meant(self, meant: approval_panel.Approval.Meant) -> None:
        self._meant(meant.character)

    def _aside(self, kind: entries.Kind, words: str, level: events.Level = "info") -> None:
        """What is no message: in the tail while a turn goes on, and then where it belongs."""
        if self._turn_from is None:
            self.transcript.aside(kind, words, level)
        else:
            self._meanwhile.append((self._stored, kind, words, level))
            self._tail.say(kind, words, level)
            self._paint()

    # --- how things stand ----------------------------------------------------------------------------

    async def _look(self) -> None:
        """See how things stand whenever that may have changed; again and again while something goes on."""
        while True:
            self.talk.stirred.clear()
            await self.watched.look(self.here)
            self._pulse()
            busy = self.talk.busy or self.watched.standing.compacting
            # Where nothing moves, nothing is drawn.
            (self._pulsing.resume if busy else self._pulsing.pause)()
            still = not await self.talk.stirs(LOOK if busy else GLANCE)
            if still and not (self._turn_from and self.door.running(self.here)):
                # Others may have spoken here, or a turn was over before anybody listened.
                self._turn_from = None
                await self._refresh()

    def _pulse(self) -> None:
        """Draw what moves."""
        pen = entry_rows.Pen(max(self.size.width - 6, 1), self.transcript.ink, self.marks)
        answering = time.monotonic() - self.talk.answering_since if self.door.running(self.here) else None
        queued = len(self.talk.waiting)
        now = (self.watched.progress(pen), self.watched.line(pen, queued, self.talk.waits, answering))
        if now != self._moving:  # What stands still is not drawn again.
            self._moving = now
            self._progress.set_class(now[0] is not None, "shown")
            self._progress.update(now[0] or "")
            self._line.update(now[1])

    def _paint_soon(self) -> None:
        if not self._to_paint:
            self._to_paint = True
            self.set_timer(FRAME, self._paint)

    def _paint(self) -> None:
        self._to_paint = False
        self.transcript.redraw_tail()

    def on_resize(self) -> None:
        self._pulse()

    def _repaint(self) -> None:
        for each in self.screen.query(transcript.Transcript):
            each.repaint()
        self._pulse()
