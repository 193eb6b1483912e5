"""The router: every chat with something open is worked on by one task, here or in another process.

It learns that something came from the door, from the store's hints, and by looking every second. A chat that another
process works on is left to it; when that process dies, its claim is free and this one goes on where it stopped.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from time import monotonic

from holdfast import errors, types
from holdfast.gateway import active_chats, gateway_context, notices, worker
from holdfast.store import notifications

logger = logging.getLogger("holdfast.gateway")

EVERY = 1.0
"""Seconds between two looks, where nobody says that something came."""
MOST = 1_000
PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds before a chat is tried again that could not be worked on, twice as many each time."""


class Router:
    """Works on chats until it is stopped. `run` is called once."""

    def __init__(self, home: gateway_context.House) -> None:
        self._home = home
        self._worker = worker.Worker(home)
        self._notices = notices.Notices(home)
        self._lanes: dict[str, asyncio.Task[None]] = {}
        self._known: dict[str, active_chats.Lane] = {}
        self._paused: dict[str, float] = {}
        self._served: dict[str, float] = {}
        """When a chat was worked on last, while there is no room for all."""
        self._woken = asyncio.Event()
        home.desks.prepare = self._notices.attend

    @property
    def busy(self) -> int:
        """How many chats are being worked on in this process."""
        return len(self._lanes)

    def poke(self, route: str) -> None:
        """Something came in on this route."""
        if route in self._known:
            self._known[route].poke()
        elif route not in self._paused:
            self._start(route)

    def withdraw(self, arrival: types.InboundMessage) -> None:
        """Stop the turn of a message whose client has gone, or never begin it. A turn of another process goes on."""
        self._worker.withdraw(arrival)

    def wake(self) -> None:
        """Look at everything now."""
        self._woken.set()

    async def run(self) -> None:
        """Until stopped or cancelled. What cannot be read now is looked at again."""
        with self._home.db.notifications.listen(self._heard):
            while not self._worker.stopping:
                self._woken.clear()
                try:
                    await self._look()
                except errors.HoldfastError as error:
                    logger.warning("what came in could not be looked at: %s", error)
                await _woken(self._woken, EVERY)

    async def stop(self, grace: float = 0.0) -> None:
        """Take up nothing more. What runs may end within `grace` seconds; the rest is left to other processes."""
        self._worker.stopping = True
        self.wake()
        if self._lanes:
            await asyncio.wait(self._lanes.values(), timeout=grace)
        if self._lanes:
            logger.info("%d chats are left in the middle of a turn; whoever runs next goes on with them", self.busy)
            self._home.desks.abandon()
            await asyncio.wait(self._lanes.values(), timeout=worker.EVERY)
        for task in (left := list(self._lanes.values())):
            task.cancel()
        if left:
            await asyncio.wait(left)
        await self._worker.claims.close()

    async def _look(self) -> None:
        now = monotonic()
        self._paused = {route: until for route, until in self._paused.items() if until > now}
        waiting = [route for route in await self._home.db.mail.open_routes(MOST) if route not in self._known]
        self._worker.crowded = False
        # Who had a turn while others waited for room comes after them.
        for route in sorted(waiting, key=lambda route: self._served.get(route, 0.0)):
            self._start(route)
        if not self._worker.crowded:
            self._served.clear()
        for route, conversation_id in await self._notices.waiting():
            if not self._home.serves(route):
                continue
            lane = self._known.get(route) or self._start(route)
            if lane is not None and conversation_id not in lane.notices:
                lane.notices.add(conversation_id)
                lane.wake()

    def _start(self, route: str) -> active_chats.Lane | None:
        if self._worker.stopping or route in self._paused or not self._home.serves(route):
            return None
        if len(self._lanes) >= self._home.settings.most:
            self._worker.crowded = True
            return None
        lane = self._known[route] = active_chats.Lane(route)
        task = self._lanes[route] = asyncio.create_task(self._work(lane))
        task.add_done_callback(lambda _: self._over(lane))
        return lane

    def _over(self, lane: active_chats.Lane) -> None:
        del self._lanes[lane.route], self._known[lane.route]
        if self._worker.crowded:
            self._served[lane.route] = monotonic()
            if lane.route not in self._paused:
                self.wake()
        elif lane.poked:
            self.poke(lane.route)

    async def _work(self, lane: active_chats.Lane) -> None:
        """One chat. The border of what came in: whatever goes wrong with one is written down, and stops no other."""
        try:
            await self._worker.work(lane)
        except errors.Busy:
            lane.poked = False  # Whoever works on it sees what came.
            if self._worker.crowded:
                # It had room that others wait for, and would have it again at the next look.
                self._paused[lane.route] = monotonic() + EVERY
        except errors.LeaseLost:
            logger.info("another process goes on with %s", lane.route)
        except (worker.Later, errors.HoldfastError) as error:
            self._pause(lane)
            logger.warning("%s is worked on again in a while: %s", lane.route, error)
        except Exception:
            self._pause(lane)
            logger.exception("%s could not be worked on", lane.route)

    def _pause(self, lane: active_chats.Lane) -> None:
        seconds = min(PAUSE * 2 ** min(lane.attempts, 10), LONGEST_PAUSE)
        self._paused[lane.route] = monotonic() + seconds

    def _heard(self, hint: notifications.Hint) -> None:
        """Of what another process wrote. What is not worked on here is for that one; if it dies, a look finds it."""
        if hint.kind == "arrived":
            if hint.conversation_id in self._known:
                self.poke(hint.conversation_id)
        elif hint.kind in ("came", "lost"):
            self.wake()


async def _woken(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
