"""One person who types in one conversation at a time: the part that is the same in every interactive front end.

Lines are processed in the order in which they were typed. A message does not wait for the reply to the one before, as
the runtime queues messages; a line behind a slash command waits until that command has finished. A `SessionView` shows
the result.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from typing import Protocol, assert_never

from holdfast import errors, events, safe_text, types
from holdfast.agent import commands
from holdfast.agent.commands import turns
from holdfast.runtime import runtime as runtime_module

# Events after which the status of the conversation may differ.
STATUS_EVENTS = (events.TurnStarted, events.TurnFinished, events.Compacted, events.ToolFinished)


class SessionView(Protocol):
    """The front end of an interactive session."""

    async def show_conversation(self, left: str | None) -> None:
        """Show the current conversation. `left` is the previous one if its turn is still running."""

    def leave_conversation(self) -> None:
        """Stop showing the conversation; no more of its events follow."""

    async def show_event(self, event: events.AnyEvent) -> None:
        """Show an event of the current conversation."""

    def show_command(self, line: str) -> None:
        """Show a command that is about to run."""

    async def finish_command(self, line: str) -> None:
        """Update the view after a command; all events that it emitted have been shown."""

    def show_answer(self, answer: events.Answer | events.Notice) -> None:
        """Show an answer that is not an event of the conversation."""

    def show_sent(self, sent: events.Submit, result: asyncio.Future[events.TurnResult], queued: bool, /) -> None:
        """Show a message that was submitted; a queued one waits for another turn."""

    def show_queued(self, line: str, /) -> None:
        """Show a line that waits for the command before it."""

    def warn_before_leaving(self) -> None:
        """Say that the next Ctrl-C leaves."""

    def leave(self) -> None:
        """Close the front end."""


class InputQueue:
    """Lines that were typed and are not processed yet, in order."""

    def __init__(self) -> None:
        self._lines: deque[events.Submit] = deque()
        self._added = asyncio.Event()

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def lines(self) -> list[events.Submit]:
        """The lines, each as the message it may become."""
        return list(self._lines)

    def add(self, line: str) -> None:
        """Add a line at the end."""
        self._lines.append(events.Submit(line))
        self._added.set()

    def drop(self, line: events.Submit) -> bool:
        """Remove this line, not another one with the same text; return False if it is not in the queue."""
        for place, each in enumerate(self._lines):
            if each is line:
                del self._lines[place]
                return True
        return False

    async def next(self) -> str:
        """Wait for the next line and remove it."""
        while not self._lines:
            self._added.clear()
            await self._added.wait()
        return self._lines.popleft().text


class InteractiveSession:
    """Processes what a person types. Call `open`, then run `process_lines` and `follow_events` as tasks."""

    def __init__(self, runtime: runtime_module.Runtime, conversation_id: str, view: SessionView) -> None:
        self.runtime, self.conversation_id, self._view = runtime, conversation_id, view
        self.lines = InputQueue()
        self.command: asyncio.Task[None] | None = None
        self.events: runtime_module.EventStream | None = None
        self._turn_started_at = 0.0
        self.changed, self._shown, self._subscribed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.waits_elsewhere = self.interrupting = self._warned = False

    @property
    def busy(self) -> bool:
        """Whether a turn or a command runs, or a line waits."""
        return self.runtime.running(self.conversation_id) or self.command is not None or len(self.lines) > 0

    @property
    def queued(self) -> list[events.Submit]:
        """The messages that wait for a turn, then the lines that wait for a command."""
        return [*self.runtime.waiting(self.conversation_id), *self.lines.lines]

    @property
    def turn_seconds(self) -> float | None:
        """Seconds since the running turn started; None if none runs."""
        return time.monotonic() - self._turn_started_at if self.runtime.running(self.conversation_id) else None

    # --- input ---------------------------------------------------------------------------------------

    def enter(self, line: str) -> None:
        """Accept a line that was ended with Enter."""
        line = line.encode("utf-8", "replace").decode().strip()  # A keyboard may send unpaired surrogates.
        self._warned = False
        if not line:
            return
        running = self.command is not None
        if self.command is not None and self._run_at_once(line, self.command):
            return
        self.lines.add(line)
        if running:
            self._view.show_queued(line)

    def _run_at_once(self, line: str, command: asyncio.Task[None]) -> bool:
        """Run a line that must not wait for the running command; return False for any other line."""
        name, argument = commands.split(line) if commands.is_command(line) else ("", "")
        match name.lower(), argument:
            case "stop", "":
                return command.cancel()
            case "quit", "":
                command.cancel()
                self._view.leave()
            case "queue", _:
                self._view.show_command(line)
                self._view.show_answer(self._run_queue_command(argument))
            case _:
                return False
        return True

    def _run_queue_command(self, argument: str) -> events.Answer | events.Notice:
        def drop(message: events.Submit) -> bool:
            return self.runtime.drop(self.conversation_id, message) or self.lines.drop(message)

        try:
            return events.Answer(turns.manage_queue(argument, self.queued, drop))
        except errors.HoldfastError as error:
            return events.Notice(str(error), "error")

    def interrupt(self) -> None:
        """Handle Ctrl-C at an empty prompt: stop the command or turn; if nothing runs, leave at the second one."""
        if self.command is not None:
            self.command.cancel()
        elif self.runtime.running(self.conversation_id):
            if self.interrupting:
                self._view.leave()
            self.interrupting = True
            self.runtime.interrupt(self.conversation_id)
        elif self._warned:
            self._view.leave()
        else:
            self._warned = True
            self._view.warn_before_leaving()

    def leave(self) -> None:
        """Close the front end."""
        self._view.leave()

    def cancel_warning(self) -> None:
        """Treat the next Ctrl-C as the first one again."""
        self._warned = False

    # --- processing ----------------------------------------------------------------------------------

    async def process_lines(self) -> None:
        """Run commands and submit messages, one line after the other, for as long as the session lasts."""
        while True:
            line = await self.lines.next()
            await self._subscribed.wait()
            if commands.is_command(line):
                self._view.show_command(line)
                await self._run_command(line)
            else:
                self._submit(line[1:] if commands.is_escaped(line) else line)
            self.changed.set()

    async def _run_command(self, line: str) -> None:
        """Run a command as a task, so that it can be stopped."""
        replies: list[runtime_module.SenderEvent] = []
        self.command = asyncio.create_task(
            self.runtime.send(self.conversation_id, events.Command(line), replies.append)
        )
        self.changed.set()
        await asyncio.wait([self.command])
        await self.wait_for_events()
        finished, self.command = self.command, None
        if finished.cancelled():
            self._view.show_answer(events.Notice("Stopped.", "warning"))
            return
        finished.result()
        await self._view.finish_command(line)
        for event in replies:
            match event:
                case events.Moved(conversation_id):
                    await self.switch(conversation_id)
                case events.Say(text, content):
                    self._submit(text, content)
                case events.Quit():
                    self._view.leave()
                case _:
                    assert_never(event)

    def _submit(self, text: str, content: types.Content | None = None) -> None:
        queued, message = self.runtime.running(self.conversation_id), events.Submit(text, content=content)
        if not queued:
            self._start_clock()
        result = self.runtime.submit(self.conversation_id, message)
        result.add_done_callback(lambda _: self.changed.set())
        self._view.show_sent(message, result, queued)

    def _start_clock(self) -> None:
        self._turn_started_at, self.interrupting = time.monotonic(), False

    # --- the conversation ----------------------------------------------------------------------------

    async def open(self, left: str | None = None) -> None:
        """Show the conversation and start following its events."""
        await self._view.show_conversation(left)
        self._shown.set()
        self.changed.set()

    async def switch(self, conversation_id: str) -> None:
        """Continue in another conversation, after all events of this one have been shown."""
        if conversation_id == self.conversation_id:
            self._view.show_answer(events.Notice("You are already in this conversation."))
            return
        left = self.conversation_id
        self._shown.clear()
        self._subscribed.clear()
        if self.events is not None:
            self.events.put(None)
        await self.wait_for_events()
        self._view.leave_conversation()
        # Only now: the events until here belong to the conversation that was left.
        self.conversation_id = conversation_id
        self.waits_elsewhere = self._warned = False
        self._start_clock()
        await self.open(left if self.runtime.running(left) else None)
        await self._subscribed.wait()

    async def follow_events(self) -> None:
        """Show the events of the current conversation until the runtime closes."""
        while True:
            await self._shown.wait()
            with self.runtime.subscribe(self.conversation_id, can_approve=True) as subscription:
                self.events = subscription
                self._subscribed.set()
                async for emitted in subscription:
                    await self._show(emitted.event)
            if subscription.closed:
                return

    async def _show(self, event: events.AnyEvent) -> None:
        if isinstance(event, events.TurnStarted):
            self._start_clock()
        if isinstance(event, events.TurnQueued | events.TurnStarted | events.TurnFinished):
            self.waits_elsewhere = isinstance(event, events.TurnQueued)
        await self._view.show_event(event)
        if isinstance(event, STATUS_EVENTS):
            self.changed.set()

    async def wait_for_events(self) -> None:
        """Wait until all events that were emitted so far have been shown."""
        if self.events is not None:
            await self.events.drained()

    async def wait_for_change(self, seconds: float | None) -> bool:
        """Wait until the status may have changed, at most this long; return whether it may have."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.changed.wait()
        return self.changed.is_set()

    # --- leaving -------------------------------------------------------------------------------------

    def drop_queued(self) -> str | None:
        """Stop the running command and drop all queued messages; return a sentence if there were any."""
        dropped = len(self.lines)
        for conversation_id in self.runtime.busy():
            dropped += sum(self.runtime.drop(conversation_id, each) for each in self.runtime.waiting(conversation_id))
        if self.command is not None:
            self.command.cancel()
        count = safe_text.count(dropped, "queued message was", "queued messages were")
        return f"{count} not sent." if dropped else None

    async def interrupt_others(self) -> list[str]:
        """Interrupt the turns of the other conversations; return a sentence about each."""
        sentences = list[str]()
        for other in self.runtime.busy():
            if other != self.conversation_id and self.runtime.interrupt(other):
                sentences.append(f"The reply in {await self._title(other)} was interrupted; its text so far is saved.")
        return sentences

    async def _title(self, conversation_id: str) -> str:
        with suppress(errors.HoldfastError):
            return (await self.runtime.db.conversation(conversation_id)).title or conversation_id
        return conversation_id
