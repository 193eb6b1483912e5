"""Subscriptions: the events of a conversation and other processes' writes to its log, in order, for one consumer.

The queue between the runtime and the consumer keeps little memory: once many items wait, adjacent deltas of a reply are
merged, and so are those of a tool's progress. The store may be slow or down, so the log is read in a task of its own,
and a consumer never waits longer than `GAP_SECONDS` for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

from holdfast import errors, events, types
from holdfast.runtime import attachments
from holdfast.runtime import runtime as runtimes
from holdfast.store import async_db, notifications

logger = logging.getLogger("holdfast.runtime")

COALESCE_AT = 64
"""Queued items from which on deltas and progress are merged."""
PROGRESS_CHARACTERS = 4_000
"""Characters of merged progress that are kept, the last ones."""
GAP_SECONDS = 1.0
"""Seconds that the consumer waits for one read of the store."""
FLUSH_SECONDS = 1.0
"""Seconds that a client may take to read what is queued before its session is closed."""
LOG_PAGE = 50
"""Messages per read of the log."""

T = TypeVar("T")


class Received(NamedTuple):
    """An event of this process, and the uid of the message whose turn it belongs to if the consumer tracks uids."""

    event: events.AnyEvent
    uid: str | None = None


class LogMessage(NamedTuple):
    """A message of the log that is not covered by an event: written earlier, or by another process."""

    message: types.Message
    images: Sequence[attachments.EncodedImage] = ()


class LogChanged(NamedTuple):
    """Another process may have changed the conversation."""


Item: TypeAlias = Received | LogMessage | LogChanged | T
"""A queued item; `T` are the consumer's own items, which keep their place among the others."""


# --- the queue -----------------------------------------------------------------------------------------


_PIECES = (events.TextDelta, events.ReasoningDelta, events.ToolProgress)


class _Merged:
    """Pieces of one text, joined when they are taken: repeated joining is quadratic."""

    def __init__(self, first: Received, event: events.TextDelta | events.ReasoningDelta | events.ToolProgress) -> None:
        self._uid, self._event, self._texts = first.uid, event, [event.text]

    def add(self, event: events.AnyEvent) -> bool:
        """Add a piece of the same text; return False for any other event."""
        if not isinstance(event, _PIECES) or msgspec.structs.replace(event, text=self._event.text) != self._event:
            return False
        self._texts.append(event.text)
        if isinstance(event, events.ToolProgress) and sum(map(len, self._texts)) > 2 * PROGRESS_CHARACTERS:
            self._texts = ["".join(self._texts)[-PROGRESS_CHARACTERS:]]
        return True

    @property
    def received(self) -> Received:
        text = "".join(self._texts)
        if isinstance(self._event, events.ToolProgress):
            text = text[-PROGRESS_CHARACTERS:]
        return Received(msgspec.structs.replace(self._event, text=text), self._uid)


class EventQueue(Generic[T]):
    """Items for one consumer, in order. Any task puts, one task takes."""

    def __init__(self) -> None:
        self._items = deque[Item[T] | _Merged]()
        self._not_empty = asyncio.Event()
        self._taken = 0
        self._flushes = deque[tuple[int, asyncio.Future[None]]]()
        self._closed = False

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: Item[T]) -> None:
        if self._closed or (isinstance(item, Received) and self._merge(item.event)):
            return
        self._items.append(item)
        self._not_empty.set()

    async def first(self) -> Item[T]:
        """Return the next item, which stays in the queue until `done` is called."""
        await self._not_empty.wait()
        first = self._items[0]
        if not isinstance(first, _Merged):
            return first
        self._items[0] = received = first.received
        return received

    def done(self) -> None:
        if self._closed:
            return
        self._items.popleft()
        self._taken += 1
        if not self._items:
            self._not_empty.clear()
        while self._flushes and (not self._items or self._flushes[0][0] <= self._taken):
            _set(self._flushes.popleft()[1])

    def close(self) -> None:
        """Discard what is queued and release the tasks that wait for it."""
        self._closed = True
        self._items.clear()
        self._not_empty.clear()
        while self._flushes:
            _set(self._flushes.popleft()[1])

    async def flush(self) -> None:
        """Wait until all items that are queued now are done."""
        if self._items:
            flushed = asyncio.get_running_loop().create_future()
            self._flushes.append((self._taken + len(self._items), flushed))
            await flushed

    async def drain(self) -> None:
        """Wait until the queue is empty."""
        while self._items:
            await self.flush()

    def _merge(self, event: events.AnyEvent) -> bool:
        """Add a piece of a text to the last item if many items wait; return whether that was possible."""
        if len(self._items) < COALESCE_AT:
            return False
        last = self._items[-1]
        if isinstance(last, Received) and isinstance(last.event, _PIECES):
            last = _Merged(last, last.event)
        if not isinstance(last, _Merged) or not last.add(event):
            return False
        self._items[-1] = last
        return True


