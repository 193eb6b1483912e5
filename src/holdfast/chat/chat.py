"""The chat in plain scrollback: a line is typed, the answer streams above it, and the next one can be typed meanwhile.

A front end like any other: it sends commands to the runtime and renders events, and knows one conversation at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

import msgspec
from prompt_toolkit.utils import is_dumb_terminal

from holdfast import errors, events, safe_text
from holdfast.agent import commands
from holdfast.chat import approval_prompt, dumb_terminal, key_bindings, prompt, tool_activity
from holdfast.runtime import interactive, runtime
from holdfast.terminal import completion, event_text, recap, reply_stream, status_line

ONCE_MORE = "Ctrl-C once more leaves, as Ctrl-D does."
# Seconds between looks at what goes on beside the talk, while something does.
LOOK = 1.0
# What stands by itself, wherever an answer is.
ASIDE = (events.Answer, events.Notice, events.Titled, events.Compacted, events.TurnQueued)

Paper = prompt.Paper


class Opening(msgspec.Struct, frozen=True):
    """How a chat begins."""

    conversation_id: str
    """The conversation; one that nobody knows yet begins with the first message."""
    program: str
    """The program's name and version."""
    model: str
    history: str
    """The file of what was typed before."""
    notice: str | None = None


class Front(Protocol):
    """Where a person reads and types."""

    @property
    def columns(self) -> int: ...
    @property
    def echoes(self) -> bool: ...
    async def run(self) -> None: ...
    def leave(self) -> None: ...
    def write(self, pieces: Sequence[event_text.Piece]) -> None: ...
    def echo(self, line: str) -> None: ...
    def changed(self) -> None: ...
    def ready(self) -> None: ...
    def remember(self, line: str) -> None: ...
    def draft(self, line: str) -> None: ...
    async def line(self, words: str) -> str | None: ...


class Sent(NamedTuple):
    """A message on its way."""

    words: str
    answered: asyncio.Future[events.TurnResult]
    late: bool
    """Whether it waits for others, and was not echoed yet."""


