"""One end of a connection: reads frames, has requests worked on, answers each once, and says things unasked.

What comes in begins in the order it came; what is said goes out in the order it was said. A request keeps its place
among those that are worked on until its answer was taken: who does not read is not read from.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from holdfast import errors
from holdfast.rpc import frames, worker_slots

logger = logging.getLogger("holdfast.rpc")

CANCEL = "$/cancelRequest"
"""A notification with the id of a request that is no longer wanted; the name is that of Microsoft's protocols."""

T = TypeVar("T")
Handler: TypeAlias = Callable[["Peer", frames.Params], Awaitable[object]]
"""Does what a method is for, with the params as they were sent, and gives what can be JSON. What it raises is told:
RpcRefused as it says, another error of Holdfast by its name, anything else as a fault that is logged here."""


class Channel(Protocol):
    """What carries frames. One task receives; sending is the peer's, one frame at a time."""

    async def receive(self) -> bytes | None:
        """The next frame; None when the other side is gone. One that is too large may be cut after its first byte too
        many."""

    async def send(self, frame: bytes) -> None:
        """Send a frame, whole or not at all though it is cancelled; waits while the other side does not read. Raises
        Gone."""

    async def unread(self) -> None:
        """Until it is known that nobody reads what is sent any more; never, where `receive` tells that as well."""

    async def close(self) -> None:
        """Let go of the other side; may be called again."""


async def nothing() -> None:
    """There is nothing to finish."""


