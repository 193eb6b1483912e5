"""The chat in plain scrollback: a line is typed, the answer streams above it, and the next one can be typed meanwhile.

A front end like any other: it sends commands to the runtime and renders events, and knows one conversation at a time.
Lines are carried out in the order they were typed. A message does not wait for the answer to the one before: the
runtime keeps them in order; whatever is typed behind a command waits until that is carried out.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol, assert_never

import msgspec
from prompt_toolkit.utils import is_dumb_terminal

from holdfast import errors, events, types
from holdfast.agent import commands, runtime
from holdfast.agent.commands import turns
from holdfast.terminal import (
    activity,
    answering,
    completion,
    keys,
    lines,
    plain,
    prompt,
    recap,
    reply,
    show,
    status,
    text,
)

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
    def write(self, pieces: Sequence[show.Piece]) -> None: ...
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
        marks: show.Marks | None = None,
        device: prompt.Device | None = None,
    ) -> None:
        self._door, self._opening, self._here = door, opening, opening.conversation_id
        self._front = self._fronted(paper, device)
        drawn = (reply.Reply(self._columns, marks), activity.Activity(self._columns, marks)) if paper.colour else ()
        self._page = show.Page(marks, self._columns, *drawn)
        self._standing = status.Standing(opening.model)
        self._compacting_since: float | None = None
        self._working_since = 0.0
        self._questions = answering.Questions()
        self._lines = lines.Lines()
        self._held: list[Callable[[], None]] = []
        self._seen = 0
        self._sent: deque[Sent] = deque()
        self._command: asyncio.Task[None] | None = None
        self._stirred, self._arrived, self._listening = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._warned = self._stopping = self._waits = False

    def _fronted(self, paper: Paper, device: prompt.Device | None) -> Front:
        if device is None and is_dumb_terminal():
            return plain.Plain(paper, self)
        words = completion.Words(self._door.words.listed if self._door.words else tuple, self._arguments)
        shown = prompt.Shown(lambda: self._page.open, self._standing_line)
        return prompt.Prompt(paper, shown, self, self._opening.history, words, device)

    async def run(self) -> None:
        """Talk until the person leaves."""
        await self._open()
        jobs = [asyncio.create_task(job) for job in (self._hear(), self._work(), self._ask(), self._look())]
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
        await self._arrive()

    async def _arrive(self) -> None:
        """Say which conversation this is, and how it stood."""
        page, write = self._page, self._front.write
        try:
            found = await self._door.db.conversation(self._here)
        except errors.ConversationDeleted as error:
            write(page.prose(str(error), "red"))
        except errors.NoSuchSession:
            self._seen = 0
            write(page.prose("A new conversation: it begins with your first message.", "dim"))
        else:
            self._seen = found.last_seq
            messages = await self._door.db.transcript(self._here, max(0, found.last_seq - recap.STRETCH))
            many = text.count(found.last_seq, "message")
            write(page.prose(f"{found.title or found.id} {page.marks.dot} {many}", "dim"))
            if found.compaction_epoch is not None:
                write(recap.covered(await self._door.db.compactions(self._here), found.compaction_epoch, page))
            hides, under_way = await self._door.db.hides(self._here), self._door.running(self._here)
            write([show.Piece("\n"), *recap.drawn(messages, page, hides, under_way=under_way)])
        self._arrived.set()

    async def _move(self, conversation_id: str) -> None:
        """Go on in another conversation, once all is shown that was said in this one."""
        if conversation_id == self._here:
            self._front.write(self._page.prose("This is that conversation: you are in it already.", "dim"))
            return
        left, self._here = self._here, conversation_id
        self._arrived.clear()
        self._listening.clear()
        self._heard.put(None)
        await self._heard.taken()
        self._questions.leave()
        self._break_off()
        if self._door.running(left):
            self._front.write(self._page.prose(f"The answer goes on there: /resume {left} goes back.", "dim"))
        self._sent.clear()
        self._waits = False
        await self._arrive()
        await self._listening.wait()

    async def _farewell(self, hears: bool) -> None:
        """Stop what runs, in every conversation this chat was in; what was said of it stays."""
        door, busy = self._door, self._door.busy()
        dropped = sum(door.drop(here, each) for here in busy for each in door.waiting(here)) + len(self._lines)
        if dropped:
            many = text.count(dropped, "message that waited was", "messages that waited were")
            self._front.write(self._page.prose(f"{many} not sent.", "yellow"))
        if self._command is not None:
            self._command.cancel()
        running = [sent.answered for sent in self._sent if not sent.answered.done()]
        if running and door.interrupt(self._here):
            await asyncio.wait(running)
        if hears:
            await self._heard.taken()
        self._break_off()
        for elsewhere in busy:
            if elsewhere != self._here and door.interrupt(elsewhere):
                told = f"The answer in {await self._named(elsewhere)} was stopped; what was said of it stays."
                self._front.write(self._page.prose(told, "yellow"))

    async def _named(self, conversation_id: str) -> str:
        with suppress(errors.HoldfastError):
            return (await self._door.db.conversation(conversation_id)).title or conversation_id
        return conversation_id

    # --- the person ----------------------------------------------------------------------------------

    def typed(self, line: str) -> None:
        """A line, ended with Enter."""
        line = line.encode("utf-8", "replace").decode().strip()  # A keyboard may send what is no text.
        self._warned = False
        if not line:
            return
        if self._command is not None:
            if self._at_once(line, self._command):
                return
            self._queued(line)
        self._lines.add(line)

    def _at_once(self, line: str, command: asyncio.Task[None]) -> bool:
        """What is not to wait for a command: to stop it, to leave, to look at what waits. Whether this was that."""
        name, argument = commands.split(line) if commands.is_command(line) else ("", "")
        match name.lower(), argument:
            case "stop", "":
                command.cancel()
            case "quit", "":
                command.cancel()
                self.leave()
            case "queue", _:
                self._echo(line)
                self._front.write(self._page.draw(self._looked_at_queue(argument)))
            case _:
                return False
        return True

    def _looked_at_queue(self, argument: str) -> events.Answer | events.Notice:
        """Over what waits for a turn, and behind it what waits for a command."""
        door, here = self._door, self._here
        waiting = [*door.waiting(here), *self._lines.waiting]
        try:
            return events.Answer(
                turns.queued(argument, waiting, lambda each: door.drop(here, each) or self._lines.drop(each))
            )
        except errors.HoldfastError as error:
            return events.Notice(str(error), "error")

    def interrupted(self) -> None:
        """Ctrl-C with nothing typed."""
        if self._command is not None:
            self._command.cancel()
        elif self._door.running(self._here):
            # Whoever asks again while it is being stopped wants to leave.
            if self._stopping:
                self.leave()
            self._stopping = True
            self._door.interrupt(self._here)
        elif self._warned:
            self.leave()
        else:
            self._warned = True
            self._front.write(self._page.prose(ONCE_MORE, "dim"))

    def leave(self) -> None:
        self._front.leave()

    # --- what was typed ------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            line = await self._lines.next()
            await self._listening.wait()
            if commands.is_command(line):
                self._echo(line)
                await self._carry_out(line)
            else:
                self._say(line[1:] if commands.escapes(line) else line)
            self._stirred.set()

    async def _carry_out(self, line: str) -> None:
        """A command. Most take no time; one that does can be stopped, like a turn."""
        told: list[runtime.ForOne] = []
        self._command = asyncio.create_task(self._door.send(self._here, events.Command(line), told.append))
        self._stirred.set()
        await asyncio.wait([self._command])
        await self._heard.taken()
        ended, self._command = self._command, None
        if ended.cancelled():
            self._front.write(self._page.prose("Stopped.", "yellow"))
            return
        ended.result()
        if line == "/help":
            every = [piece for each in keys.HELP for piece in self._page.prose(each, "dim")]
            self._front.write([show.Piece("\n"), *every])
        for event in told:
            match event:
                case events.Moved(conversation_id):
                    await self._move(conversation_id)
                case events.Say(words, content):
                    self._say(words, content)
                case events.Quit():
                    self.leave()
                case _:
                    assert_never(event)

    def _say(self, words: str, content: types.Content | None = None) -> None:
        """A message to the agent; it is echoed where its answer begins."""
        late = self._door.running(self._here)
        if late:
            self._queued(words)
        else:
            self._echo(words)
            self._working_since, self._stopping = time.monotonic(), False
        answered = self._door.submit(self._here, events.Submit(words, content=content))
        answered.add_done_callback(lambda _: self._stirred.set())
        self._sent.append(Sent(words, answered, late))

    def _queued(self, words: str) -> None:
        self._aside(lambda: self._front.write(self._page.one_line(f"Queued: {words}", "dim")))

    def _echo(self, words: str, late: bool = False) -> None:
        if late or not self._front.echoes:
            self._aside(lambda: self._front.echo("\n".join(text.safe_lines(words))))

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
        here = self._here
        while (typed := await self._questions.answer(asked, self._front)) is not None:
            if typed == "detail":
                self._front.write(self._page.detail(asked) or self._page.prose("There is no more to it.", "dim"))
            elif isinstance(typed, answering.Other):
                self._no_answer(typed.line)
            elif typed == "stop":
                # It is denied, and the turn is stopped.
                await self._door.send(here, events.Approve(asked.request_id, "deny", "at the terminal"))
                self.interrupted()
                return
            else:
                await self._door.send(here, typed)
                return

    def _no_answer(self, line: str) -> None:
        """A command is carried out while the question stands; other words are there again after it."""
        if line.strip():
            self._front.remember(line)
        if commands.is_command(line.strip()):
            self.typed(line)
            return
        if line.strip():
            self._front.draft(line)
        self._front.write(self._page.prose("Type y, c, a, n or d, and Enter.", "dim"))

    # --- showing -------------------------------------------------------------------------------------

    async def _hear(self) -> None:
        """The events of the conversation this is, whichever it is."""
        while True:
            await self._arrived.wait()
            here = self._here
            with self._door.listen(here, answers=True) as self._heard:
                self._listening.set()
                async for emitted in self._heard:
                    if isinstance(emitted.event, events.TurnStarted):
                        await self._begun(emitted.event)
                    self._show(emitted.event)
            if self._heard.closed:
                return

    def _show(self, event: events.AnyEvent) -> None:
        if isinstance(event, events.MessageStored) and event.role != "user":  # That one comes before its turn begins.
            self._seen = max(self._seen, event.seq)
        if isinstance(event, events.TurnQueued | events.TurnStarted | events.TurnFinished):
            self._waits = isinstance(event, events.TurnQueued)
        if isinstance(event, ASIDE):
            self._catch_up()
        self._front.write(self._page.draw(event))
        if not self._page.in_code:
            self._catch_up()
        self._front.changed()
        self._questions.heard(event)
        if isinstance(event, events.TurnStarted | events.TurnFinished | events.Compacted | events.ToolFinished):
            self._stirred.set()

    async def _begun(self, event: events.TurnStarted) -> None:
        """The turn of the first message that has no answer yet: it stands over its answer, and nothing between."""
        self._working_since, self._stopping = time.monotonic(), False
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
        pieces: list[show.Piece] = []
        with suppress(errors.HoldfastError):
            db, first = self._door.db, max(seen, seq - 1 - recap.STRETCH)
            between, hides = await db.transcript(self._here, first, seq - 1), await db.hides(self._here)
            pieces = recap.drawn(between, self._page, hides, under_way=True)
        if pieces:
            many = text.count(seq - 1 - seen, "message", "messages")
            self._front.write(self._page.prose(f"{many} came from elsewhere meanwhile:", "dim"))
            self._front.write(pieces)
        return bool(pieces)

    # --- how things stand ----------------------------------------------------------------------------

    @property
    def _busy(self) -> bool:
        return self._door.running(self._here) or self._command is not None or len(self._lines) > 0

    async def _look(self) -> None:
        """See how things stand whenever that may have changed; again and again while something goes on."""
        while True:
            self._stirred.clear()
            with suppress(errors.HoldfastError):
                self._standing = await status.looked(self._door, self._here)
            going_on = self._standing.compacting
            self._compacting_since = (self._compacting_since or time.monotonic()) if going_on else None
            self._front.changed()
            if not self._busy:
                self._front.ready()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK if self._busy or going_on else None):
                    await self._stirred.wait()

    def _standing_line(self) -> list[status.Fragment]:
        now, since = time.monotonic(), self._compacting_since
        queued = self._door.queued(self._here) + len(self._lines)
        return status.drawn(
            msgspec.structs.replace(self._standing, queued=queued, waiting=self._waits),
            max(self._columns() - 1, 0),
            self._page.marks,
            now - since if since is not None else 0.0,
            now - self._working_since if self._door.running(self._here) else None,
        )

    async def _arguments(self, line: str) -> Sequence[commands.Candidate]:
        return await commands.complete(self._door, self._here, line)

    def _columns(self) -> int:
        return self._front.columns
