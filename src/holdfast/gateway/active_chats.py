"""A chat that is being worked on, and the turn of it that is under way, for what comes in meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from holdfast import types
from holdfast.gateway import busy_policy, route_keys, turn_progress
from holdfast.runtime import runtime as runtimes


class Lane:
    """A chat that is being worked on, in this process."""

    def __init__(self, route: str) -> None:
        self.route = route
        self.poked = False
        """Whether something may have come in since it was looked at last."""
        self._woken = asyncio.Event()
        self._disturbed: asyncio.Future[None] | None = None
        self.notices = set[str]()
        """Conversations of this chat with something in their inbox."""
        self.behind: Sequence[types.InboundMessage] = ()
        """What waited behind the one that is worked on, when that was taken up."""
        self.inbox_empty = False
        """Whether the inbox of the conversation was empty when the chat was taken up."""
        self.more = False
        """Whether something was seen to wait behind what is being worked on."""
        self.attempts = 0

    def poke(self) -> None:
        """Something may have come in."""
        self.poked = True
        self.wake()

    def wake(self) -> None:
        """Let whoever waits for something to come look up."""
        self._woken.set()
        if self._disturbed is not None and not self._disturbed.done():
            self._disturbed.set_result(None)

    def look(self) -> None:
        """From here on everything that is there is seen."""
        self.poked = False
        self._woken.clear()

    async def quiet(self, turn: asyncio.Future[Any], seconds: float) -> None:
        """Until a turn is over, something may have come in, or the time is over."""
        if self._woken.is_set():
            return
        self._disturbed = asyncio.get_running_loop().create_future()
        await asyncio.wait([turn, self._disturbed], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        self._disturbed = None

    async def came(self, seconds: float) -> None:
        """Until something may have come in, or the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()


class Running:
    """A turn under way, for what comes in beside it."""

    def __init__(
        self, runtime: runtimes.Runtime, here: str, arrival: types.InboundMessage | None, watch: turn_progress.Watch
    ) -> None:
        self.runtime, self.here, self.arrival, self.watch = runtime, here, arrival, watch
        self.seen = {arrival.id} if arrival else set[int]()
        self.steered: dict[str, types.InboundMessage] = {}
        """What the turn was told, by the uid it has in the log once the model was."""
        self.over = False
        self.command: asyncio.Task[Any] | None = None
        """What is done, where that is a command and no turn."""

    @property
    def within(self) -> set[int]:
        """What the turn is about: what it began with, and what it was told since."""
        own = {self.arrival.id} if self.arrival else set[int]()
        return own | {each.id for each in self.steered.values()}

    def place(self, mode: busy_policy.Mode, arrival: types.InboundMessage, ahead: bool) -> busy_policy.Beside | None:
        """What becomes of something that came in beside the turn; None: that is not known yet.

        Words are only told to the turn of the same chat that the person could mean: one that began with a message of
        theirs, which is in the log. `ahead`: something else has to wait, and what came after it does, too, unless
        /steer says that it is for the turn.
        """
        what = busy_policy.beside(mode, arrival.text, not arrival.parts)
        if what in ("now", "later"):
            return what
        own, waits = self.arrival, ahead and busy_policy.into_turn(arrival.text) is None
        if own is None or waits or (route_keys.is_shared(arrival.route) and own.sender != arrival.sender):
            return "later"
        return what if self.watch.mine else None