class Peer:
    """This end. `run` it; it is over when that returns."""

    def __init__(
        self, channel: Channel, methods: Mapping[str, Handler], limits: frames.Limits = frames.ORDINARY
    ) -> None:
        self._channel, self._methods, self._limits = channel, methods, limits
        self._places = worker_slots.Places(limits.at_once, limits.patience, limits.size)
        self._batches = worker_slots.Places(limits.at_once, limits.patience)
        self._speaking = asyncio.Lock()
        self._running = dict[frames.Id, asyncio.Task[object]]()
        """What is worked on and can be cancelled, by its id."""
        self._works = set[asyncio.Task[Any]]()
        self._answers = set[asyncio.Task[Any]]()
        self.closed = asyncio.Event()

    async def run(self, finish: Callable[[], Awaitable[object]] = nothing) -> None:
        """Until the other side is gone. Then what is worked on is cancelled, and the channel is closed.

        One that only stops asking is still answered, and `finish` is waited for, in the time the limits leave for it:
        that is what is still to be said of what was asked.
        """
        talking, unread = asyncio.create_task(self._talk(finish)), asyncio.create_task(self._channel.unread())
        for each in (talking, unread):
            each.add_done_callback(_looked_at)
        try:
            await asyncio.wait([talking, unread], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.closed.set()
            await _ended({talking, unread})
            await _ended(self._works)
            await _ended(self._answers)
            await self._channel.close()
        for each in (talking, unread):
            if not each.cancelled():
                with suppress(errors.Gone):
                    each.result()

    async def _talk(self, finish: Callable[[], Awaitable[object]]) -> None:
        while (frame := await self._channel.receive()) is not None:
            await self._came(frames.decode(frame, self._limits))
            # Thousands may have come in one piece: whoever else there is has a turn between them.
            await asyncio.sleep(0)
        if self._limits.ending:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._limits.ending):
                    while self._answers:
                        await asyncio.wait(self._answers)
                    await finish()

    async def notify(self, method: str, params: object) -> None:
        """Say something unasked; waits while the other side does not read. Raises Gone after the end."""
        await self._send(frames.notification(method, params))

    async def _send(self, frame: bytes) -> None:
        async with self._speaking:
            if self.closed.is_set():
                raise errors.Gone()
            await self._channel.send(frame)

    # --- what comes in -----------------------------------------------------------------------------------

    async def _came(self, said: frames.Message | frames.Batch) -> None:
        if isinstance(said, frames.Batch):
            await self._came_together(said.messages)
            return
        begun = await self._begun(said)
        if isinstance(begun, bytes):
            await self._send(begun)
        elif begun is not None:
            self._task(self._answers, self._answer(begun))

    async def _came_together(self, messages: Sequence[frames.Message]) -> None:
        if not await self._batches.take():
            if refused := [_busy(each.id) for each in messages if isinstance(each, frames.Request)]:
                await self._send(frames.batch(refused))
            return
        answers = list[bytes | asyncio.Task[bytes]]()
        for each in messages:
            begun = await self._begun(each)
            if isinstance(begun, bytes):
                self._places.keep(len(begun))
                answers.append(begun)
            elif begun is not None:
                answers.append(self._task(self._answers, self._part(begun)))
        self._task(self._answers, self._answer_together(answers))

    async def _begun(self, message: frames.Message) -> _Begun | bytes | None:
        """Begin what a message asks for, when there is a place for it; or the answer to what cannot begin."""
        match message:
            case frames.Wrong():
                return frames.failure(message.id, message.error)
            case frames.Response():
                logger.debug("an answer came to nothing that was asked")
                return None
            case frames.Notification():
                await self._notified(message.method, message.params)
                return None
            case frames.Request():
                return await self._asked(message)

    async def _asked(self, asked: frames.Request) -> _Begun | bytes:
        handler = self._methods.get(asked.method)
        if asked.id is not None and asked.id in self._running:
            # By its id it would be taken for the answer to the other one.
            error = frames.Error(frames.INVALID, "A request with this id is being worked on.", {"id": asked.id})
            return frames.failure(None, error)
        if handler is None:
            error = frames.Error(frames.UNKNOWN, f"There is no method {errors.shown(asked.method)}.")
            return frames.failure(asked.id, error)
        if not await self._places.take():
            return _busy(asked.id)
        work = self._task(self._works, self._work(handler, asked.params))
        if asked.id is not None:
            self._running[asked.id] = work
        return _Begun(asked.id, work)

    async def _notified(self, method: str, params: frames.Params) -> None:
        if method == CANCEL:
            self._cancel(params)
            return
        handler = self._methods.get(method)
        if handler is None or not await self._places.take():
            logger.info("a notification was not heeded: %s", errors.shown(method))
            return
        work = self._task(self._works, self._work(handler, params))
        self._task(self._answers, self._heed(_Begun(None, work)))

    def _cancel(self, params: frames.Params) -> None:
        named = params.get("id") if isinstance(params, dict) else None
        work = self._running.get(named) if isinstance(named, str | int | float) else None
        if work is not None:
            work.cancel()

    async def _work(self, handler: Handler, params: frames.Params) -> object:
        return await handler(self, params)

    # --- what goes out -----------------------------------------------------------------------------------

    async def _answer(self, begun: _Begun) -> None:
        try:
            await self._send(await self._outcome(begun))
        finally:
            self._places.give()

    async def _part(self, begun: _Begun) -> bytes:
        """The answer, for those who answer several at once: what they wait for need not wait for them. It is kept until
        they do, and counts as such."""
        try:
            answer = await self._outcome(begun)
            self._places.keep(len(answer))
            return answer
        finally:
            self._places.give()

    async def _heed(self, begun: _Begun) -> None:
        try:
            await self._outcome(begun)
        finally:
            self._places.give()

    async def _answer_together(self, answers: Sequence[bytes | asyncio.Task[bytes]]) -> None:
        try:
            if found := [each if isinstance(each, bytes) else await each for each in answers]:
                await self._send(frames.batch(found))
                self._places.told(sum(map(len, found)))
        finally:
            self._batches.give()

    async def _outcome(self, begun: _Begun) -> bytes:
        await asyncio.wait([begun.work])
        if self._running.get(begun.id) is begun.work:
            del self._running[begun.id]
        return outcome(begun.id, begun.work)

    def _task(self, among: set[asyncio.Task[Any]], work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        among.add(task)
        task.add_done_callback(among.discard)
        if among is self._answers:
            task.add_done_callback(_looked_at)
        return task


class _Begun(NamedTuple):
    """A request that is worked on."""

    id: frames.Id
    work: asyncio.Task[object]


def outcome(id: frames.Id, work: asyncio.Task[object]) -> bytes:
    """The answer that work which has ended comes to."""
    if work.cancelled():
        return frames.failure(id, frames.Error(frames.CANCELLED, "That was cancelled."))
    try:
        return _told(id, work)
    except Exception:
        # The border of one request: whatever goes wrong with it is told, and stops no other.
        logger.exception("a request failed in a way that nobody expected")
        return frames.failure(id, frames.Error(frames.INTERNAL, "That failed."))


def _told(id: frames.Id, work: asyncio.Task[object]) -> bytes:
    try:
        return frames.answer(id, work.result())
    except errors.HoldfastError as error:
        return frames.failure(id, frames.refusal(error))


def _busy(id: frames.Id) -> bytes:
    return frames.failure(id, frames.Error(frames.BUSY, "Too much is being worked on. Wait for some of it."))


def _looked_at(task: asyncio.Task[Any]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, errors.Gone):
        logger.error("a client could not be served", exc_info=error)


async def _ended(tasks: set[asyncio.Task[Any]]) -> None:
    for each in tasks:
        each.cancel()
    if tasks:
        await asyncio.wait(tasks)
