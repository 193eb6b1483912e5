"""The full screen: a transcript that opens at once however long it is, a prompt, a panel for questions of tools.

A front end like any other: it sends commands to the runtime and renders events, and knows one conversation at a time.
Lines are carried out in the order they were typed; whatever is typed behind a command waits until that is carried out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import ClassVar, assert_never

import msgspec
from rich.text import Text
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Static

from holdfast import errors, events, types
from holdfast.agent import commands, runtime
from holdfast.terminal import lines, recap, show
from holdfast.terminal.screen import (
    approval,
    compacted,
    conversations,
    drawing,
    entries,
    look,
    palette,
    prompting,
    stories,
    tail,
    transcript,
    watching,
)

ONCE_MORE = "Ctrl-C once more leaves, as Ctrl-Q does."
NEW = "A new conversation: it begins with your first message."
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

    CSS = look.CSS
    TITLE = "Holdfast"
    COMMANDS = App.COMMANDS | {palette.Commands}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "stop", "stop", priority=True, system=True),
        Binding("ctrl+q", "leave", "leave", priority=True),
        Binding("ctrl+d", "done", "leave, where nothing is written", show=False, priority=True),
        Binding("ctrl+o", "conversations", "conversations", priority=True),
        Binding("ctrl+t", "turn_light", "light or dark", priority=True),
        Binding("f6", "walk", "transcript, question, prompt", priority=True),
        Binding("escape", "write", "back to the prompt", show=False),
    ]

    def __init__(self, door: runtime.Runtime, opening: Opening, marks: show.Marks | None = None) -> None:
        super().__init__()
        self.door, self.here, self.marks = door, opening.conversation_id, marks or show.Marks()
        self._opening = opening
        self.transcript = transcript.Transcript(self._messages, self.marks, id="transcript")
        self.question = approval.Approval()
        self.prompt = prompting.Prompt(self._candidates, opening.history)
        self.watched = watching.Watch(door, opening.model)
        self.transcript.tail = self._tail = tail.Tail(lambda: self.watched.standing.model)
        # Held here: while something lies over the screen, it is not found by its name.
        self._heading, self._offer = Static(id="heading", markup=False), Static(id="candidates", markup=False)
        self._progress, self._line = Static(id="progress"), Static(id="standing")
        self._typed = lines.Lines()
        self._errand: asyncio.Task[None] | None = None
        self._listened: runtime.Listening | None = None
        self._stirred, self._arrived, self._listens = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._reading = asyncio.Lock()
        self._turn_from: int | None = None
        self._stored = 0
        self._meanwhile: list[tuple[int, entries.Kind, str, events.Level]] = []
        self._moving: tuple[Text | None, Text] | None = None
        self._answering_since = 0.0
        self._warned = self._halting = self._waits = self._to_paint = False

    def compose(self) -> ComposeResult:
        yield self._heading
        yield self.transcript
        yield self._progress
        yield self.question
        yield self._offer
        yield self.prompt
        yield self._line

    async def on_mount(self) -> None:
        # Textual has tasks begin before whoever makes them knows them; what is below here counts on the usual order.
        asyncio.get_running_loop().set_task_factory(None)
        for theme in look.THEMES:
            self.register_theme(theme)
        self.theme = look.LIGHT if self._opening.light else look.DARK
        self.prompt.focus()
        await self._arrive()
        if self._opening.notice:
            self.transcript.aside("notice", self._opening.notice)
        for job in (self._hear(), self._work(), self._look()):
            self.run_worker(job, group="jobs")
        self.set_interval(PULSE, self._pulse)
        self.theme_changed_signal.subscribe(self, lambda _: self._repaint())

    @property
    def unsent(self) -> int:
        """How many messages still wait, in whichever conversation."""
        return sum(map(self.door.queued, self.door.busy())) + len(self._typed)

    # --- where it is ---------------------------------------------------------------------------------

    async def _arrive(self) -> None:
        """Show where the conversation stands, from its end."""
        self._turn_from, self._stored, self._meanwhile = None, 0, []
        async with self._reading:
            await self._show_from_end()
        self._arrived.set()
        self._stirred.set()

    async def _show_from_end(self) -> None:
        try:
            told = await stories.read(self.door.db, self.here)
        except errors.NoSuchSession as error:
            deleted = isinstance(error, errors.ConversationDeleted)
            await self.transcript.show(entries.Story())
            self.transcript.aside("notice", str(error) if deleted else NEW, "error" if deleted else "info")
            self._head(None)
        else:
            await self.transcript.show(told.story)
            self._stored = told.story.last
            self._head(told.conversation)
            if not self.door.running(self.here) and await stories.unfinished(self.door.db, told):
                self.transcript.aside("notice", f"{recap.UNFINISHED} {recap.AGAIN}", "warning")

    async def _move(self, conversation_id: str) -> None:
        """Go on in another conversation, once all is shown that was said in this one."""
        if conversation_id == self.here:
            self._aside("notice", "This is that conversation: you are in it already.")
            return
        left, self.here = self.here, conversation_id
        self._arrived.clear()
        self._listens.clear()
        if self._listened is not None:
            self._listened.put(None)
            await self._listened.taken()
        self.question.leave()
        await self._arrive()
        if self.door.running(left):
            self._aside("notice", f"The answer goes on there: /resume {left} goes back.")
        await self._listens.wait()

    async def _refresh(self, turn_over: bool = False) -> None:
        """What the log has now; of a turn under way, the tail tells."""
        # One after the other, each looking anew: what was read before something never comes after it.
        async with self._reading:
            with suppress(errors.HoldfastError):
                await self._read_on(turn_over)

    async def _read_on(self, turn_over: bool) -> None:
        upto = self._turn_from - 1 if self._turn_from is not None and not turn_over else None
        told = await stories.read(self.door.db, self.here, upto)
        await self.transcript.tell(told.story, turn_over=turn_over)
        self._stored = max(self._stored, told.story.last)
        self._head(told.conversation)

    def _head(self, found: types.Conversation | None) -> None:
        self._heading.update(stories.heading(found, self.transcript.story, self.marks))

    async def _messages(self, after: int, upto: int) -> Sequence[types.Message]:
        return await self.door.db.transcript(self.here, after, upto)

    # --- the person ----------------------------------------------------------------------------------

    def on_prompt_sent(self, sent: prompting.Prompt.Sent) -> None:
        self._warned = False
        if self._errand is None or not self._at_once(sent.line, self._errand):
            self._typed.add(sent.line)
        self.transcript.action_to_end()
        self._show_waiting()

    def _at_once(self, line: str, errand: asyncio.Task[None]) -> bool:
        """What is not to wait for a command: to stop it, and to leave. Whether this was that."""
        name, argument = commands.split(line) if commands.is_command(line) else ("", "")
        if argument or name.lower() not in ("stop", "quit"):
            return False
        errand.cancel()
        if name.lower() == "quit":
            self.exit()
        return True

    def on_prompt_offered(self, offered: prompting.Prompt.Offered) -> None:
        self._offer.update(prompting.offered(offered.candidates))
        self._offer.set_class(bool(offered.candidates), "shown")

    async def _candidates(self, line: str) -> Sequence[commands.Candidate]:
        return await commands.complete(self.door, self.here, line)

    def listed(self) -> Sequence[commands.Standing]:
        """The commands of the palette."""
        return commands.listed(self.door)

    def take(self, command: commands.Standing) -> None:
        """A command from the palette: carried out, or written to the prompt where it needs something behind it."""
        self.prompt.focus()
        if command.argument and not command.argument.startswith("["):
            self.prompt.put(f"/{command.name} ")
        elif command.name == "resume":
            self.action_conversations()
        else:
            self._typed.add(f"/{command.name}")

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        yield SystemCommand("Light or dark", "Turn the lights on, or off.", self.action_turn_light)
        yield SystemCommand("Conversations", "Find another one, and see its lineage.", self.action_conversations)
        if screen.query("HelpPanel"):
            yield SystemCommand("Hide keys", "Hide what the keys do.", self.action_hide_help_panel)
        else:
            yield SystemCommand("Keys", "Show what the keys do here.", self.action_show_help_panel)

    def action_stop(self) -> None:
        """Copy what is marked; else take back what is written; else stop what runs; else leave, the second time."""
        if marked := self.screen.get_selected_text() or self.prompt.selected_text:
            self.copy_to_clipboard(marked)
        elif self.prompt.text:
            self.prompt.put("")
        elif self._errand is not None:
            self._errand.cancel()
        elif self.door.running(self.here):
            # Whoever asks again while it is being stopped wants to leave.
            if self._halting:
                self.exit()
            self._halting = True
            self.door.interrupt(self.here)
        elif self._warned:
            self.exit()
        else:
            self._warned = True
            self.notify(ONCE_MORE, timeout=3)

    def action_leave(self) -> None:
        self.exit()

    def action_done(self) -> None:
        if not self.prompt.text:
            self.exit()

    def action_turn_light(self) -> None:
        self.theme = look.LIGHT if self.theme == look.DARK else look.DARK

    def action_write(self) -> None:
        self.set_focus(self.prompt)

    def action_walk(self) -> None:
        """From the prompt to a question, to the transcript, and back."""
        stops = [self.prompt, *([self.question] if self.question.asked else []), self.transcript]
        now = next((n for n, each in enumerate(stops) if each.has_focus), 0)
        self.set_focus(stops[(now + 1) % len(stops)])  # At once: the next key is for it.

    def on_prompt_paged(self, paged: prompting.Prompt.Paged) -> None:
        self.transcript.page(paged.step)

    def action_conversations(self) -> None:
        if not isinstance(self.screen, conversations.Conversations):
            found = conversations.Conversations(self.door.db, self.door.owner, self.here, self.marks)
            self.push_screen(found, self._picked)

    def _picked(self, conversation_id: str | None) -> None:
        if conversation_id is not None:
            self._typed.add(f"/resume {conversation_id}")

    def on_transcript_mark_opened(self, opened: transcript.Transcript.MarkOpened) -> None:
        shown = compacted.Compacted(opened.compaction, self.transcript.story, self._messages, self.marks)
        self.push_screen(shown)

    # --- what was typed ------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            line = await self._typed.next()
            self._show_waiting()
            await self._listens.wait()
            if commands.is_command(line):
                await self._carry_out(line)
            else:
                self._say(line[1:] if commands.escapes(line) else line)
            self._stirred.set()

    async def _carry_out(self, line: str) -> None:
        """A command. Most take no time; one that does can be stopped, like a turn."""
        told: list[runtime.ForOne] = []
        self._aside("notice", f"{self.marks.call} {line}")
        self._errand = asyncio.create_task(self.door.send(self.here, events.Command(line), told.append))
        self._stirred.set()
        await asyncio.wait([self._errand])
        if self._listened is not None:
            await self._listened.taken()
        ended, self._errand = self._errand, None
        if ended.cancelled():
            self._aside("notice", "Stopped.", "warning")
            return
        ended.result()
        await self._refresh()
        for event in told:
            match event:
                case events.Moved(conversation_id):
                    await self._move(conversation_id)
                case events.Say(words, content):
                    self._say(words, content)
                case events.Quit():
                    self.exit()
                case _:
                    assert_never(event)

    def _say(self, words: str, content: types.Content | None = None) -> None:
        if not self.door.running(self.here):
            self._answering_since, self._halting = time.monotonic(), False
        answered = self.door.submit(self.here, events.Submit(words, content=content))
        answered.add_done_callback(lambda _: self._stirred.set())
        self._show_waiting()

    def _show_waiting(self) -> None:
        """What waits for its turn, below the one under way."""
        waiting = [each.text for each in (*self.door.waiting(self.here), *self._typed.waiting)]
        if list(self._tail.waiting) != waiting:
            self._tail.waiting = waiting
            self._paint()

    # --- what happens --------------------------------------------------------------------------------

    async def _hear(self) -> None:
        """The events of the conversation this is, whichever it is."""
        while True:
            await self._arrived.wait()
            with self.door.listen(self.here, answers=True) as heard:
                self._listened = heard
                self._listens.set()
                async for emitted in heard:
                    await self._happened(emitted.event)
            if heard.closed:
                return

    async def _happened(self, event: events.AnyEvent) -> None:
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
        if isinstance(event, events.ToolFinished | events.TurnStarted | events.TurnFinished | events.Compacted):
            self._stirred.set()

    async def _begun(self, event: events.TurnStarted) -> None:
        self._answering_since, self._halting, self._waits = time.monotonic(), False, False
        self._turn_from = event.seq
        if self.transcript.story.last != event.seq - 1:
            await self._refresh()  # Others spoke here before it, or it was read before it was told.
        self._tail.heard(event)
        self._show_waiting()
        self._paint()

    async def _ended(self, result: events.TurnResult) -> None:
        self._waits = False
        await self._refresh(turn_over=True)
        self._turn_from = None
        for seq, kind, words, level in self._meanwhile:
            self.transcript.aside(kind, words, level, seq)
        self._meanwhile = []
        if result.interrupted:
            stays = "What was said stays." if result.messages else "The message was not sent."
            self._aside("notice", f"Interrupted. {stays}", "warning")
        elif not result.completed:
            self._aside(
                "notice", result.error or "The turn was not completed.", "error" if result.failed else "warning"
            )
        elif not result.final_response:
            self._aside("notice", "(No words.)")
        self._show_waiting()

    async def _told(
        self, event: events.TurnQueued | events.Notice | events.Answer | events.Titled | events.Compacted
    ) -> None:
        match event:
            case events.Notice(words, level):
                self._aside("notice", words, level)
            case events.Answer(words):
                self._aside("answer", words)
            case events.Titled(title):
                self._aside("notice", f"Title: {title}" if title else "It has no title any more.")
                await self._refresh()
            case events.TurnQueued():
                self._waits = True
                self._aside("notice", "Waiting: a turn of this conversation is running elsewhere.", "warning")
            case events.Compacted(_, cut_seq, before, after):
                self._aside("notice", f"Compacted up to message {cut_seq:,}: {before:,} tokens are {after:,} now.")
                await self._refresh()
            case _:
                assert_never(event)

    def _asked(self, event: events.ApprovalAsked | events.ApprovalSettled) -> None:
        first = not self.question.asked
        self.question.heard(event)
        if isinstance(event, events.ApprovalSettled):
            said = f"{'Allowed' if event.allowed else 'Denied'} ({event.by})."
            self._aside("notice", said, "info" if event.allowed else "warning")
            if not self.question.asked and self.question.has_focus:
                self.prompt.focus()
        elif first and not self.prompt.text and len(self.screen_stack) == 1:
            self.question.focus()

    def on_approval_answered(self, answered: approval.Approval.Answered) -> None:
        self.run_worker(self.door.send(self.here, answered.given), group="answers")

    def on_approval_meant(self, meant: approval.Approval.Meant) -> None:
        self.prompt.focus()
        self.prompt.insert(meant.character)

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
            self._stirred.clear()
            await self.watched.look(self.here)
            self._pulse()
            busy = self.door.running(self.here) or self._errand is not None or self.watched.standing.compacting
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK if busy else GLANCE):
                    await self._stirred.wait()
            if not self._stirred.is_set() and self._turn_from is None:
                await self._refresh()  # Others may have spoken here.

    def _pulse(self) -> None:
        """Draw what moves."""
        pen = drawing.Pen(max(self.size.width - 6, 1), self.transcript.ink, self.marks)
        queued = self.door.queued(self.here) + len(self._typed)
        answering = time.monotonic() - self._answering_since if self.door.running(self.here) else None
        now = (self.watched.progress(pen), self.watched.line(pen, queued, self._waits, answering))
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

    def _repaint(self) -> None:
        for each in self.screen.query(transcript.Transcript):
            each.repaint()
        self._pulse()
