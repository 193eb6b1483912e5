"""One end of a connection: receives frames, runs requests, answers each once, and sends notifications.

Requests start in the order in which they arrive; frames leave in the order in which they are sent. A request occupies
its slot until its response was sent, so a client that does not read is not read from.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from holdfast import errors
from holdfast.rpc import frames

logger = logging.getLogger("holdfast.rpc")

CANCEL = "$/cancelRequest"
"""A notification with the id of a request to cancel, as in the Language Server Protocol."""

T = TypeVar("T")
Handler: TypeAlias = Callable[["Peer", frames.Params], Awaitable[object]]
"""Handles a method: gets the params as sent and returns a JSON value. RpcRefused and other HoldfastErrors are sent to
the client; anything else is logged and answered as an internal error."""


class Channel(Protocol):
    """A transport for frames. One task receives; the peer sends one frame at a time."""

    async def receive(self) -> bytes | None:
        """Return the next frame, or None at the end. One that is too large may be cut after its first byte too many."""

    async def send(self, frame: bytes) -> None:
        """Send a frame wholly or, if cancelled, not at all; wait while the other side does not read. Raises Gone."""

    async def unread(self) -> None:
        """Return when it is known that the other side reads no more; never if `receive` reports that."""

    async def close(self) -> None:
        """Close the connection; may be called again."""


class WorkerSlots:
    """Limits what runs at once. `acquire` waits for a slot, unless none was acquired or released for `busy_seconds`.

    There is no slot either while finished responses of more than `max_held_bytes` wait to be sent. One task acquires.
    """

    def __init__(self, count: int, busy_seconds: float, max_held_bytes: int = 0) -> None:
        self._free, self._busy_seconds, self._max_held_bytes = count, busy_seconds, max_held_bytes
        self._held_bytes = 0
        self._changed_at = 0.0
        self._changed = asyncio.Event()

    async def acquire(self) -> bool:
        """Return whether a slot was acquired."""
        while not self._free or self._held_bytes > self._max_held_bytes:
            self._changed.clear()
            try:
                async with asyncio.timeout_at(self._changed_at + self._busy_seconds):
                    await self._changed.wait()
            except TimeoutError:
                return False
        self._free -= 1
        self._changed_at = asyncio.get_running_loop().time()
        return True

    def release(self, held_bytes: int = 0) -> None:
        """Free a slot; `held_bytes` is the size of its response if that waits to be sent."""
        self._free += 1
        self.hold(held_bytes)

    def hold(self, size: int) -> None:
        """Count the bytes of a response that waits to be sent; a negative size when it was sent."""
        self._held_bytes += size
        self._changed_at = asyncio.get_running_loop().time()
        self._changed.set()


class RunningRequest(NamedTuple):
    """A request or notification whose handler runs, in a slot."""

    id: frames.Id
    work: asyncio.Task[object]


async def nothing() -> None:
    """Do nothing."""


class Peer:
    """This end of a connection; `run` it."""

    def __init__(
        self, channel: Channel, methods: Mapping[str, Handler], limits: frames.FrameLimits = frames.DEFAULT_LIMITS
    ) -> None:
        self._channel, self._methods, self._limits = channel, methods, limits
        self._slots = WorkerSlots(limits.max_running, limits.busy_seconds, limits.max_bytes)
        self._batches = WorkerSlots(limits.max_running, limits.busy_seconds)
        self._sending = asyncio.Lock()
        self._running = dict[frames.Id, asyncio.Task[object]]()
        """The requests that can be cancelled, by id."""
        self._works = set[asyncio.Task[Any]]()
        self._responses = set[asyncio.Task[Any]]()
        self.closed = asyncio.Event()

    async def run(self, finish: Callable[[], Awaitable[object]] = nothing) -> None:
        """Serve until the other side is gone; then cancel what runs and close the channel.

        After the end of the input, running requests are answered and `finish` is awaited, within the time of the
        limits.
        """
        serving, unread = asyncio.create_task(self._serve(finish)), asyncio.create_task(self._channel.unread())
        for each in (serving, unread):
            each.add_done_callback(_log_error)
        try:
            await asyncio.wait([serving, unread], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.closed.set()
            await _cancel_all({serving, unread})
            await _cancel_all(self._works)
            await _cancel_all(self._responses)
            await self._channel.close()
        for each in (serving, unread):
            if not each.cancelled():
                with suppress(errors.Gone):
                    each.result()

    async def _serve(self, finish: Callable[[], Awaitable[object]]) -> None:
        while (frame := await self._channel.receive()) is not None:
            await self._handle(frames.decode(frame, self._limits))
            # One chunk may contain thousands of frames; other tasks must run in between.
            await asyncio.sleep(0)
        if self._limits.drain_seconds:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._limits.drain_seconds):
                    while self._responses:
                        await asyncio.wait(self._responses)
                    await finish()

    async def notify(self, method: str, params: object) -> None:
        """Send a notification; wait while the other side does not read. Raises Gone after the end."""
        await self._send(frames.encode_notification(method, params))

    async def _send(self, frame: bytes) -> None:
        async with self._sending:
            if self.closed.is_set():
                raise errors.Gone()
            await self._channel.send(frame)

    # --- requests ------------------------------------------------------------------------------------

    async def _handle(self, message: frames.Message | frames.RpcBatch) -> None:
        if isinstance(message, frames.RpcBatch):
            await self._handle_batch(message.messages)
            return
        started = await self._start(message)
        if isinstance(started, bytes):
            # No slot limits errors: nothing more is read until they are sent.
            await self._send(started)
        elif started is not None:
            self._create_task(self._responses, self._respond(started))

    async def _handle_batch(self, messages: Sequence[frames.Message]) -> None:
        if not await self._batches.acquire():
            if refused := [_busy(each.id) for each in messages if isinstance(each, frames.RpcRequest)]:
                await self._send(frames.encode_batch(refused))
            return
        responses = list[bytes | asyncio.Task[bytes]]()
        for each in messages:
            started = await self._start(each)
            if isinstance(started, bytes):
                self._slots.hold(len(started))
                responses.append(started)
            elif started is not None:
                responses.append(self._create_task(self._responses, self._hold_response(started)))
        self._create_task(self._responses, self._respond_batch(responses))

    async def _start(self, message: frames.Message) -> RunningRequest | bytes | None:
        """Start a request when there is a slot; return the response to one that cannot be started."""
        match message:
            case frames.InvalidMessage():
                return frames.encode_error(message.id, message.error)
            case frames.RpcResponse():
                logger.debug("ignored a response: no request was sent")
                return None
            case frames.RpcNotification():
                await self._start_notification(message.method, message.params)
                return None
            case frames.RpcRequest():
                return await self._start_request(message)

    async def _start_request(self, request: frames.RpcRequest) -> RunningRequest | bytes:
        handler = self._methods.get(request.method)
        if request.id is not None and request.id in self._running:
            # The error has no id: it would be taken for the response to the other request.
            error = frames.RpcError(
                frames.INVALID_REQUEST, "Another request with this id is running.", {"id": request.id}
            )
            return frames.encode_error(None, error)
        if handler is None:
            error = frames.RpcError(frames.METHOD_NOT_FOUND, f"Unknown method: {errors.quote(request.method)}.")
            return frames.encode_error(request.id, error)
        if not await self._slots.acquire():
            return _busy(request.id)
        work = self._create_task(self._works, self._work(handler, request.params))
        if request.id is not None:
            self._running[request.id] = work
        return RunningRequest(request.id, work)

    async def _start_notification(self, method: str, params: frames.Params) -> None:
        if method == CANCEL:
            self._cancel(params)
            return
        handler = self._methods.get(method)
        if handler is None or not await self._slots.acquire():
            logger.info("ignored a notification: %s", errors.quote(method))
            return
        work = self._create_task(self._works, self._work(handler, params))
        self._create_task(self._responses, self._finish_notification(RunningRequest(None, work)))

    def _cancel(self, params: frames.Params) -> None:
        id_ = params.get("id") if isinstance(params, dict) else None
        work = self._running.get(id_) if isinstance(id_, str | int | float) else None
        if work is not None:
            work.cancel()

    async def _work(self, handler: Handler, params: frames.Params) -> object:
        return await handler(self, params)

    # --- responses -----------------------------------------------------------------------------------

    async def _respond(self, running: RunningRequest) -> None:
        try:
            await self._send(await self._wait(running))
        finally:
            self._slots.release()

    async def _hold_response(self, running: RunningRequest) -> bytes:
        """Return a response of a batch. It frees its slot, but counts as held until the batch is sent."""
        response = b""
        try:
            response = await self._wait(running)
        finally:
            self._slots.release(len(response))
        return response

    async def _respond_batch(self, responses: Sequence[bytes | asyncio.Task[bytes]]) -> None:
        try:
            if found := [each if isinstance(each, bytes) else await each for each in responses]:
                await self._send(frames.encode_batch(found))
                self._slots.hold(-sum(map(len, found)))
        finally:
            self._batches.release()

    async def _finish_notification(self, running: RunningRequest) -> None:
        try:
            await self._wait(running)
        finally:
            self._slots.release()

    async def _wait(self, running: RunningRequest) -> bytes:
        await asyncio.wait([running.work])
        if self._running.get(running.id) is running.work:
            del self._running[running.id]
        return encode_outcome(running.id, running.work)

    def _create_task(self, tasks: set[asyncio.Task[Any]], work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        if tasks is self._responses:
            task.add_done_callback(_log_error)
        return task


def encode_outcome(id: frames.Id, work: asyncio.Task[object]) -> bytes:
    """Return the response to a request whose handler has ended."""
    if work.cancelled():
        return frames.encode_error(id, frames.RpcError(frames.CANCELLED, "The request was cancelled."))
    error = work.exception()
    try:
        if isinstance(error, errors.HoldfastError):
            return frames.encode_error(id, frames.convert_error(error))
        return frames.encode_result(id, work.result())
    except Exception:
        # The border of one request: its failure stops no other.
        logger.exception("a request failed unexpectedly")
        return frames.encode_error(id, frames.RpcError(frames.INTERNAL_ERROR, "Internal error."))


def _busy(id: frames.Id) -> bytes:
    return frames.encode_error(id, frames.RpcError(frames.BUSY, "Too many requests are running. Wait for some to end."))


def _log_error(task: asyncio.Task[Any]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, errors.Gone):
        logger.error("a client could not be served", exc_info=error)


async def _cancel_all(tasks: set[asyncio.Task[Any]]) -> None:
    for each in tasks:
        each.cancel()
    if tasks:
        await asyncio.wait(tasks)
