"""The chat in plain scrollback: a line is typed, the answer streams, and the next line can be typed.

While an answer streams nothing can be edited; what is typed meanwhile waits for the next prompt. A front end
like any other: it sends commands to the runtime and renders events, and knows one conversation at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol, TextIO

import msgspec

from holdfast import errors, events, types
from holdfast.agent import commands, runtime
from holdfast.terminal import activity, answering, asking, completion, keys, live, prompt, recap, reply, show, status

ONCE_MORE = "Ctrl-C once more leaves, as Ctrl-D does."
# Seconds between looks at what goes on beside the talk, while something does.
LOOK = 1.0


class Paper(Protocol):
    """What the chat writes on."""

    @property
    def out(self) -> TextIO: ...
    @property
    def colour(self) -> bool: ...
    def style(self, line: str, *names: str) -> str: ...


def stop(task: asyncio.Task[None]) -> None:
    task.cancel()


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


class Chat:
    """One person at one terminal."""

    def __init__(self, door: runtime.Runtime, paper: Paper, opening: Opening, marks: show.Marks | None = None) -> None:
        self._door, self._paper, self._opening = door, paper, opening
        self._here = opening.conversation_id
        words = completion.Words(door.words.listed if door.words else tuple, self._arguments)
        self._session = prompt.session(
            opening.history, colour=paper.colour, completer=words, standing=self._standing_line
        )
        drawn = (reply.Reply(self._size, marks), activity.Activity(self._size, marks)) if paper.colour else ()
        self._page = show.Page(marks, lambda: self._size().columns, *drawn)
        self._standing = status.Standing(opening.model)
        self._compacting_since: float | None = None
        self._keyboard = answering.Keyboard(self._session.input, self._session.output)
        self._questions = answering.Questions()
        self._moved: events.Moved | None = None
        self._words: events.Say | None = None
        self._left = False
        self._stops = 0

    async def run(self) -> None:
        """Talk until the person leaves."""
        try:
            await self._open()
            while not self._left and (line := await self._typed()) is not None:
                await self._carry_out(line)
        finally:
            self._write(self._page.break_off())

    # --- arriving ------------------------------------------------------------------------------------

    async def _open(self) -> None:
        opening, dot = self._opening, self._page.marks.dot
        self._write(self._page.prose(f"{opening.program} {dot} {opening.model} {dot} /help lists the commands", "bold"))
        if opening.notice:
            self._write(self._page.prose(opening.notice, "yellow"))
        await self._arrive()

    async def _arrive(self) -> None:
        """Say which conversation this is, and how it stood."""
        try:
            found = await self._door.db.conversation(self._here)
        except errors.ConversationDeleted as error:
            self._write([*self._page.prose(str(error), "red"), *self._page.lines("")])
            return
        except errors.NoSuchSession:
            self._write([*self._page.prose("A new conversation: it begins with your first message.", "dim")])
            self._write(self._page.lines(""))
            return
        messages = await self._door.db.transcript(self._here, max(0, found.last_seq - recap.STRETCH))
        many = "1 message" if found.last_seq == 1 else f"{found.last_seq:,} messages"
        self._write(self._page.prose(f"{found.title or found.id} {self._page.marks.dot} {many}", "dim"))
        if found.compaction_epoch is not None:
            made = await self._door.db.compactions(self._here)
            self._write(recap.covered(made, found.compaction_epoch, self._page))
        self._write([*self._page.lines(""), *recap.drawn(messages, self._page)])

    # --- typing --------------------------------------------------------------------------------------

    async def _typed(self) -> str | None:
        """The next line; None when there will be none."""
        warned = False
        while True:
            try:
                line = (await self._prompted()).strip()
            except EOFError:
                return None
            except KeyboardInterrupt:
                typed = bool(self._session.default_buffer.text)
                if warned and not typed:
                    return None
                warned = not typed
                self._write(self._page.prose(ONCE_MORE, "dim") if warned else [])
                continue
            if line:
                return line.encode("utf-8", "replace").decode()  # A keyboard may send what is no text.

    async def _prompted(self) -> str:
        """What is typed at the prompt, with how things stand under it."""
        looking = asyncio.create_task(self._look())
        try:
            return await self._session.prompt_async()
        finally:
            looking.cancel()
            await asyncio.wait([looking])

    async def _look(self) -> None:
        """See how things stand; again and again while a compaction is made beside the talk."""
        while True:
            with suppress(errors.HoldfastError):
                self._standing = await status.looked(self._door, self._here)
            going_on = self._standing.compacting
            self._compacting_since = (self._compacting_since or time.monotonic()) if going_on else None
            self._session.app.invalidate()
            if not going_on:
                return
            await asyncio.sleep(LOOK)

    def _standing_line(self) -> list[status.Fragment]:
        since = self._compacting_since
        seconds = time.monotonic() - since if since is not None else 0.0
        return status.drawn(self._standing, max(self._size().columns - 1, 0), self._page.marks, seconds)

    async def _arguments(self, line: str) -> Sequence[commands.Candidate]:
        return await commands.complete(self._door, self._here, line)

    def _size(self) -> live.Size:
        size = self._session.output.get_size()
        return live.Size(size.columns, size.rows)

    async def _carry_out(self, line: str) -> None:
        if line.startswith("/") and not line.startswith("//"):
            await self._command(line)
            if self._words is not None:
                said, self._words = self._words, None
                await self._turn(said.text, said.content)
            if line == "/help":
                self._write(
                    [show.Piece("\n"), *(piece for each in prompt.KEYS for piece in self._page.prose(each, "dim"))]
                )
        else:
            await self._turn(line[1:] if line.startswith("//") else line)
        self._write([*self._page.break_off(), show.Piece("\n")])
        if self._moved is not None:
            self._here, self._moved = self._moved.conversation_id, None
            await self._arrive()

    async def _command(self, line: str) -> None:
        """Most take no time; one that does can be stopped, like a turn."""
        task = asyncio.create_task(asking.command(self._door, self._here, line, self._show))
        with keys.watched(self._session.input, lambda: stop(task)):
            await asyncio.wait([task])
        if task.cancelled():
            self._write(self._page.prose("Stopped.", "yellow"))
        else:
            task.result()

    async def _turn(self, words: str, content: types.Content | None = None) -> None:
        asked, self._stops = asking.Asking(self._door, self._here, self._show, answers=True), 0

        def stop() -> None:
            # Whoever asks again while it is being stopped wants to leave.
            self._stops += 1
            self._left = self._stops > 1
            asked.stop()

        turn = asyncio.create_task(asked.ask(words, content))
        try:
            while not turn.done():
                await self._until_asked(turn, stop)
        finally:
            turn.cancel()
            await asyncio.wait([turn])
        turn.result()

    async def _until_asked(self, turn: asyncio.Task[events.TurnResult | None], stop: Callable[[], None]) -> None:
        """Up to the end of the turn, or to the next question and its answer."""
        question = asyncio.create_task(self._questions.next())
        try:
            with keys.watched(self._session.input, stop):
                await asyncio.wait([turn, question], return_when=asyncio.FIRST_COMPLETED)
            if question.done():
                await self._answer(question.result(), stop)
        finally:
            question.cancel()

    async def _answer(self, asked: events.ApprovalAsked, stop: Callable[[], None]) -> None:
        """Have a question answered, here or elsewhere."""
        while (typed := await self._questions.answer(asked, self._keyboard)) is not None:
            if typed == "stop":
                # It is denied, and the turn is stopped.
                await self._door.send(self._here, events.Approve(asked.request_id, "deny", "at the terminal"))
                stop()
                return
            if typed == "detail":
                self._write(self._page.detail(asked) or self._page.prose("There is no more to it.", "dim"))
            elif typed == "again":
                self._write(self._page.prose("Type y, c, a, n or d, and Enter.", "dim"))
            else:
                await self._door.send(self._here, typed)
                return

    # --- showing -------------------------------------------------------------------------------------

    def _show(self, event: events.AnyEvent) -> None:
        self._write(self._page.draw(event))
        self._questions.heard(event)
        if isinstance(event, events.Moved):
            self._moved = event
        elif isinstance(event, events.Say):
            self._words = event
        elif isinstance(event, events.Quit):
            self._left = True

    def _write(self, pieces: Sequence[show.Piece]) -> None:
        for words, style in pieces:
            self._paper.out.write(self._paper.style(words, style) if style and words else words)
        if pieces:
            self._paper.out.flush()
