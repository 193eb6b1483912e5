"""Room in the model's window: what a turn does about it before it asks, and what happens beside the turns.

Below the soft threshold nothing. From there on a compaction is made beside the running turns, which never wait for
it. At the hard one a turn first shows less of old tool outputs, which takes no model, and waits for a compaction
only if that is not enough. When a provider says that a request was too large all the same, it is believed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import msgspec

from holdfast import errors, events, types
from holdfast.agent import context
from holdfast.compaction import compress, policy, port, shorten

logger = logging.getLogger("holdfast.agent")

POLL = 0.1
# Each time a provider says that it was too much, so much of it is tried next, so often in a turn.
TIGHTER, OVERFLOWS = 0.6, 4

Emit = Callable[[events.AnyEvent], None]


class Room:
    """The room of one conversation. `work` says what a compaction of it needs, as of now."""

    def __init__(self, view: context.View, work: Callable[[], compress.Work], background: bool = True) -> None:
        self._view, self._work, self._background = view, work, background
        self._beside: asyncio.Task[port.Compaction] | None = None
        self._ceiling: int | None = None
        self._overflows = 0
        self._shown: Sequence[types.Message] = ()
        self._said: set[port.Outcome] = set()

    # --- before the model is asked -------------------------------------------------------------------

    def new_turn(self) -> None:
        """What one turn learnt about a provider's idea of too large is not held against the next."""
        self._ceiling, self._overflows = None, 0

    async def messages(self, turn: str, emit: Emit) -> Sequence[types.Message]:
        """What the model is to see now; NoRoom when not even the prompt fits."""
        self._shown = await self._fitting(turn, emit)
        return self._shown

    async def _fitting(self, turn: str, emit: Emit) -> Sequence[types.Message]:
        shown, usable = await self._view.messages(), self._usable()
        match await self._pressure(shown, usable):
            case "none":
                return shown
            case "soft":
                self.begin(turn, emit)
                return shown
        less = self._shortened(shown, usable)
        if self._taken(less) < self._work().policy.hard * usable:
            self.begin(turn, emit)
            return less
        await self._compacted(turn, emit)
        less = self._shortened(await self._view.messages(), usable)
        if self._taken(less) >= usable:
            # Whatever kept a model from summing up, the conversation must go on: the extract needs none.
            await self._attempt(compress.Asked(turn=turn, force=True), emit, by_hand=True)
            self._view.forget()
            less = self._shortened(await self._view.messages(), usable)
        return less

    async def make_more(self, turn: str, emit: Emit) -> bool:
        """A provider said that a request was too large: whether it is worth asking again, with less."""
        self._overflows += 1
        if self._overflows > OVERFLOWS:
            return False
        self._ceiling = int(self._taken(self._shown) * TIGHTER)
        await self._compacted(turn, emit)
        less = self._shortened(await self._view.messages(), self._usable())
        return self._taken(less) < self._taken(self._shown)

    async def _pressure(self, shown: Sequence[types.Message], usable: int) -> policy.Pressure:
        found = policy.pressure(self._taken(shown), usable, self._work().policy)
        if found == "soft" and self._beside is None and await self._undone():
            return "none"
        return found

    async def _undone(self) -> bool:
        """Whether a person took the last compaction back: then the next waits for the hard threshold."""
        work = self._work()
        return (await work.db.conversation(work.conversation_id)).redo_epoch is not None

    def _usable(self) -> int:
        usable = self._work().usable
        return usable if self._ceiling is None else min(usable, self._ceiling)

    def _taken(self, messages: Sequence[types.Message]) -> int:
        return sum(map(self._work().meter.of, messages))

    def _shortened(self, messages: Sequence[types.Message], usable: int) -> Sequence[types.Message]:
        work = self._work()
        if self._taken(messages) < work.policy.hard * usable:
            return messages
        return shorten.shortened(messages, work.meter.of, int(work.policy.hard * usable) - 1)

    # --- compacting ----------------------------------------------------------------------------------

    @property
    def under_way(self) -> bool:
        """Whether a compaction is being made beside the turns."""
        return self._beside is not None and not self._beside.done()

    def begin(self, turn: str, emit: Emit) -> None:
        """Compact beside the turns, if nothing is under way yet. No prompt cancels it; closing does."""
        if self._background and not self.under_way:
            self._beside = asyncio.create_task(self._attempt(compress.Asked(turn=turn), emit))

    async def compact(self, asked: compress.Asked, emit: Emit) -> port.Compaction:
        """Compact now, and wait for it; one that is under way beside the turns is let end first."""
        if self._beside is not None and not self._beside.done():
            await asyncio.wait([self._beside])
        return await self._attempt(asked, emit)

    async def close(self) -> None:
        """Stop what is under way; it has changed nothing."""
        if self._beside is not None:
            self._beside.cancel()
            await asyncio.wait([self._beside])

    async def _compacted(self, turn: str, emit: Emit) -> None:
        """A turn cannot go on without room: wait for whoever makes it, for as long as a summary may take."""
        work = self._work()
        if self._beside is not None and not self._beside.done():
            await asyncio.wait([self._beside], timeout=work.policy.deadline)
            if self._beside.done() and self._succeeded(self._beside):
                self._view.forget()
                return
        made = await self._attempt(compress.Asked(turn=turn), emit)
        if made.outcome is port.Outcome.BUSY:
            await self._until_free(work)
        self._view.forget()

    @staticmethod
    def _succeeded(task: asyncio.Task[port.Compaction]) -> bool:
        if task.cancelled() or task.exception() is not None:
            return False
        return task.result().outcome is port.Outcome.COMPACTED

    async def _until_free(self, work: compress.Work) -> None:
        async def free() -> None:
            while await work.db.get_compression_lock_holder(work.conversation_id) is not None:
                await asyncio.sleep(POLL)

        try:
            await asyncio.wait_for(free(), work.policy.deadline)
        except TimeoutError:
            logger.warning("a compaction elsewhere was waited for in vain")
        except errors.HoldfastError as error:
            work.db.db.say_once(error)

    def _within_ceiling(self) -> compress.Work:
        """The work; with the window a provider was found to have, where it said that less than ours was too much."""
        work = self._work()
        if self._ceiling is None:
            return work
        floor = compress.floor_of(work)
        window = self._ceiling + floor.system + floor.tools
        known = msgspec.structs.replace(work.policy, reserved_output=0)
        return msgspec.structs.replace(work, window=min(work.window, window), policy=known)

    async def _attempt(self, asked: compress.Asked, emit: Emit, by_hand: bool = False) -> port.Compaction:
        work = self._within_ceiling()
        made = await compress.compress(msgspec.structs.replace(work, summarizers=()) if by_hand else work, asked)
        if made.outcome is port.Outcome.COMPACTED:
            self._said.clear()
            emit(events.Compacted(made.session_id, made.cut_seq or 0, made.before, made.after, made.model))
        elif made.outcome is not port.Outcome.NOTHING_TO_DO and (asked.force or made.outcome not in self._said):
            # One notice of each kind until the next success, unless a person asked: nobody wants one at every step.
            self._said.add(made.outcome)
            emit(events.Notice(made.reason, "info" if made.outcome is port.Outcome.BUSY else "warning"))
        return made
