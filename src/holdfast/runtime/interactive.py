"""One person who talks, in one conversation at a time: what every front end for a person does alike.

Lines are carried out in the order they were typed. A message does not wait for the answer to the one before: the
runtime keeps them in order; whatever is typed behind a command waits until that is carried out. What is to be seen of
all this is up to a view.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Protocol, assert_never

from holdfast import errors, events, safe_text, types
from holdfast.agent import commands
from holdfast.agent.commands import turns
from holdfast.runtime import input_queue, runtime

STIRRING = (events.TurnStarted, events.TurnFinished, events.Compacted, events.ToolFinished)


class View(Protocol):
    """Where it is seen."""

    async def arrived(self, left: str | None) -> None:
        """Show how the conversation stands that it is in now. `left` was left while its answer goes on."""

    def departed(self) -> None:
        """Nothing more comes from the conversation it was in."""

    async def happened(self, event: events.AnyEvent) -> None:
        """An event of this conversation."""

    def commanded(self, line: str) -> None:
        """A command, just before it is carried out."""

    async def carried_out(self, line: str) -> None:
        """It was, and all that it said to everybody has happened."""

    def answered(self, answer: events.Answer | events.Notice) -> None:
        """What the person alone is told."""

    def said(self, sent: events.Submit, answered: asyncio.Future[events.TurnResult], late: bool, /) -> None:
        """A message was sent; one that is late waits for the answer to another."""

    def queued(self, line: str, /) -> None:
        """A line waits for the command before it."""

    def warned(self) -> None:
        """Once more, and it leaves."""

    def leave(self) -> None: ...


class Talk:
    """What is under way. `work` and `hear` run for as long as it lasts, once `arrive` was called."""

    def __init__(self, door: runtime.Runtime, conversation_id: str, view: View) -> None:
        self.door, self.here, self._view = door, conversation_id, view
        self.lines = input_queue.Lines()
        self.command: asyncio.Task[None] | None = None
        self.heard: runtime.Subscription | None = None
        self.answering_since = 0.0
        self.stirred, self._arrived, self._listens = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.waits = self.stopping = self._warned = False

    @property
    def busy(self) -> bool:
        return self.door.running(self.here) or self.command is not None or len(self.lines) > 0

    @property
    def waiting(self) -> list[events.Submit]:
        """What waits for a turn, and behind it what waits for a command."""
        return [*self.door.waiting(self.here), *self.lines.waiting]

    # --- the person ----------------------------------------------------------------------------------

    def typed(self, line: str) -> None:
        """A line, ended with Enter."""
        line = line.encode("utf-8", "replace").decode().strip()  # A keyboard may send what is no text.
        self._warned = False
        if not line:
            return
        late = self.command is not None
        if self.command is not None and self._at_once(line, self.command):
            return
        self.lines.add(line)
        if late:
            self._view.queued(line)

    def _at_once(self, line: str, command: asyncio.Task[None]) -> bool:
        """What is not to wait for a command: to stop it, to leave, to look at what waits. Whether this was that."""
        name, argument = commands.split(line) if commands.is_command(line) else ("", "")
        match name.lower(), argument:
            case "stop", "":
                return command.cancel()
            case "quit", "":
                command.cancel()
                self._view.leave()
            case "queue", _:
                self._view.commanded(line)
                self._view.answered(self._looked_at_queue(argument))
            case _:
                return False
        return True

    def _looked_at_queue(self, argument: str) -> events.Answer | events.Notice:
        door, here = self.door, self.here
        try:
            return events.Answer(
                turns.manage_queue(argument, self.waiting, lambda each: door.drop(here, each) or self.lines.drop(each))
            )
        except errors.HoldfastError as error:
            return events.Notice(str(error), "error")

    def interrupted(self) -> None:
        """Ctrl-C with nothing written: stops what runs; where nothing does, leaves the second time."""
        if self.command is not None:
            self.command.cancel()
        elif self.door.running(self.here):
            # Whoever asks again while it is being stopped wants to leave.
            if self.stopping:
                self._view.leave()
            self.stopping = True
            self.door.interrupt(self.here)
        elif self._warned:
            self._view.leave()
        else:
            self._warned = True
            self._view.warned()

    def leave(self) -> None:
        self._view.leave()

    def calm(self) -> None:
        """The warning is over: the next Ctrl-C is the first one again."""
        self._warned = False

    # --- what was typed ------------------------------------------------------------------------------

    async def work(self) -> None:
        while True:
            line = await self.lines.next()
            await self._listens.wait()
            if commands.is_command(line):
                self._view.commanded(line)
                await self._carry_out(line)
            else:
                self._say(line[1:] if commands.is_escaped(line) else line)
            self.stirred.set()

    async def _carry_out(self, line: str) -> None:
        """A command. Most take no time; one that does can be stopped, like a turn."""
        told: list[runtime.SenderEvent] = []
        self.command = asyncio.create_task(self.door.send(self.here, events.Command(line), told.append))
        self.stirred.set()
        await asyncio.wait([self.command])
        await self.caught_up()
        ended, self.command = self.command, None
        if ended.cancelled():
            self._view.answered(events.Notice("Stopped.", "warning"))
            return
        ended.result()
        await self._view.carried_out(line)
        for event in told:
            match event:
                case events.Moved(conversation_id):
                    await self.move(conversation_id)
                case events.Say(words, content):
                    self._say(words, content)
                case events.Quit():
                    self._view.leave()
                case _:
                    assert_never(event)

    def _say(self, words: str, content: types.Content | None = None) -> None:
        late, sent = self.door.running(self.here), events.Submit(words, content=content)
        if not late:
            self._begins()
        answered = self.door.submit(self.here, sent)
        answered.add_done_callback(lambda _: self.stirred.set())
        self._view.said(sent, answered, late)

    def _begins(self) -> None:
        self.answering_since, self.stopping = time.monotonic(), False

    # --- where it is ---------------------------------------------------------------------------------

    async def arrive(self, left: str | None = None) -> None:
        """Show how things stand here, and then what happens."""
        await self._view.arrived(left)
        self._arrived.set()
        self.stirred.set()

    async def move(self, conversation_id: str) -> None:
        """Go on in another conversation, once all is shown that was said in this one."""
        if conversation_id == self.here:
            self._view.answered(events.Notice("This is that conversation: you are in it already."))
            return
        left = self.here
        self._arrived.clear()
        self._listens.clear()
        if self.heard is not None:
            self.heard.put(None)
        await self.caught_up()
        self._view.departed()
        # Only now: what happened there was shown as what it is.
        self.here = conversation_id
        self.waits = self._warned = False
        self._begins()
        await self.arrive(left if self.door.running(left) else None)
        await self._listens.wait()

    async def hear(self) -> None:
        """The events of the conversation this is, whichever it is; until the runtime closes."""
        while True:
            await self._arrived.wait()
            with self.door.subscribe(self.here, can_approve=True) as heard:
                self.heard = heard
                self._listens.set()
                async for emitted in heard:
                    await self._happened(emitted.event)
            if heard.closed:
                return

    async def _happened(self, event: events.AnyEvent) -> None:
        if isinstance(event, events.TurnStarted):
            self._begins()
        if isinstance(event, events.TurnQueued | events.TurnStarted | events.TurnFinished):
            self.waits = isinstance(event, events.TurnQueued)
        await self._view.happened(event)
        if isinstance(event, STIRRING):
            self.stirred.set()

    async def caught_up(self) -> None:
        """Until all is shown that has happened."""
        if self.heard is not None:
            await self.heard.drained()

    async def stirs(self, seconds: float | None) -> bool:
        """Until something may have changed, but no longer than this; whether it was that."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.stirred.wait()
        return self.stirred.is_set()

    # --- leaving -------------------------------------------------------------------------------------

    def give_up(self) -> str | None:
        """Take back all that still waits, in whichever conversation; a sentence about it, where there was any."""
        door = self.door
        dropped = sum(door.drop(here, each) for here in door.busy() for each in door.waiting(here)) + len(self.lines)
        if self.command is not None:
            self.command.cancel()
        many = safe_text.count(dropped, "message that waited was", "messages that waited were")
        return f"{many} not sent." if dropped else None

    async def stop_elsewhere(self) -> list[str]:
        """Stop the answers in the other conversations; a sentence about each."""
        told = list[str]()
        for elsewhere in self.door.busy():
            if elsewhere != self.here and self.door.interrupt(elsewhere):
                told.append(f"The answer in {await self._named(elsewhere)} was stopped; what was said of it stays.")
        return told

    async def _named(self, conversation_id: str) -> str:
        with suppress(errors.HoldfastError):
            return (await self.door.db.conversation(conversation_id)).title or conversation_id
        return conversation_id
