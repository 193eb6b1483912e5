"""Send the messages of the outbox, in order for each chat, until the platform accepts them.

A message is marked as delivered after the platform accepted it, and is never sent again then. If the process dies in
between, the message is sent again under the same id. A message that is addressed to another chat than the message it
answers is refused here too, although the store does not accept one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from time import monotonic

from holdfast import errors, fault_points, types
from holdfast.gateway import chat_leases, spans
from holdfast.gateway import platform as gateway_platform
from holdfast.store import async_db, notifications

logger = logging.getLogger("holdfast.gateway")

EVERY, SOON = 1.0, 0.02
MOST = 200
AT_ONCE = 32
"""How many messages of one platform are on their way at the same time; never two to one chat."""
TRIES, FEW = 20, 8
"""The attempts at a message; fewer after an unexpected error, because later messages to the chat wait for it."""
FIRST, LONGEST = 1.0, 600.0
"""Seconds until a message is tried again, twice as many each time."""
LATEST = 3600.0
"""The longest pause in seconds that a platform may ask for."""
TAKES = 60.0
"""Seconds one sending may take."""


def pause(attempts: int, retry_after: float | None = None) -> float:
    """Return the pause after this many attempts, at least as long as the platform asks for."""
    return max(min(FIRST * 2.0 ** min(max(attempts - 1, 0), 20), LONGEST), min(retry_after or 0.0, LATEST))


class Sender:
    """Sends the messages of one platform. `run` is called once."""

    def __init__(
        self, db: async_db.AsyncSessionDB, platform: gateway_platform.Platform, clock: Callable[[], float]
    ) -> None:
        self._db, self._platform, self._clock = db, platform, clock
        self._owns = platform.owns if isinstance(platform, gateway_platform.Owns) else None
        self._alone = isinstance(platform, gateway_platform.Owns) and platform.alone
        self._woken = asyncio.Event()
        self._sending: dict[str, asyncio.Task[None]] = {}
        self._ready: deque[types.Outgoing] = deque()
        """Due messages of the last look for which there was no room yet."""
        self._again = set[str]()
        """Chats in `_sending` that may have another message due once theirs is sent."""
        self._claims: dict[str, tuple[types.ChatLease, float]] = {}
        self._unmarked: dict[int, str] = {}
        """Messages that were sent and not yet marked as delivered, with their external ids; they are not sent again."""
        self._elsewhere: dict[str, float] = {}
        """Chats that another process sends to, or that could not be sent to, and until when they are left alone."""

    def wake(self) -> None:
        """Look for due messages now."""
        self._woken.set()

    async def run(self) -> None:
        """Send until cancelled, then wait for the messages being sent."""
        with self._db.notifications.listen(self._heard):
            try:
                while True:
                    self._woken.clear()
                    if not self._ready:  # else nothing more could be started, and `_done` wakes this loop
                        await self._look()
                    await _woken(self._woken, EVERY)
            finally:
                await self._leave()

    async def drained(self) -> None:
        """Wait until this process has no due message to send."""
        while self._sending or await self._due():
            self.wake()
            await asyncio.sleep(SOON)

    async def _due(self) -> list[types.Outgoing]:
        """Return the due messages of this process; look further when those of other processes fill the list."""
        for limit in (MOST, 100 * MOST):
            found = await self._db.mail.due_outgoing(self._platform.name, limit, self._clock())
            mine = [each for each in found if self._is_mine(each)]
            if mine or len(found) < limit:
                break
        return mine

    def _is_mine(self, outgoing: types.Outgoing) -> bool:
        try:
            return self._owns is None or self._owns(outgoing)
        except Exception:
            # The border to a platform: what it cannot tell is left to others.
            logger.exception("%s could not say whose %d is", self._platform.name, outgoing.id)
            return False

    async def _look(self) -> None:
        try:
            due = await self._due()
            await self._tidy()
        except errors.HoldfastError as error:
            logger.warning("what goes out by %s could not be read: %s", self._platform.name, error)
            return
        self._again.update(each.chat for each in due if each.chat in self._sending)
        self._ready = deque(each for each in due if each.chat not in self._sending)
        self._start_ready()

    def _start_ready(self) -> None:
        while self._ready and len(self._sending) < AT_ONCE:
            outgoing = self._ready.popleft()
            if outgoing.chat not in self._sending and outgoing.chat not in self._elsewhere:
                if outgoing.behind:
                    self._again.add(outgoing.chat)
                task = self._sending[outgoing.chat] = asyncio.create_task(self._chat(outgoing))
                task.add_done_callback(partial(self._done, outgoing.chat))

    def _done(self, chat: str, _: asyncio.Task[None]) -> None:
        del self._sending[chat]
        if self._owns is not None and chat in self._claims:
            # The next message to it may be another process's to send.
            self._claims[chat] = (self._claims[chat][0], 0.0)
        had_ready = bool(self._ready)
        self._start_ready()
        if chat in self._again or (had_ready and not self._ready):
            self._again.discard(chat)
            self.wake()

    async def _chat(self, outgoing: types.Outgoing) -> None:
        """Send one message. Any error is logged and affects no other chat."""
        try:
            claim = await self._claim(outgoing.chat)
            asked = self._clock()
            begun = await self._db.mail.begin_sending(claim, outgoing.id)
            fault_points.reach("gateway", "sending")
            if claim is not None and abs(self._clock() - asked) > claim.ttl / 3:
                raise errors.LeaseLost("This process slept: another one may have sent it meanwhile.")
            if begun is not None:
                with spans.span("holdfast.send", platform=begun.platform, outgoing=begun.id, attempts=begun.attempts):
                    await self._send(claim, begun)
            return
        except (errors.Busy, errors.LeaseLost):
            self._claims.pop(outgoing.chat, None)
        except errors.SendRefused as error:
            await self._refused(outgoing, error)
            return
        except errors.HoldfastError as error:
            logger.warning("%s %d is sent again later: %s", self._platform.name, outgoing.id, error)
        except Exception:
            logger.exception("%s %d could not be sent", self._platform.name, outgoing.id)
        self._elsewhere[outgoing.chat] = monotonic() + EVERY

    async def _send(self, claim: types.ChatLease | None, outgoing: types.Outgoing) -> None:
        try:
            if outgoing.id not in self._unmarked:
                self._unmarked[outgoing.id] = await self._sent(claim, outgoing)
                fault_points.reach("gateway", "sent")
        except errors.SendRefused as error:
            await self._refused(outgoing, error)
        except errors.SendFailed as error:
            await self._failed(outgoing, str(error), error.retry_after)
        except errors.StoreError:
            raise
        except TimeoutError:
            await self._failed(outgoing, f"It took longer than {TAKES:.0f} s.")
        except Exception as error:
            logger.exception("%s raised something unexpected", self._platform.name)
            await self._failed(outgoing, type(error).__name__, tries=FEW)
        else:
            await self._db.mail.mark_delivered(outgoing.id, self._unmarked[outgoing.id])
            del self._unmarked[outgoing.id]

    async def _refused(self, outgoing: types.Outgoing, error: errors.SendRefused) -> None:
        logger.warning("%s %d will never be sent: %s", self._platform.name, outgoing.id, error)
        await self._db.mail.mark_failed(outgoing.id, str(error))

    async def _sent(self, claim: types.ChatLease | None, outgoing: types.Outgoing) -> str:
        """Send a message and return the platform's id of it; renew the lease meanwhile."""
        if claim is None:
            async with asyncio.timeout(TAKES):
                return await self._platform.send(outgoing)
        beats = list[asyncio.Task[None]]()
        first = asyncio.get_running_loop().call_later(
            claim.ttl / 3, lambda: beats.append(asyncio.create_task(self._beat(claim)))
        )
        try:
            async with asyncio.timeout(TAKES):
                return await self._platform.send(outgoing)
        finally:
            first.cancel()
            for beat in beats:
                beat.cancel()

    async def _beat(self, claim: types.ChatLease) -> None:
        while True:
            try:
                await self._db.mail.renew_chat_lease(claim)
            except errors.HoldfastError as error:
                logger.warning("a claim could not be renewed while something was sent: %s", error)
            await asyncio.sleep(claim.ttl / 3)

    async def _failed(
        self, outgoing: types.Outgoing, why: str, retry_after: float | None = None, tries: int = TRIES
    ) -> None:
        again = outgoing.attempts < tries
        if not again:
            logger.error("%s %d is given up after %d tries: %s", self._platform.name, outgoing.id, tries, why)
        when = self._clock() + pause(outgoing.attempts, retry_after)
        await self._db.mail.mark_failed(outgoing.id, why, when if again else None)

    # --- claims: kept for a while, as one message seldom comes alone -----------------------------------

    async def _claim(self, chat: str) -> types.ChatLease | None:
        """Return the lease on a chat, or None if no other process can send to it; Busy if another process holds it."""
        if self._alone:
            return None
        known = self._claims.get(chat)
        if known is not None and monotonic() < known[1]:
            return known[0]
        if known is not None:
            await self._given_back(chat)
        claim = await self._db.mail.acquire_chat_lease(f"out:{self._platform.name}:{chat}", chat_leases.TTL)
        self._claims[chat] = (claim, monotonic() + chat_leases.TTL / 3)
        return claim

    async def _tidy(self) -> None:
        now = monotonic()
        self._elsewhere = {chat: until for chat, until in self._elsewhere.items() if until > now}
        over = [chat for chat, (_, until) in self._claims.items() if until <= now and chat not in self._sending]
        await asyncio.gather(*(self._given_back(chat) for chat in over))

    async def _given_back(self, chat: str) -> None:
        claim, _ = self._claims.pop(chat)
        try:
            await self._db.mail.release_chat_lease(claim)
        except errors.HoldfastError as error:
            logger.warning("a claim could not be given back, and runs out by itself: %s", error)

    async def _leave(self) -> None:
        if self._sending:
            await asyncio.wait(list(self._sending.values()), timeout=TAKES)
        await asyncio.gather(*(self._given_back(chat) for chat in list(self._claims)))

    def _heard(self, hint: notifications.Hint) -> None:
        if hint.kind == "lost" or (hint.kind == "outgoing" and hint.conversation_id == self._platform.name):
            self.wake()


class Senders:
    """The senders of all platforms of a process."""

    def __init__(
        self,
        db: async_db.AsyncSessionDB,
        platforms: Mapping[str, gateway_platform.Platform],
        clock: Callable[[], float],
    ) -> None:
        self._each = {name: Sender(db, platform, clock) for name, platform in platforms.items()}

    def wake(self, platform: str) -> None:
        """Let the sender of this platform look for due messages, if this process has one."""
        if platform in self._each:
            self._each[platform].wake()

    async def drain(self, seconds: float) -> None:
        """Wait until all due messages were sent or failed, or the time is over."""
        if seconds <= 0:
            return
        try:
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(sender.drained() for sender in self._each.values()))
        except TimeoutError:
            logger.info("what could not be sent in %.0f s is sent by whoever runs next", seconds)
        except errors.HoldfastError as error:
            logger.warning("what is due could not be sent to the end: %s", error)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for sender in self._each.values():
                group.create_task(sender.run())


async def _woken(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