def _set(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


# --- the log -------------------------------------------------------------------------------------------


async def find_conversation(db: async_db.AsyncSessionDB, conversation_id: str) -> types.Conversation | None:
    """Return the conversation, or None before its first message. Raises ConversationDeleted."""
    try:
        return await db.conversation(conversation_id)
    except errors.ConversationDeleted:
        raise
    except errors.NoSuchSession:
        return None


async def read_log(
    db: async_db.AsyncSessionDB, conversation_id: str, after: int, last: int, timeout: float | None = None
) -> AsyncIterator[tuple[types.Message, bool]]:
    """Yield the messages after `after` up to `last`, each with whether it is hidden (by an undo, for example).

    Raises TimeoutError if one read of the store takes longer than `timeout` seconds.
    """
    if after >= last:
        return
    async with asyncio.timeout(timeout):
        hides = [each for each in await db.hides(conversation_id) if each.shown_epoch is None]
    while after < last:
        upto = min(after + LOG_PAGE, last)
        async with asyncio.timeout(timeout):
            page = await db.transcript(conversation_id, after, upto)
        for message in page:
            yield message, any(each.from_seq <= message.seq <= each.to_seq for each in hides)
        after = upto


# --- the subscription ----------------------------------------------------------------------------------


class Subscription(Generic[T]):
    """Passes the items of one conversation to `deliver`, one at a time, from `start` until `close`.

    `receive` is called with every event when it is emitted and returns the item to queue, or None to skip it. With
    `messages`, messages that other processes write are delivered as LogMessage, each once, before the own message that
    follows them in the log where the store answers in time; without, a LogChanged says that there may be something new.
    `on_check` is called after every poll or hint.
    """

    def __init__(
        self,
        runtime: runtimes.Runtime,
        conversation_id: str,
        deliver: Callable[[Item[T]], Awaitable[object]],
        *,
        receive: Callable[[events.AnyEvent], Received | None] = Received,
        messages: bool = False,
        poll_seconds: float | None = None,
        on_check: Callable[[], object] = lambda: None,
    ) -> None:
        self._runtime, self._conversation_id, self._deliver = runtime, conversation_id, deliver
        self._receive, self._messages, self._on_check = receive, messages, on_check
        self._poll_seconds = runtime.poll_seconds if poll_seconds is None else poll_seconds
        self._queue = EventQueue[T]()
        self._read_seq = 0
        """The seq up to which the log was read."""
        self._own = set[int]()
        """Later messages of this process, which its events announce."""
        self._hinted = asyncio.Event()
        self._change_queued = False
        self._listening = ExitStack()
        self._following: asyncio.Task[None] | None = None
        self._delivering: asyncio.Task[None] | None = None

    # --- its life ------------------------------------------------------------------------------------

    async def replay(self) -> AsyncIterator[LogMessage]:
        """Yield what the log contains now, but for hidden messages; call it before `start`."""
        last = await self._last_seq()
        async for found in self._read(last):
            yield found
        self._read_seq = last

    async def skip_history(self) -> None:
        """Deliver only what is written from now on; call it before `start`."""
        self._read_seq = await self._last_seq()

    def start(self) -> None:
        """Begin to listen, to follow the log and to deliver. May be called again after `stop`."""
        runtime = self._runtime
        self._listening.enter_context(runtime.subscribe(self._conversation_id, on_event=self._receive_event))
        self._listening.enter_context(runtime.db.notifications.listen(self._receive_hint))
        self._following = asyncio.create_task(self._follow())
        if self._delivering is None:
            self._delivering = asyncio.create_task(self._deliver_all())

    def stop(self) -> None:
        """Receive nothing more. Queued events are still delivered."""
        self._listening.close()
        if self._following is not None:
            self._following.cancel()

    async def finish(self) -> None:
        """Receive nothing more; wait until all that is queued was delivered, for FLUSH_SECONDS at most."""
        self.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                await self.drain()

    def abandon(self) -> None:
        """Receive and deliver nothing more."""
        self.stop()
        if self._delivering is not None:
            self._delivering.cancel()
        self._queue.close()

    async def close(self) -> None:
        """Receive and deliver nothing more; return when the tasks have ended."""
        self.abandon()
        if tasks := [each for each in (self._following, self._delivering) if each is not None]:
            await asyncio.wait(tasks)

    @property
    def is_delivering(self) -> bool:
        return self._delivering is not None and not self._delivering.done()

    # --- the queue -----------------------------------------------------------------------------------

    def put(self, item: Item[T]) -> None:
        """Queue an item of the consumer's behind everything that was received so far."""
        self._queue.put(item)

    async def flush(self) -> None:
        """Wait until all that is queued now was delivered."""
        await self._queue.flush()

    async def drain(self) -> None:
        """Wait until nothing is queued."""
        await self._queue.drain()

    def request_check(self) -> None:
        """Check soon what other processes wrote."""
        if self._messages:
            self._hinted.set()
        elif not self._change_queued:
            self._change_queued = True
            self._queue.put(LogChanged())

    async def _deliver_all(self) -> None:
        while True:
            item = await self._queue.first()
            try:
                await self._deliver_item(item)
            except Exception:
                # The border of one item: the next ones are delivered whatever went wrong with it.
                logger.exception("an item of %s could not be delivered", self._conversation_id)
            finally:
                self._queue.done()

    async def _deliver_item(self, item: Item[T]) -> None:
        match item:
            case LogChanged():
                self._change_queued = False
            case LogMessage(message):
                if message.seq <= self._read_seq:
                    return
                self._read_seq = message.seq
            case Received(events.MessageStored(seq, _, "user")) if self._messages:
                await self._fill_gap(seq)
        await self._deliver(item)

    # --- events of this process ----------------------------------------------------------------------

    def _receive_event(self, emitted: events.Emitted) -> None:
        if self._messages and isinstance(emitted.event, events.MessageStored):
            self._own.add(emitted.event.seq)
        received = self._receive(emitted.event)
        if received is not None:
            self._queue.put(received)

    async def _fill_gap(self, seq: int) -> None:
        """Deliver what other processes wrote before the own message that begins a turn.

        Messages of others between those of a turn are delivered after it.
        """
        try:
            async for found in self._read(seq - 1, GAP_SECONDS):
                self._read_seq = found.message.seq
                await self._deliver(found)
            self._read_seq = max(self._read_seq, seq - 1)
        except (errors.HoldfastError, TimeoutError) as error:
            why = error if isinstance(error, errors.HoldfastError) else "the store did not answer in time"
            logger.warning("messages before %d of %s are delivered later: %s", seq, self._conversation_id, why)

    # --- writes of other processes -------------------------------------------------------------------

    def _receive_hint(self, hint: notifications.Hint) -> None:
        if hint.kind in ("moved", "lost") and hint.is_about(self._conversation_id):
            self._hinted.set()

    async def _follow(self) -> None:
        if self._messages:
            await self.check()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_seconds):
                    await self._hinted.wait()
            await self.check()
            self._on_check()

    async def check(self) -> None:
        """Look for writes of other processes now, unless a turn of this process is running."""
        self._hinted.clear()
        # The messages of a turn of this process are announced by its events; its end is followed by a check.
        if self._runtime.running(self._conversation_id):
            return
        if not self._messages:
            self.request_check()
            return
        try:
            await self._find_messages()
        except errors.HoldfastError as error:
            logger.debug("the log of %s could not be read: %s", self._conversation_id, error)
        except Exception:
            # The border of one check: the next one finds what this one missed.
            logger.exception("the log of %s could not be read", self._conversation_id)

    async def _find_messages(self) -> None:
        last = await self._last_seq()
        async for found in self._read(last):
            if self._runtime.running(self._conversation_id):
                return  # It may be a message of the turn that has begun meanwhile.
            self._queue.put(found)
            await self._queue.flush()
        self._read_seq = max(self._read_seq, last)

    async def _last_seq(self) -> int:
        found = await find_conversation(self._runtime.db, self._conversation_id)
        return found.last_seq if found is not None else 0

    async def _read(self, last: int, timeout: float | None = None) -> AsyncIterator[LogMessage]:
        """Yield the messages up to `last` that were not read yet and are neither hidden nor announced by events."""
        self._own = {seq for seq in self._own if seq > self._read_seq}
        while self._read_seq + 1 in self._own:
            self._read_seq += 1
        db = self._runtime.db
        async for message, hidden in read_log(db, self._conversation_id, self._read_seq, last, timeout):
            if not hidden and message.seq not in self._own:
                async with asyncio.timeout(timeout):
                    images = await attachments.load_images(db, message)
                yield LogMessage(message, images)
