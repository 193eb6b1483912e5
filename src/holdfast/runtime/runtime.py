"""The runtime: front ends send commands for a conversation and render its events.

Messages to one conversation are answered one after the other, in the order in which they were submitted. All
subscribers of a conversation get the same events in the same order. Inbox entries of a conversation are answered before
its next message, and never interrupt a turn.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from types import TracebackType
from typing import Self, assert_never

from holdfast import errors, events, types
from holdfast.agent import agent as agents
from holdfast.agent import agent_cache, commands
from holdfast.agent import approvals as permissions
from holdfast.model import base as models
from holdfast.model import reply_builder
from holdfast.runtime import inbox_messages, linked_chats
from holdfast.store import async_db, conversation_row, notifications

logger = logging.getLogger("holdfast.agent")

MAX_INBOX_ENTRIES = 10_000
REVIEW_SECONDS = 5.0
"""How long the end of a conversation waits for its memory review."""
POLL_SECONDS = 5.0
ADMINS_ONLY, COMMAND_STOPPED = "This command is for admins.", "The command was stopped."

SettleEntry = Callable[[types.InboxEntry, events.TurnResult | None, str, int | None], Awaitable[str | None]]
"""Called with an inbox entry, the result of its turn (None if it raised), the outcome, and the seq of its message.
Returns the route that the reply is sent to, if any."""

SenderEvent = events.Say | events.Moved | events.Quit
"""Events of a command that only its sender gets."""


def discard(_: events.AnyEvent) -> None:
    """Ignore an event."""


class EventStream:
    """The events of a conversation from now on: iterate over them, or pass `on_event`, which must be fast and must not
    raise."""

    def __init__(self, on_event: Callable[[events.Emitted], object] | None = None) -> None:
        self._queue: asyncio.Queue[events.Emitted | None] = asyncio.Queue()
        self._on_event = on_event

    def put(self, event: events.Emitted | None) -> None:
        """Deliver an event; None ends the iteration."""
        if self._on_event is None:
            self._queue.put_nowait(event)
        elif event is not None:
            self._on_event(event)

    async def __aiter__(self) -> AsyncIterator[events.Emitted]:
        while (event := await self._queue.get()) is not None:
            yield event


class ConversationState:
    """One conversation in this process: its subscriptions, its queue and its running turn."""

    def __init__(self, conversation_id: str) -> None:
        self.conversation_id = conversation_id
        self.subscriptions: list[EventStream] = []
        self.waiting: deque[tuple[events.Submit, asyncio.Future[events.TurnResult]]] = deque()
        self.worker: asyncio.Task[None] | None = None
        self.agent: agents.AIAgent | None = None
        self.interrupted = self.in_turn = False
        """`interrupted`: the next turn is refused, because it was interrupted before it began."""
        self.inbox_empty = False
        """Whether the sender of the waiting message has just read that the inbox is empty."""
        self.inbox_subscriptions = 0
        self.inbox_due = self.inbox_forced = False
        """Whether the inbox is to be read before the next turn; whether to deliver it even without subscribers."""
        self._count = 0

    def interrupt(self) -> bool:
        """Stop the running turn, or the one that is about to begin; return whether there was one."""
        if self.worker is None:
            return False
        if self.agent is None or not self.agent.interrupt():
            self.interrupted = True
        return True

    def emit(self, event: events.AnyEvent) -> None:
        self._count += 1
        emitted = events.Emitted(self.conversation_id, self._count, event)
        for subscription in self.subscriptions:
            subscription.put(emitted)

    def cancel_waiting(self) -> None:
        while self.waiting:
            self.waiting.popleft()[1].cancel()

    @property
    def is_idle(self) -> bool:
        return not (self.subscriptions or self.waiting or self.worker)


class Runtime:
    """Runs the agents of any number of conversations. `async with` starts and stops it.

    `approvals` are those that its agents were created with: subscribers answer for them. Subscriptions check the log
    for messages of other processes every `poll_seconds`: not every database sends hints, and hints can be lost.
    """

    def __init__(
        self,
        db: async_db.AsyncSessionDB,
        build: agent_cache.Build,
        *,
        owner: str = "",
        prompt_commands: commands.PromptCommands | None = None,
        models: commands.Models | None = None,
        approvals: permissions.Approvals | None = None,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self.db, self.owner, self.poll_seconds = db, owner, poll_seconds
        self.prompt_commands, self.models = prompt_commands, models
        self.approvals = approvals or permissions.Approvals(db.permissions, owner=owner)
        self.agents = agent_cache.AgentCache(build)
        self._build = build
        self._states: dict[str, ConversationState] = {}
        self._titles: dict[str, str] = {}
        self._inbox_checks = set[asyncio.Task[None]]()
        self._commands: dict[asyncio.Task[None], tuple[str, bool, bool]] = {}
        """Running commands: their conversation, whether other commands wait for them, and whether they are slow."""
        self.held: deque[events.Submit] = deque()
        """Lines that an interactive session holds back until its command ends; /queue lists and drops them."""
        self.input_help = ""
        """Help on keys that /help appends."""
        self._hints = ExitStack()
        self._closing = self._abandoned = False
        self.send_to_chat: Callable[[str, str | None, events.Notice], object] = lambda _id, _route, _notice: None
        """Called with notices for chats and the route of their turn; replaced by a front end that serves chats."""
        self.settle_entry: SettleEntry = self._settle_entry
        """Records the outcome of an inbox entry; replaced by a front end that reports it elsewhere too."""
        self.copies_turns = True
        """Whether turns are copied to the linked chats of their conversation."""
        self.wake_sender: Callable[[str], object] = lambda _platform: None
        """Called with a platform that has a message to send; replaced by a front end that sends messages."""

    async def __aenter__(self) -> Self:
        self._hints.enter_context(self.db.notifications.listen(self._on_hint))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop running turns and commands, cancel waiting messages, close the agents. Inbox entries stay."""
        self._closing = True
        self._hints.close()
        for task in (*self._inbox_checks, *self._commands):
            task.cancel()
        for state in list(self._states.values()):
            state.cancel_waiting()
            state.interrupt()
        workers = [state.worker for state in self._states.values() if state.worker]
        if running := [*workers, *self._inbox_checks, *self._commands]:
            await asyncio.wait(running)
        await self.agents.close()
        for state in self._states.values():
            for subscription in state.subscriptions:
                subscription.put(None)

    # --- events --------------------------------------------------------------------------------------

    @contextmanager
    def subscribe(
        self,
        conversation_id: str,
        *,
        can_approve: bool = False,
        takes_inbox: bool = True,
        on_event: Callable[[events.Emitted], object] | None = None,
    ) -> Iterator[EventStream]:
        """Subscribe to the events of a conversation during the block.

        `can_approve`: a person answers approval requests here; requests without such a subscriber are denied.
        `takes_inbox`: inbox entries are delivered while this subscription exists.
        """
        state, subscription = self._state(conversation_id), EventStream(on_event)
        state.subscriptions.append(subscription)
        state.inbox_subscriptions += takes_inbox
        self.check_inbox(conversation_id)
        try:
            with self.approvals.accept_answers(conversation_id) if can_approve else nullcontext():
                yield subscription
        finally:
            state.subscriptions.remove(subscription)
            state.inbox_subscriptions -= takes_inbox
            self._discard_idle(state)

    def publish(self, conversation_id: str, event: events.AnyEvent, route: str | None = None) -> None:
        """Emit an event of a turn to all subscribers of a conversation.

        `route` is that of the turn's message; None sends a notice to the chat of the conversation's last message.
        """
        state = self._state(conversation_id)
        state.emit(event)
        if isinstance(event, events.Notice) and event.to_chats:
            self.send_to_chat(conversation_id, route, event)
        self._discard_idle(state)

    # --- commands ------------------------------------------------------------------------------------

    async def resolve(self, session_id: str) -> str:
        """Return the conversation of a session; an unknown id is a conversation that does not exist yet."""
        try:
            return (await self.db.snapshot(session_id)).conversation_id
        except errors.ConversationDeleted:
            raise
        except errors.NoSuchSession:
            return session_id

    async def send(
        self,
        conversation_id: str,
        command: events.AnyCommand,
        to_sender: Callable[[SenderEvent], None] = discard,
        on_output: commands.Emit = discard,
        *,
        is_admin: bool = True,
    ) -> None:
        """Run a command; its results are events.

        `to_sender` gets the events for the sender alone. `on_output` gets the output of a slash command before the
        subscribers do, so that a sender can tell it from other events. Slash commands for admins are refused unless
        `is_admin`.
        """
        state = self._state(conversation_id)
        match command:
            case events.Submit():
                self.submit(conversation_id, command)
            case events.Interrupt():
                if not self.stop(conversation_id):
                    state.emit(events.Notice("Nothing is running."))
            case events.Steer(text, uid):
                if not self.steer(conversation_id, text, uid):
                    self.submit(conversation_id, events.Submit(text, uid))
            case events.Approve():
                if problem := await self.approvals.answer(conversation_id, command):
                    state.emit(events.Notice(problem, "warning"))
            case events.Command():
                emit = _split_events(state.emit, to_sender, on_output)
                if not is_admin and commands.needs_admin(command.line):
                    emit(events.Notice(ADMINS_ONLY, "error"))
                else:
                    await self._run_command(conversation_id, command, emit)
            case _:
                assert_never(command)
        self._discard_idle(state)

    async def _run_command(self, conversation_id: str, command: events.Command, emit: commands.Emit) -> None:
        """Run a slash command to its end. Cancelling the caller, `stop` (if it is slow) and `close` cancel it.

        It waits for the running command of the conversation, unless its flag says that it runs meanwhile.
        """
        found = commands.find(command.line)
        waits = not (commands.runs_during_turn(command.line) or commands.is_read_only(command.line))
        slow = found is None or found.slow
        while waits and (
            running := [task for task, each in self._commands.items() if each[:2] == (conversation_id, True)]
        ):
            await asyncio.wait(running)
        moved: list[events.Moved] = []

        def record(event: events.AnyEvent) -> None:
            moved.extend([event] if isinstance(event, events.Moved) else [])
            emit(event)

        task = asyncio.create_task(commands.run(self, conversation_id, command.line, record, command.place))
        self._commands[task] = (conversation_id, waits, slow)
        task.add_done_callback(self._commands.pop)
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
            await asyncio.wait([task])
        if task.cancelled():
            emit(events.Notice(COMMAND_STOPPED, "warning"))
        else:
            task.result()
        if moved and found is not None and found.opens_conversation:
            await self.leave(conversation_id)

    def submit(
        self, conversation_id: str, message: events.Submit, *, inbox_empty: bool = False
    ) -> asyncio.Future[events.TurnResult]:
        """Queue a message; the future gets the result of its turn.

        `inbox_empty`: the caller has just read that the inbox of the conversation is empty.
        """
        state = self._state(conversation_id)
        future: asyncio.Future[events.TurnResult] = asyncio.get_running_loop().create_future()
        if not (state.waiting or state.in_turn or self._closing):
            # An earlier interrupt was not meant for this message.
            state.interrupted = False
        state.inbox_empty = inbox_empty and state.worker is None
        state.waiting.append((message, future))
        self._start(state)
        return future

    async def ask(self, request: models.Request) -> models.Reply:
        """Ask the model once, without tools and outside any conversation. Nothing is stored."""
        agent = await self._build(conversation_row.generate_session_id(time.time()))
        return await reply_builder.ask(agent.model, request)

    def queued(self, conversation_id: str) -> int:
        """Return the number of messages that wait in this process."""
        return len(self.waiting(conversation_id))

    def ahead(self, conversation_id: str) -> int:
        """Return the number of messages before a new one: those that wait, and the one that is being answered."""
        state = self._states.get(conversation_id)
        return len(state.waiting) + state.in_turn if state else 0

    def waiting(self, conversation_id: str) -> list[events.Submit]:
        """Return the messages that wait in this process, the next one first, then the lines that are held back."""
        state = self._states.get(conversation_id)
        return [*(message for message, _ in (state.waiting if state else ())), *self.held]

    def drop(self, conversation_id: str, message: events.Submit) -> bool:
        """Remove a waiting message, not another one with the same text; return whether it was still waiting."""
        state = self._states.get(conversation_id)
        for index, (waiting, future) in enumerate(state.waiting if state else ()):
            if state and waiting is message:
                del state.waiting[index]
                future.cancel()
                return True
        for index, line in enumerate(self.held):
            if line is message:
                del self.held[index]
                return True
        return False

    def busy(self) -> list[str]:
        """Return the conversations with running turns or waiting messages in this process."""
        return [each.conversation_id for each in self._states.values() if each.worker or each.waiting]

    def running(self, conversation_id: str) -> bool:
        """Whether a turn is running in this process, or about to begin."""
        state = self._states.get(conversation_id)
        return state is not None and state.worker is not None

    def interrupt(self, conversation_id: str) -> bool:
        """Stop the running turn, or the one that is about to begin; return whether there was one."""
        state = self._states.get(conversation_id)
        return state is not None and state.interrupt()

    def stop(self, conversation_id: str) -> bool:
        """Stop the running turn, a requested compaction and slow commands; return whether there were any.

        Background compactions continue.
        """
        agent = self.agents.peek(conversation_id)
        stopped = agent is not None and agent.context_window.stop()
        if not self.is_compacting(conversation_id):  # a compaction that is being committed cannot be stopped
            slow = [task for task, each in self._commands.items() if each[0] == conversation_id and each[2]]
            stopped = bool([task for task in slow if task.cancel()]) or stopped
        return self.interrupt(conversation_id) or stopped

    def steer(self, conversation_id: str, text: str, uid: str | None = None) -> bool:
        """Send a message into the running turn, before its next step; return whether there was a turn."""
        state = self._states.get(conversation_id)
        return state is not None and state.agent is not None and state.agent.steer(text, uid)

    def abandon(self) -> None:
        """Accept no more messages and stop all turns without recording it, so that another process resumes them."""
        self._closing = self._abandoned = True
        for state in self._states.values():
            state.cancel_waiting()
            if state.agent is None or not state.agent.abandon():
                state.interrupted = state.worker is not None

    # --- the end of a conversation -------------------------------------------------------------------

    async def wait_idle(self, conversation_id: str) -> None:
        """Wait until no turn runs and no message waits in this conversation, in this process."""
        while (state := self._states.get(conversation_id)) is not None and state.worker is not None:
            await asyncio.wait([state.worker])

    def is_compacting(self, conversation_id: str) -> bool:
        """Whether a compaction of this conversation runs in this process."""
        agent = self.agents.peek(conversation_id)
        return agent is not None and agent.context_window.is_compacting

    async def wait_for_compaction(self, conversation_id: str) -> None:
        """Wait for running compactions of this conversation, for as long as a summary may take."""
        if (agent := self.agents.peek(conversation_id)) is not None:
            await agent.context_window.wait()

    async def leave(self, conversation_id: str) -> None:
        """Call the closing hooks of a conversation that its user leaves, after its running turn. Nothing is stopped."""
        if (agent := self.agents.peek(conversation_id)) is not None:
            await agent.leave()

    async def end(
        self,
        conversation_id: str,
        reason: str,
        *,
        is_unused: Callable[[], bool] = lambda: True,
        review_seconds: float = REVIEW_SECONDS,
    ) -> bool:
        """Stop compactions, wait for the memory review, leave the conversation and end it in the store.

        `is_unused` is asked last: the conversation may have been opened again meanwhile. Return whether it was ended.
        """
        if (agent := self.agents.peek(conversation_id)) is not None:
            # A summary could not be committed to an ended conversation.
            await agent.context_window.close()
            await agent.memory.wait_for_review(review_seconds)
            await agent.leave()
        ended = False
        with suppress(errors.NoSuchSession):
            ended = is_unused() and await self.db.end_conversation(conversation_id, reason)
        self.want_title(conversation_id, None)
        return ended

    # --- inbox ---------------------------------------------------------------------------------------

    async def deliver(self, conversation_id: str) -> int:
        """Answer the inbox entries of this conversation, in order; return how many there are.

        They are answered after the running turn and before the next message. Entries that cannot be delivered stay in
        the inbox, for a later delivery or another process.
        """
        count = len(await self._inbox(conversation_id))
        if count and not self._closing:
            state = self._state(conversation_id)
            state.inbox_due = state.inbox_forced = True
            self._start(state)
        return count

    def check_inbox(self, conversation_id: str) -> None:
        """Deliver new inbox entries if a subscriber of the conversation takes them."""
        state = self._states.get(conversation_id)
        if state is not None and state.inbox_subscriptions and not self._closing:
            task = asyncio.create_task(self._check_inbox(state))
            self._inbox_checks.add(task)
            task.add_done_callback(self._inbox_checks.discard)

    def _on_hint(self, hint: notifications.Hint) -> None:
        """Handle a notification that another process wrote."""
        if hint.kind in ("came", "lost"):
            for conversation_id in [each for each in self._states if hint.is_about(each)]:
                self.check_inbox(conversation_id)

    async def _check_inbox(self, state: ConversationState) -> None:
        if state.worker is None and not await self._inbox(state.conversation_id):
            return  # a running worker reads the inbox before its next turn
        if state.inbox_subscriptions and not self._closing:
            state.inbox_due = True
            self._start(state)

    async def _inbox(self, conversation_id: str) -> list[types.InboxEntry]:
        """Return the inbox entries; none if the conversation does not exist or the store fails."""
        try:
            return await self.db.mail.inbox_entries(conversation_id, MAX_INBOX_ENTRIES)
        except errors.NoSuchSession:
            return []
        except errors.HoldfastError as error:
            logger.warning("could not read the inbox of %s: %s", conversation_id, error)
            return []

    async def _deliver_inbox(self, state: ConversationState) -> None:
        """Take a turn for each entry until one cannot be taken or is stopped, or no subscriber is left."""
        forced, state.inbox_due, state.inbox_forced = state.inbox_forced, False, False
        for entry in await self._inbox(state.conversation_id):
            wanted = forced or state.waiting or state.inbox_subscriptions
            if not wanted or state.interrupted or self._closing or not await self._deliver_entry(state, entry):
                return

    async def _deliver_entry(self, state: ConversationState, entry: types.InboxEntry) -> bool:
        """Take the turn of one entry and record its outcome; return whether the next entry may follow."""
        started: list[int] = []
        failed, result = False, None

        def emit(event: events.AnyEvent) -> None:
            started.extend([event.seq] if isinstance(event, events.TurnStarted) else [])
            self.publish(state.conversation_id, event)

        try:
            result = await self._take_turn(state, inbox_messages.submitted(entry), emit)
            outcome = None if self._abandoned else inbox_messages.outcome(result, bool(started))
            failed = result.exit_reason == "failed"
            # An interrupt before the turn began was meant for the waiting message.
            state.interrupted = state.interrupted or (result.interrupted and not started and bool(state.waiting))
        except Exception as error:
            logger.exception("the turn of an inbox entry of %s failed", state.conversation_id)
            state.emit(events.Notice(f"The turn failed: {_sentence(error)}", "error"))
            outcome = "failed" if started else None
        if outcome is None:
            return failed  # a failure of this entry does not hold back the others
        try:
            route = await self.settle_entry(entry, result, outcome, started[0] if started else None)
            if self.copies_turns and result is not None:
                await self._copies(state.conversation_id, route).finish(result)
        except errors.HoldfastError as error:
            # Delivered again, it is the same message, which was answered.
            logger.warning("could not record the outcome of an inbox entry of %s: %s", state.conversation_id, error)
        return outcome != "interrupted"

    async def _settle_entry(
        self, entry: types.InboxEntry, _: events.TurnResult | None, outcome: str, seq: int | None
    ) -> None:
        await self.db.mail.settle_inbox_entry(entry.id, outcome, seq)

    def _copies(self, conversation_id: str, route: str | None) -> linked_chats.TurnCopies:
        return linked_chats.TurnCopies(self.db, conversation_id, route, self.wake_sender)

    # --- titles --------------------------------------------------------------------------------------

    def want_title(self, conversation_id: str, title: str | None) -> None:
        """Set the title of a conversation that begins with its next message; None: no title is wanted."""
        if title is None:
            self._titles.pop(conversation_id, None)
            if (agent := self.agents.peek(conversation_id)) is not None:
                agent.title.wanted = None
        else:
            self._titles[conversation_id] = title

    def wanted_title(self, conversation_id: str) -> str | None:
        return self._titles.get(conversation_id)

    # --- turns ---------------------------------------------------------------------------------------

    def _start(self, state: ConversationState) -> None:
        if state.worker is None:
            state.worker = asyncio.create_task(self._work(state))

    async def _work(self, state: ConversationState) -> None:
        try:
            while state.waiting or state.inbox_due:
                if state.inbox_due or not state.inbox_empty:
                    await self._deliver_inbox(state)
                state.inbox_empty = False
                if state.waiting:
                    message, future = state.waiting.popleft()
                    await self._answer(state, message, future)
        finally:
            state.worker = state.agent = None
            state.interrupted = False
            self._discard_idle(state)

    async def _answer(
        self, state: ConversationState, message: events.Submit, future: asyncio.Future[events.TurnResult]
    ) -> None:
        copies = self._copies(state.conversation_id, message.route)

        def emit(event: events.AnyEvent) -> None:
            # Not state.emit: a review emits after its turn, when the conversation may have another state.
            self.publish(state.conversation_id, event, message.route)
            if self.copies_turns:
                copies.on_event(event)

        try:
            result = await self._take_turn(state, message, emit)
        except Exception as error:
            # Border of the worker: the next message must be answered.
            logger.exception("a turn of %s failed", state.conversation_id)
            state.emit(events.Notice(f"The turn failed: {_sentence(error)}", "error"))
            if not future.done():
                future.set_exception(error)
                future.exception()  # marks it as retrieved: the subscribers got the notice
        else:
            if self.copies_turns:
                await copies.finish(result)
            if not future.done():
                future.set_result(result)

    async def _take_turn(
        self, state: ConversationState, message: events.Submit, emit: commands.Emit
    ) -> events.TurnResult:
        state.in_turn = True
        try:
            state.agent = agent = await self.agents.get(state.conversation_id, compare=False)
            # The runtime keeps the wanted title until it is set: the agent may be dropped before.
            agent.title.wanted = wanted = self._titles.get(state.conversation_id, agent.title.wanted)
            if state.interrupted:
                state.interrupted = False
                return agent.refuse_turn(emit)
            result = await agent.run_conversation(
                message.text,
                content=message.content,
                uid=message.uid,
                route=message.route,
                instructions=message.instructions,
                max_output=message.max_output,
                emit=emit,
            )
            if self._titles.get(state.conversation_id, wanted) == wanted:
                self.want_title(state.conversation_id, agent.title.wanted)
            return result
        finally:
            state.in_turn = False

    def _state(self, conversation_id: str) -> ConversationState:
        state = self._states.get(conversation_id)
        if state is None:
            state = self._states[conversation_id] = ConversationState(conversation_id)
        return state

    def _discard_idle(self, state: ConversationState) -> None:
        if state.is_idle and self._states.get(state.conversation_id) is state:
            del self._states[state.conversation_id]


def _split_events(
    to_all: commands.Emit, to_sender: Callable[[SenderEvent], None], on_output: commands.Emit
) -> commands.Emit:
    def emit(event: events.AnyEvent) -> None:
        if isinstance(event, SenderEvent):
            to_sender(event)
        else:
            on_output(event)
            to_all(event)

    return emit


def _sentence(error: Exception) -> str:
    return str(error) if isinstance(error, errors.HoldfastError) else type(error).__name__
