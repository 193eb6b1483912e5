"""One person who types in one conversation at a time: the part that is the same in every interactive front end.

Lines are processed in the order in which they were typed. A message does not wait for the reply to the one before, as
the runtime queues messages; a line behind a slash command waits until that command has finished, unless it is a command
that runs meanwhile. A `SessionView` shows the result.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Protocol, assert_never

from holdfast import errors, events, safe_text, types
from holdfast.agent import commands
from holdfast.runtime import approval_queue, subscriptions
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

    async def show_changes(self) -> None:
        """Show what a command or another process may have changed in the log."""

    def show_command(self, line: str) -> None:
        """Show a command that is about to run."""

    def show_answer(self, answer: events.Notice) -> None:
        """Show an answer that is not an event of the conversation."""

    def show_sent(self, sent: events.Submit, result: asyncio.Future[events.TurnResult], queued: bool, /) -> None:
        """Show a message that was submitted; a queued one waits for another turn."""

    def show_queued(self, line: str, /) -> None:
        """Show a line that waits for the command before it."""

    def warn_before_leaving(self) -> None:
        """Say that the next Ctrl-C leaves."""

    def leave(self) -> None:
        """Close the front end."""


class InteractiveSession:
    """Processes what a person types. Call `open`, then run `process_lines` and `raise_failure` as tasks."""

    def __init__(self, runtime: runtime_module.Runtime, conversation_id: str, view: SessionView) -> None:
        self.runtime, self.conversation_id, self._view = runtime, conversation_id, view
        self.approvals = approval_queue.ApprovalQueue(runtime.approvals, conversation_id)
        self.command: asyncio.Task[None] | None = None
        self.subscription: subscriptions.Subscription[None] | None = None
        """The events of the current conversation; None while it is being left."""
        self._meanwhile = set[asyncio.Task[None]]()
        """Commands that run while another one does."""
        self._turn_started_at = 0.0
        self.changed, self._entered, self._failed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._error: BaseException | None = None
        self.waits_elsewhere = self.interrupting = self._warned = self._moving = False
        """`_moving`: the running command may leave the conversation, so every line waits for it."""

    @property
    def busy(self) -> bool:
        """Whether a turn or a command runs, or a line waits."""
        return self.runtime.running(self.conversation_id) or self.command is not None or bool(self.runtime.held)

    @property
    def queued(self) -> list[events.Submit]:
        """The messages that wait for a turn, then the lines that wait for a command."""
        return self.runtime.waiting(self.conversation_id)

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
        if self.command is not None and not self._moving and commands.runs_during_turn(line):
            task = asyncio.create_task(self._run_meanwhile(line))
            self._meanwhile.add(task)
            task.add_done_callback(self._end_meanwhile)
            return
        self.runtime.held.append(events.Submit(line))
        self._entered.set()
        if self.command is not None:
            self._view.show_queued(line)

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
            while not self.runtime.held:
                self._entered.clear()
                await self._entered.wait()
            line = self.runtime.held.popleft().text
            if commands.is_command(line):
                await self._run_command(line)
            else:
                self._submit(line[1:] if commands.is_escaped(line) else line)
            self.changed.set()

    async def _run_command(self, line: str) -> None:
        """Run a command as a task, so that it can be stopped."""
        found, replies = commands.find(line), list[runtime_module.SenderEvent]()
        self._moving = found is not None and (found.opens_conversation or found.picks_conversation)
        self.command = asyncio.create_task(self._send(line, replies))
        self.changed.set()
        await asyncio.wait([self.command])
        await self.show_changes()
        finished, self.command = self.command, None
        if finished.cancelled():
            self._view.show_answer(events.Notice(runtime_module.COMMAND_STOPPED, "warning"))
        else:
            finished.result()
            await self._apply(replies)

    async def _run_meanwhile(self, line: str) -> None:
        """Run a command that does not wait for the running one."""
        replies: list[runtime_module.SenderEvent] = []
        await self._send(line, replies)
        await self.show_changes()
        await self._apply(replies)

    def _end_meanwhile(self, task: asyncio.Task[None]) -> None:
        self._meanwhile.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    async def _send(self, line: str, replies: list[runtime_module.SenderEvent]) -> None:
        self._view.show_command(line)
        await self.runtime.send(self.conversation_id, events.Command(line), replies.append)

    async def _apply(self, replies: list[runtime_module.SenderEvent]) -> None:
        """Do what a command wants of its sender."""
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
        """Show the conversation and start following its events and its log."""
        await self._view.show_conversation(left)
        self.approvals.conversation_id = self.conversation_id
        self.approvals.open()
        self.subscription = subscriptions.Subscription(self.runtime, self.conversation_id, self._deliver)
        self.subscription.start()
        self.changed.set()

    async def close(self) -> None:
        """Show the events that were emitted so far, and stop following the conversation."""
        subscription, self.subscription = self.subscription, None
        if subscription is not None:
            subscription.stop()
            await subscription.drain()
            await subscription.close()
        self.approvals.close()

    def abandon(self) -> None:
        """Stop following the conversation at once."""
        if self.subscription is not None:
            self.subscription.abandon()
        self.approvals.close()

    async def switch(self, conversation_id: str) -> None:
        """Continue in another conversation, after all events of this one have been shown."""
        if conversation_id == self.conversation_id:
            self._view.show_answer(events.Notice("You are already in this conversation."))
            return
        left = self.conversation_id
        if self._meanwhile:
            await asyncio.wait(self._meanwhile)
        await self.close()
        self._view.leave_conversation()
        # Only now: the events until here belong to the conversation that was left.
        self.conversation_id = conversation_id
        self.waits_elsewhere = self._warned = False
        self._start_clock()
        await self.open(left if self.runtime.running(left) else None)

    async def _deliver(self, item: subscriptions.Item[None]) -> None:
        try:
            await self._show(item)
        except Exception as error:
            # Border of the view.
            self._fail(error)
            raise

    def _fail(self, error: BaseException) -> None:
        """End the front end with this error."""
        self._error = error
        self._failed.set()

    async def raise_failure(self) -> None:
        """Wait until the view, or a command that runs meanwhile, fails, and raise its error."""
        await self._failed.wait()
        if self._error is not None:
            raise self._error

    async def _show(self, item: subscriptions.Item[None]) -> None:
        if not isinstance(item, subscriptions.Received):
            await self._view.show_changes()
            self.changed.set()
            return
        event = item.event
        if isinstance(event, events.TurnStarted):
            self._start_clock()
        if isinstance(event, events.TurnQueued | events.TurnStarted | events.TurnFinished):
            self.waits_elsewhere = isinstance(event, events.TurnQueued)
        await self._view.show_event(event)
        if isinstance(event, STATUS_EVENTS):
            self.changed.set()

    async def show_changes(self) -> None:
        """Show all events that were emitted so far, and what has changed in the log."""
        if self.subscription is not None:
            self.subscription.request_check()
            await self.subscription.flush()

    async def wait_for_change(self, seconds: float | None) -> None:
        """Wait until the status may have changed, at most this long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.changed.wait()

    # --- leaving -------------------------------------------------------------------------------------

    def drop_queued(self) -> str | None:
        """Stop the running command and drop all queued messages; return a sentence if there were any."""
        dropped = len(self.runtime.held)
        self.runtime.held.clear()
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
