"""The one door: a front end sends commands for a conversation, and renders the events.

Messages to one conversation are answered one after the other, in the order they came. Everybody who listens
to a conversation sees the same events in the same order, whoever caused them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self, assert_never

from holdfast import errors, events
from holdfast.agent import agent as agents
from holdfast.agent import cache, commands
from holdfast.store import aio

logger = logging.getLogger("holdfast.agent")


class Listening:
    """The events of a conversation from now on, for one listener, however slow it is."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[events.Emitted | None] = asyncio.Queue()

    def put(self, event: events.Emitted | None) -> None:
        self._queue.put_nowait(event)

    async def __aiter__(self) -> AsyncIterator[events.Emitted]:
        while (event := await self._queue.get()) is not None:
            yield event


class Lane:
    """One conversation in this process: who listens, what waits, what runs."""

    def __init__(self, conversation_id: str) -> None:
        self.conversation_id = conversation_id
        self.listeners: list[Listening] = []
        self.waiting: deque[tuple[events.Submit, asyncio.Future[events.TurnResult]]] = deque()
        self.worker: asyncio.Task[None] | None = None
        self.agent: agents.AIAgent | None = None
        self.unwanted = False
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
    """Agents at work for any number of conversations. `async with` starts and stops it."""

    def __init__(self, db: aio.AsyncSessionDB, build: cache.Build, *, owner: str = "") -> None:
        self.db = db
        self.owner = owner
        self.agents = cache.Cache(self._built)
        self._build = build
        self._lanes: dict[str, Lane] = {}
        self._titles: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop what runs, keeping what was said; refuse what waits."""
        for lane in list(self._lanes.values()):
            while lane.waiting:
                lane.waiting.popleft()[1].cancel()
            lane.interrupt()
        workers = [lane.worker for lane in self._lanes.values() if lane.worker]
        if workers:
            await asyncio.wait(workers)
        for agent in self.agents.every():
            await agent.close()
        for lane in self._lanes.values():
            for listener in lane.listeners:
                listener.put(None)

    # --- listening -----------------------------------------------------------------------------------

    @contextmanager
    def listen(self, conversation_id: str) -> Iterator[Listening]:
        """The events of this conversation, from here to the end of the block."""
        lane, listening = self._lane(conversation_id), Listening()
        lane.listeners.append(listening)
        try:
            yield listening
        finally:
            lane.listeners.remove(listening)
            self._tidy(lane)

    # --- asking --------------------------------------------------------------------------------------

    async def resolve(self, session_id: str) -> str:
        """The conversation of any session id; an id nobody has yet is a conversation to come."""
        try:
            return (await self.db.snapshot(session_id)).conversation_id
        except errors.ConversationDeleted:
            raise
        except errors.NoSuchSession:
            return session_id

    async def send(self, conversation_id: str, command: events.AnyCommand) -> None:
        """Have a command carried out; what comes of it comes as events."""
        lane = self._lane(conversation_id)
        match command:
            case events.Submit():
                self.submit(conversation_id, command)
            case events.Interrupt():
                if not lane.interrupt():
                    lane.emit(events.Notice("Nothing is running."))
            case events.Steer(text):
                if lane.agent is None or not lane.agent.steer(text):
                    self.submit(conversation_id, events.Submit(text))
            case events.Command(line):
                await commands.run(self, conversation_id, line, lane.emit)
            case _:
                assert_never(command)
        self._tidy(lane)

    def submit(self, conversation_id: str, message: events.Submit) -> asyncio.Future[events.TurnResult]:
        """A message, answered when those before it are; the result of its turn."""
        lane = self._lane(conversation_id)
        answered: asyncio.Future[events.TurnResult] = asyncio.get_running_loop().create_future()
        lane.waiting.append((message, answered))
        if lane.worker is None:
            lane.worker = asyncio.create_task(self._work(lane))
        return answered

    def queued(self, conversation_id: str) -> int:
        """How many messages wait for their turn in this process."""
        lane = self._lanes.get(conversation_id)
        return len(lane.waiting) if lane else 0

    def want_title(self, conversation_id: str, title: str) -> None:
        """A title for a conversation that begins with its next message."""
        self._titles[conversation_id] = title

    def wanted_title(self, conversation_id: str) -> str | None:
        return self._titles.get(conversation_id)

    # --- inside --------------------------------------------------------------------------------------

    async def _work(self, lane: Lane) -> None:
        try:
            while lane.waiting:
                message, answered = lane.waiting.popleft()
                await self._turn(lane, message, answered)
        finally:
            lane.worker = lane.agent = None
            lane.unwanted = False
            self._tidy(lane)

    async def _turn(self, lane: Lane, message: events.Submit, answered: asyncio.Future[events.TurnResult]) -> None:
        try:
            lane.agent = agent = await self.agents.get(lane.conversation_id)
            title = self._titles.pop(lane.conversation_id, None)
            agent.wanted_title = title if title is not None else agent.wanted_title
            if lane.unwanted:
                lane.unwanted = False
                result = agent.not_begun(lane.emit)
            else:
                result = await agent.run_conversation(
                    message.text, content=message.content, uid=message.uid, emit=lane.emit
                )
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

    def _lane(self, conversation_id: str) -> Lane:
        lane = self._lanes.get(conversation_id)
        if lane is None:
            lane = self._lanes[conversation_id] = Lane(conversation_id)
        return lane

    def _tidy(self, lane: Lane) -> None:
        if lane.idle and self._lanes.get(lane.conversation_id) is lane:
            del self._lanes[lane.conversation_id]


def _sentence(error: Exception) -> str:
    return str(error) if isinstance(error, errors.HoldfastError) else type(error).__name__