class Chat:
    """One person at one terminal."""

    def __init__(
        self,
        door: runtime.Runtime,
        paper: Paper,
        opening: Opening,
        marks: event_text.Marks | None = None,
        device: prompt.Device | None = None,
    ) -> None:
        self._door, self._opening = door, opening
        self.talk = interactive.Talk(door, opening.conversation_id, self)
        self._front = self._fronted(paper, device)
        drawn = (
            (reply_stream.Reply(self._columns, marks), tool_activity.Activity(self._columns, marks))
            if paper.colour
            else ()
        )
        self._page = event_text.Page(marks, self._columns, *drawn)
        self._standing = status_line.Standing(opening.model)
        self._compacting_since: float | None = None
        self._questions = approval_prompt.Questions()
        self._held: list[Callable[[], None]] = []
        self._seen = 0
        self._sent: deque[Sent] = deque()

    def _fronted(self, paper: Paper, device: prompt.Device | None) -> Front:
        if device is None and is_dumb_terminal():
            return dumb_terminal.Plain(paper, self.talk)
        words = completion.Words(
            self._door.prompt_commands.listed if self._door.prompt_commands else tuple, self._arguments
        )
        shown = prompt.Shown(lambda: self._page.open, self._standing_line)
        return prompt.Prompt(paper, shown, self.talk, self._opening.history, words, device)

    async def run(self) -> None:
        """Talk until the person leaves."""
        await self._open()
        jobs = [asyncio.create_task(job) for job in (self.talk.hear(), self.talk.work(), self._ask(), self._look())]
        front = asyncio.create_task(self._front.run())
        try:
            await asyncio.wait([front, *jobs], return_when=asyncio.FIRST_COMPLETED)
            if front.done():
                front.result()
            await self._farewell(hears=not jobs[0].done())
        finally:
            for task in (front, *jobs):
                task.cancel()
            await asyncio.wait([front, *jobs])
            self._break_off()
        for job in jobs:
            if not job.cancelled():
                job.result()

    # --- arriving and leaving ------------------------------------------------------------------------

    async def _open(self) -> None:
        opening, dot = self._opening, self._page.marks.dot
        greeting = f"{opening.program} {dot} {opening.model} {dot} /help lists the commands"
        self._front.write(self._page.prose(greeting, "bold"))
        if opening.notice:
            self._front.write(self._page.prose(opening.notice, "yellow"))
        await self.talk.arrive()

    async def arrived(self, left: str | None) -> None:
        """Say which conversation this is, and how it stood."""
        page, write = self._page, self._front.write
        self._seen = 0
        if left is not None:
            write(page.prose(f"The answer goes on there: /resume {left} goes back.", "dim"))
        try:
            await self._recall()
        except errors.HoldfastError as error:
            words, level = recap.unread(error)
            write(page.prose(words, event_text.LEVELS[level]))

    async def _recall(self) -> None:
        page, write, db, here = self._page, self._front.write, self._door.db, self.talk.here
        found = await db.conversation(here)
        messages = await db.transcript(here, max(0, found.last_seq - recap.STRETCH))
        hides, compactions = await db.hides(here), await db.compactions(here)
        self._seen = found.last_seq
        many = safe_text.count(found.last_seq, "message")
        dot = f" {page.marks.dot} "
        write(page.prose(dot.join([found.title or found.id, many, *([found.folder] if found.folder else [])]), "dim"))
        if found.compaction_epoch is not None:
            write(recap.covered(compactions, found.compaction_epoch, page))
        write([event_text.Piece("\n"), *recap.drawn(messages, page, hides, under_way=self._door.running(here))])

    def departed(self) -> None:
        self._questions.leave()
        self._front.write(self._page.left_open())
        self._break_off()
        self._sent.clear()

    async def _farewell(self, hears: bool) -> None:
        """Stop what runs, in every conversation this chat was in; what was said of it stays."""
        if (told := self.talk.give_up()) is not None:
            self._front.write(self._page.prose(told, "yellow"))
        running = [sent.answered for sent in self._sent if not sent.answered.done()]
        if running and self._door.interrupt(self.talk.here):
            await asyncio.wait(running)
        if hears:
            await self.talk.caught_up()
        self._break_off()
        for told in await self.talk.stop_elsewhere():
            self._front.write(self._page.prose(told, "yellow"))

    # --- the person ----------------------------------------------------------------------------------

    def warned(self) -> None:
        self._front.write(self._page.prose(ONCE_MORE, "dim"))

    def leave(self) -> None:
        self._front.leave()

    def commanded(self, line: str) -> None:
        self._echo(line)

    async def carried_out(self, line: str) -> None:
        if line == "/help":
            every = [piece for each in key_bindings.HELP for piece in self._page.prose(each, "dim")]
            self._front.write([event_text.Piece("\n"), *every])

    def answered(self, answer: events.Answer | events.Notice) -> None:
        self._front.write(self._page.draw(answer))

    def said(self, sent: events.Submit, answered: asyncio.Future[events.TurnResult], late: bool) -> None:
        """A message to the agent; it is echoed where its answer begins."""
        if late:
            self.queued(sent.text)
        else:
            self._echo(sent.text)
        self._sent.append(Sent(sent.text, answered, late))

    def queued(self, line: str) -> None:
        self._aside(lambda: self._front.write(self._page.one_line(f"Queued: {line}", "dim")))

    def _echo(self, words: str, late: bool = False) -> None:
        if late or not self._front.echoes:
            self._aside(lambda: self._front.echo("\n".join(safe_text.safe_lines(words))))

    def _aside(self, write: Callable[[], None]) -> None:
        """Show what a person did, once no block of code is under way: that is there to be copied."""
        if self._page.in_code:
            self._held.append(write)
        else:
            write()

    def _catch_up(self) -> None:
        held, self._held = self._held, []
        for write in held:
            write()

    def _break_off(self) -> None:
        self._front.write(self._page.break_off())
        self._catch_up()

    # --- questions of tools --------------------------------------------------------------------------

    async def _ask(self) -> None:
        while True:
            await self._answer(await self._questions.next())

    async def _answer(self, asked: events.ApprovalAsked) -> None:
        """Have a question answered, here or elsewhere."""
        here = self.talk.here
        while (typed := await self._questions.answer(asked, self._front)) is not None:
            if typed == "detail":
                self._front.write(self._page.detail(asked) or self._page.prose("There is no more to it.", "dim"))
            elif isinstance(typed, approval_prompt.Other):
                self._no_answer(typed.line)
            elif typed == "stop":
                # It is denied, and the turn is stopped.
                await self._door.send(here, events.Approve(asked.request_id, "deny", "at the terminal"))
                self.talk.interrupted()
                return
            else:
                await self._door.send(here, typed)
                return

    def _no_answer(self, line: str) -> None:
        """A command is carried out while the question stands; other words are there again after it."""
        if line.strip():
            self._front.remember(line)
        if commands.is_command(line.strip()):
            self.talk.typed(line)
            return
        if line.strip():
            self._front.draft(line)
        self._front.write(self._page.prose("Type y, c, a, n or d, and Enter.", "dim"))

    # --- showing -------------------------------------------------------------------------------------

    async def happened(self, event: events.AnyEvent) -> None:
        if isinstance(event, events.TurnStarted):
            await self._begun(event)
        self._show(event)

    def _show(self, event: events.AnyEvent) -> None:
        if isinstance(event, events.MessageStored) and event.role != "user":  # That one comes before its turn begins.
            self._seen = max(self._seen, event.seq)
        if isinstance(event, ASIDE):
            self._catch_up()
        self._front.write(self._page.draw(event))
        if not self._page.in_code:
            self._catch_up()
        self._front.changed()
        self._questions.heard(event)

    async def _begun(self, event: events.TurnStarted) -> None:
        """The turn of the first message that has no answer yet: it stands over its answer, and nothing between."""
        came = await self._from_elsewhere(event.seq)
        if event.notice:
            return
        while self._sent and self._sent[0].answered.done():
            self._sent.popleft()
        if not self._sent:
            self._echo(event.text, late=True)  # It was sent before this conversation was left and come back to.
        elif self._sent[0].late or came:
            self._echo(self._sent[0].words, late=True)
            self._sent[0] = self._sent[0]._replace(late=False)

    async def _from_elsewhere(self, seq: int) -> bool:
        """Show what others said here before the message of this number, if they did; whether they did."""
        seen, self._seen = self._seen, max(self._seen, seq)
        if seq <= seen + 1:
            return False
        pieces: list[event_text.Piece] = []
        with suppress(errors.HoldfastError):
            db, first = self._door.db, max(seen, seq - 1 - recap.STRETCH)
            between, hides = await db.transcript(self.talk.here, first, seq - 1), await db.hides(self.talk.here)
            pieces = recap.drawn(between, self._page, hides, under_way=True)
        if pieces:
            many = safe_text.count(seq - 1 - seen, "message", "messages")
            self._front.write(self._page.prose(f"{many} came from elsewhere meanwhile:", "dim"))
            self._front.write(pieces)
        return bool(pieces)

    # --- how things stand ----------------------------------------------------------------------------

    async def _look(self) -> None:
        """See how things stand whenever that may have changed; again and again while something goes on."""
        while True:
            self.talk.stirred.clear()
            with suppress(errors.HoldfastError):
                self._standing = await status_line.looked(self._door, self.talk.here)
            going_on = self._standing.compacting
            self._compacting_since = (self._compacting_since or time.monotonic()) if going_on else None
            self._front.changed()
            if not self.talk.busy:
                self._front.ready()
            await self.talk.stirs(LOOK if self.talk.busy or going_on else None)

    def _standing_line(self) -> list[status_line.Fragment]:
        now, since = time.monotonic(), self._compacting_since
        queued, answers = len(self.talk.waiting), self._door.running(self.talk.here)
        return status_line.drawn(
            msgspec.structs.replace(self._standing, queued=queued, waiting=self.talk.waits),
            max(self._columns() - 1, 0),
            self._page.marks,
            now - since if since is not None else 0.0,
            now - self.talk.answering_since if answers else None,
        )

    async def _arguments(self, line: str) -> Sequence[commands.Candidate]:
        return await commands.complete(self._door, self.talk.here, line)

    def _columns(self) -> int:
        return self._front.columns
