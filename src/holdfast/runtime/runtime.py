"""The one door: a front end sends commands for a conversation, and renders the events.

Messages to one conversation are answered one after the other, in the order they came. Everybody who listens
to a conversation sees the same events in the same order, whoever caused them. What waits in the inbox of a
conversation is answered before the next message of a person, and never interrupts a turn.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from types import TracebackType
from typing import Self, assert_never

from holdfast import errors, events, types
from holdfast.agent import agent as agents
from holdfast.agent import agent_cache, commands
from holdfast.agent import approvals as permissions
from holdfast.model import base as models
from holdfast.model import reply_builder
from holdfast.runtime import inbox
from holdfast.store import async_db, conversation_row, notifications

logger = logging.getLogger("holdfast.agent")

MOST = 10_000
"""So many notices are delivered before a message of a person, which is more than ever wait."""

Note = Callable[[types.InboxEntry, events.TurnResult | None, str, int | None], Awaitable[object]]
"""A notice, the result of its turn (None where it raised), the outcome, and the message it became."""

SenderEvent = events.Say | events.Moved | events.Quit
"""What a command tells whoever sent it, and no other subscriber."""


def discard(_: events.AnyEvent) -> None:
    """Hears nothing."""


class Subscription:
    """The events of a conversation from now on, for one listener, however slow it is; or for one that is quick and
    raises nothing (`on_event`), which is called with each."""

    def __init__(self, on_event: Callable[[events.Emitted], object] | None = None) -> None:
        self._queue: asyncio.Queue[events.Emitted | None] = asyncio.Queue()
        self._on_event, self.closed = on_event, False
        """Whether nothing will come any more: the runtime closes."""

    def close(self) -> None:
        self.closed = True
        self.put(None)

    def put(self, event: events.Emitted | None) -> None:
        if self._on_event is None:
            self._queue.put_nowait(event)
        elif event is not None:
            self._on_event(event)

    async def __aiter__(self) -> AsyncIterator[events.Emitted]:
        while (event := await self._queue.get()) is not None:
            yield event
            self._queue.task_done()
        self._queue.task_done()

    async def drained(self) -> None:
        """Until whoever listens is done with all that was emitted so far."""
        await self._queue.join()


class ConversationState:
    """One conversation in this process: who listens, what waits, what runs."""

    def __init__(self, conversation_id: str) -> None:
        self.conversation_id = conversation_id
        self.listeners: list[Subscription] = []
        self.waiting: deque[tuple[events.Submit, asyncio.Future[events.TurnResult]]] = deque()
        self.worker: asyncio.Task[None] | None = None
        self.agent: agents.AIAgent | None = None
        self.unwanted = self.taken = False
        self.inbox_empty = False
        """Whether the inbox was just found empty by the sender of the message that waits."""
        self.staying = 0
        """How many of the listeners are there for more than the answer to a command."""
        self.expected = self.ordered = False
        """Whether the inbox is to be looked at again; whether somebody wants it delivered, listeners or not."""
        self._count = 0

    def interrupt(self) -> bool:
        """Stop the turn under way, also one that is only about to begin; whether there was one."""
        if self.worker is None:
            return False
        if self.agent is None or not self.agent.interrupt():
            self.unwanted = True
        return True

    def emit(self, event: events.AnyEvent) -> None:
        self._count += 1
        emitted = events.Emitted(self.conversation_id, self._count, event)
        for listener in self.listeners:
            listener.put(emitted)

    @property
    def idle(self) -> bool:
        return not (self.listeners or self.waiting or self.worker)


class Runtime:
    """Agents at work for any number of conversations. `async with` starts and stops it.

    `approvals` are those its agents were made with: whoever listens here answers for them.
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
    ) -> None:
        self.db, self.owner = db, owner
        self.prompt_commands, self.models = prompt_commands, models
        self.approvals = approvals or permissions.Approvals(db.permissions, owner=owner)
        self.agents = agent_cache.Cache(self._built)
        self._build = build
        self._lanes: dict[str, ConversationState] = {}
        self._titles: dict[str, str] = {}
        self._looks = set[asyncio.Task[None]]()
        self._commands = set[asyncio.Task[None]]()
        self._hearing = ExitStack()
        self._closing = self._abandoned = False
        self.send_to_chat: Callable[[str, events.Notice], object] = lambda _conversation_id, _notice: None
        """Called with notices that chats are sent too; a front end for chats puts its own."""
        self.settle_entry: Note = self._settled
        """How what became of a notice is written down; a front end that has to tell of it elsewhere puts its own."""

    async def __aenter__(self) -> Self:
        self._hearing.enter_context(self.db.notifications.listen(self._on_hint))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop what runs, keeping what was said; refuse what waits. What is in the inbox stays there."""
        self._closing = True
        self._hearing.close()
        for task in (*self._looks, *self._commands):
            task.cancel()
        for lane in list(self._lanes.values()):
            while lane.waiting:
                lane.waiting.popleft()[1].cancel()
            lane.interrupt()
        workers = [lane.worker for lane in self._lanes.values() if lane.worker]
        if running := [*workers, *self._looks, *self._commands]:
            await asyncio.wait(running)
        await self.agents.close()
        for lane in self._lanes.values():
            for listener in lane.listeners:
                listener.close()

    # --- listening -----------------------------------------------------------------------------------

    @contextmanager
    def subscribe(
        self,
        conversation_id: str,
        *,
        can_approve: bool = False,
        takes_inbox: bool = True,
        on_event: Callable[[events.Emitted], object] | None = None,
    ) -> Iterator[Subscription]:
        """The events of this conversation, from here to the end of the block.

        One with `can_approve` can be asked whether a tool may do something. If no subscriber can, the answer is no. One
        that `takes_inbox` has what waits in the inbox delivered; for the answer to a command no subscriber needs to.
        """
        lane, listening = self._lane(conversation_id), Subscription(on_event)
        lane.listeners.append(listening)
        lane.staying += takes_inbox
        self.check_inbox(conversation_id)
        try:
            with self.approvals.accept_answers(conversation_id) if can_approve else nullcontext():
                yield listening
        finally:
            lane.listeners.remove(listening)
            lane.staying -= takes_inbox
            self._tidy(lane)

    # --- asking --------------------------------------------------------------------------------------

    async def resolve(self, session_id: str) -> str:
        """The conversation of any session id; an unknown id is a conversation to come."""
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
        told: Callable[[SenderEvent], None] = discard,
        said: commands.Emit = discard,
    ) -> None:
        """Have a command carried out; what comes of it comes as events.

        `told` gets what is for the sender alone: words to say, where to go on, that they leave. `said` gets what a
        slash command says to everybody, before they do: so a sender knows it from what others caused.
        """
        lane = self._lane(conversation_id)
        match command:
            case events.Submit():
                self.submit(conversation_id, command)
            case events.Interrupt():
                if not self.stop(conversation_id):
                    lane.emit(events.Notice("Nothing is running."))
            case events.Steer(text, uid):
                if not self.steer(conversation_id, text, uid):
                    self.submit(conversation_id, events.Submit(text, uid))
            case events.Approve():
                if refused := await self.approvals.answer(conversation_id, command):
                    lane.emit(events.Notice(refused, "warning"))
            case events.Command():
                await self._carry_out(conversation_id, command, _addressed(lane.emit, told, said))
            case _:
                assert_never(command)
        self._tidy(lane)

    async def _carry_out(self, conversation_id: str, command: events.Command, emit: commands.Emit) -> None:
        """A command, to its end or until this closes; whoever stops waiting for it stops it."""
        work = asyncio.create_task(commands.run(self, conversation_id, command.line, emit, command.place))
        self._commands.add(work)
        work.add_done_callback(self._commands.discard)
        try:
            await asyncio.wait([work])
        finally:
            work.cancel()
            await asyncio.wait([work])
        if not work.cancelled():
            work.result()

    def publish(self, conversation_id: str, event: events.AnyEvent) -> None:
        """Emit an event to everybody who listens to a conversation now."""
        lane = self._lane(conversation_id)
        lane.emit(event)
        if isinstance(event, events.Notice) and event.to_chats:
            self.send_to_chat(conversation_id, event)
        self._tidy(lane)

    def submit(
        self, conversation_id: str, message: events.Submit, *, inbox_empty: bool = False
    ) -> asyncio.Future[events.TurnResult]:
        """A message, answered when those before it are; the result of its turn.

        `inbox_empty`: the caller has just read that nothing waits in the inbox of the conversation.
        """
        lane = self._lane(conversation_id)
        answered: asyncio.Future[events.TurnResult] = asyncio.get_running_loop().create_future()
        if not (lane.waiting or lane.taken or self._closing):
            # Whatever was not wanted is gone: it was not this one.
            lane.unwanted = False
        lane.inbox_empty = inbox_empty and lane.worker is None
        lane.waiting.append((message, answered))
        self._start(lane)
        return answered

    async def ask(self, request: models.Request) -> models.Reply:
        """Have the model answer once, outside any conversation and without tools. Nothing is stored."""
        made = await self._build(conversation_row.generate_session_id(time.time()))
        return await reply_builder.ask(made.model, request)

    def queued(self, conversation_id: str) -> int:
        """How many messages wait for their turn in this process."""
        return len(self.waiting(conversation_id))

    def ahead(self, conversation_id: str) -> int:
        """How many come before a message of now: those that wait, and the one that is being answered."""
        lane = self._lanes.get(conversation_id)
        return len(lane.waiting) + lane.taken if lane else 0

    def waiting(self, conversation_id: str) -> list[events.Submit]:
        """The messages that wait for their turn in this process, the next one first."""
        lane = self._lanes.get(conversation_id)
        return [message for message, _ in lane.waiting] if lane else []

    def drop(self, conversation_id: str, message: events.Submit) -> bool:
        """Take back a message that waits: whoever waits for its result finds it cancelled. Whether it still waited."""
        lane = self._lanes.get(conversation_id)
        for place, (waiting, answered) in enumerate(lane.waiting if lane else ()):
            if lane and waiting is message:
                del lane.waiting[place]
                answered.cancel()
                return True
        return False

    def busy(self) -> list[str]:
        """The conversations where a turn runs in this process, or a message waits for one."""
        return [each.conversation_id for each in self._lanes.values() if each.worker or each.waiting]

    def running(self, conversation_id: str) -> bool:
        """Whether a turn runs in this process, or is about to."""
        lane = self._lanes.get(conversation_id)
        return lane is not None and lane.worker is not None

    def interrupt(self, conversation_id: str) -> bool:
        """Stop the turn under way, also one that is only about to begin; whether there was one."""
        lane = self._lanes.get(conversation_id)
        return lane is not None and lane.interrupt()

    def stop(self, conversation_id: str) -> bool:
        """Stop the turn under way, and a compaction that somebody asked for; whether there was any of it. What is made
        beside the turns goes on."""
        agent = self.agents.peek(conversation_id)
        compacting = agent is not None and agent.context_window.stop()
        return self.interrupt(conversation_id) or compacting

    def steer(self, conversation_id: str, text: str, uid: str | None = None) -> bool:
        """Tell the turn under way something before its next step; whether there was one to tell."""
        lane = self._lanes.get(conversation_id)
        return lane is not None and lane.agent is not None and lane.agent.steer(text, uid)

    def abandon(self) -> None:
        """Take nothing more, and stop what runs without a word about it: another process goes on with it."""
        self._closing = self._abandoned = True
        for lane in self._lanes.values():
            while lane.waiting:
                lane.waiting.popleft()[1].cancel()
            if lane.agent is None or not lane.agent.abandon():
                lane.unwanted = lane.worker is not None

    # --- the inbox -----------------------------------------------------------------------------------

    async def wait_idle(self, conversation_id: str) -> None:
        """Until nothing runs or waits here in this conversation."""
        while (lane := self._lanes.get(conversation_id)) is not None and lane.worker is not None:
            await asyncio.wait([lane.worker])

    async def deliver(self, conversation_id: str) -> int:
        """Have what waits in the inbox of this conversation answered, in order; how much there is.

        It is answered after the turn under way, if there is one, and before the next message of a person. What
        cannot be delivered stays in the inbox, for the next time or for another process.
        """
        found = len(await self._inbox(conversation_id))
        if found and not self._closing:
            lane = self._lane(conversation_id)
            lane.expected = lane.ordered = True
            self._start(lane)
        return found

    def check_inbox(self, conversation_id: str) -> None:
        """Something may have come in: it is delivered, if anybody here listens to that conversation."""
        lane = self._lanes.get(conversation_id)
        if lane is not None and lane.staying and not self._closing:
            look = asyncio.create_task(self._look(lane))
            self._looks.add(look)
            look.add_done_callback(self._looks.discard)

    def _on_hint(self, hint: notifications.Hint) -> None:
        """Of what another process wrote."""
        if hint.kind in ("came", "lost"):
            for conversation_id in [each for each in self._lanes if hint.is_about(each)]:
                self.check_inbox(conversation_id)
        if hint.kind in ("moved", "lost"):
            self.agents.heard(hint)

    def want_title(self, conversation_id: str, title: str | None) -> None:
        """A title for a conversation that begins with its next message; None: none any more."""
        if title is None:
            self._titles.pop(conversation_id, None)
            if (agent := self.agents.peek(conversation_id)) is not None:
                agent.wanted_title = None
        else:
            self._titles[conversation_id] = title

    def wanted_title(self, conversation_id: str) -> str | None:
        return self._titles.get(conversation_id)

    # --- inside --------------------------------------------------------------------------------------

    def _start(self, lane: ConversationState) -> None:
        if lane.worker is None:
            lane.worker = asyncio.create_task(self._work(lane))

    async def _work(self, lane: ConversationState) -> None:
        try:
            while lane.waiting or lane.expected:
                if lane.expected or not lane.inbox_empty:
                    await self._notices(lane)
                lane.inbox_empty = False
                if lane.waiting:
                    message, answered = lane.waiting.popleft()
                    await self._turn(lane, message, answered)
        finally:
            lane.worker = lane.agent = None
            lane.unwanted = False
            self._tidy(lane)

    async def _look(self, lane: ConversationState) -> None:
        """At the inbox; whoever works here already does so before the next turn."""
        if lane.worker is None and not await self._inbox(lane.conversation_id):
            return
        if lane.staying and not self._closing:
            lane.expected = True
            self._start(lane)

    async def _inbox(self, conversation_id: str) -> list[types.InboxEntry]:
        """What waits; nothing where there is no conversation yet, or the store cannot say."""
        try:
            return await self.db.mail.inbox_entries(conversation_id, MOST)
        except errors.NoSuchSession:
            return []
        except errors.HoldfastError as error:
            logger.warning("the inbox of %s could not be read: %s", conversation_id, error)
            return []

    async def _notices(self, lane: ConversationState) -> None:
        """Turns for all that waits, until one of them cannot be taken or is stopped, or no subscriber is left."""
        ordered, lane.expected, lane.ordered = lane.ordered, False, False
        for inbound in await self._inbox(lane.conversation_id):
            wanted = ordered or lane.waiting or lane.staying
            if not wanted or lane.unwanted or self._closing or not await self._notice(lane, inbound):
                return

    async def _notice(self, lane: ConversationState, inbound: types.InboxEntry) -> bool:
        """The turn of one of them, and what became of it; whether the next may come."""
        begun: list[int] = []
        alone, result = False, None

        def emit(event: events.AnyEvent) -> None:
            begun.extend([event.seq] if isinstance(event, events.TurnStarted) else [])
            self.publish(lane.conversation_id, event)

        try:
            result = await self._taken(lane, inbox.submitted(inbound), emit)
            became = None if self._abandoned else inbox.outcome(result, bool(begun))
            alone = result.exit_reason == "failed"
            # Whoever stopped it before it began meant what waits behind it.
            lane.unwanted = lane.unwanted or (result.interrupted and not begun and bool(lane.waiting))
        except Exception as error:
            logger.exception("the turn of a notice to %s failed", lane.conversation_id)
            lane.emit(events.Notice(f"The turn failed: {_sentence(error)}", "error"))
            became = "failed" if begun else None
        if became is None:
            return alone  # What is wrong with this one keeps none of the others.
        try:
            await self.settle_entry(inbound, result, became, begun[0] if begun else None)
        except errors.HoldfastError as error:
            # Delivered again, it is the same message, and its answer is there.
            logger.warning("what became of a notice to %s was not noted: %s", lane.conversation_id, error)
        return became != "interrupted"

    async def _settled(
        self, inbound: types.InboxEntry, _: events.TurnResult | None, outcome: str, seq: int | None
    ) -> object:
        return await self.db.mail.settle_inbox_entry(inbound.id, outcome, seq)

    async def _taken(self, lane: ConversationState, message: events.Submit, emit: commands.Emit) -> events.TurnResult:
        """The turn of a message; one that was stopped before it began is not taken."""
        lane.taken = True
        try:
            lane.agent = agent = await self.agents.get(lane.conversation_id, compare=False)
            # Kept until it is set: the agent may be dropped with its title before that.
            agent.wanted_title = wanted = self._titles.get(lane.conversation_id, agent.wanted_title)
            if lane.unwanted:
                lane.unwanted = False
                return agent.not_begun(emit)
            result = await agent.run_conversation(
                message.text,
                content=message.content,
                uid=message.uid,
                route=message.route,
                instructions=message.instructions,
                max_output=message.max_output,
                emit=emit,
            )
            if self._titles.get(lane.conversation_id, wanted) == wanted:
                self.want_title(lane.conversation_id, agent.wanted_title)
            return result
        finally:
            lane.taken = False

    async def _turn(
        self, lane: ConversationState, message: events.Submit, answered: asyncio.Future[events.TurnResult]
    ) -> None:
        try:
            # Not the lane's own emit: a review emits after its turn, when the lane may be another one.
            result = await self._taken(lane, message, partial(self.publish, lane.conversation_id))
        except Exception as error:
            # Nobody else would hear of it, and the next message must be answered all the same.
            logger.exception("a turn of %s failed", lane.conversation_id)
            lane.emit(events.Notice(f"The turn failed: {_sentence(error)}", "error"))
            if not answered.done():
                answered.set_exception(error)
                answered.exception()  # Whoever does not wait for it has seen the notice.
        else:
            if not answered.done():
                answered.set_result(result)

    async def _built(self, conversation_id: str) -> agents.AIAgent:
        return await self._build(conversation_id)

    def _lane(self, conversation_id: str) -> ConversationState:
        lane = self._lanes.get(conversation_id)
        if lane is None:
            lane = self._lanes[conversation_id] = ConversationState(conversation_id)
        return lane

    def _tidy(self, lane: ConversationState) -> None:
        if lane.idle and self._lanes.get(lane.conversation_id) is lane:
            del self._lanes[lane.conversation_id]


def _addressed(everybody: commands.Emit, sender: Callable[[SenderEvent], None], said: commands.Emit) -> commands.Emit:
    def emit(event: events.AnyEvent) -> None:
        if isinstance(event, SenderEvent):
            sender(event)
        else:
            said(event)
            everybody(event)

    return emit


def _sentence(error: Exception) -> str:
    return str(error) if isinstance(error, errors.HoldfastError) else type(error).__name__
