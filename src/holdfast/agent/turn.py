"""One turn at a time per conversation, over all processes and hosts.

A turn holds the `turn` lease from its first word to its last, and every append carries it: whoever lost the
lease, however long ago and without noticing, cannot write. A task beside the turn renews the lease, and stops
the turn at once when it is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress

from holdfast import errors, types
from holdfast.store import aio, hearing

logger = logging.getLogger("holdfast.agent")

TTL = 30.0
SOON, SELDOM = 0.02, 0.25


class Turn:
    """The right to write the next messages of a conversation."""

    def __init__(self, db: aio.AsyncSessionDB, lease: types.Lease) -> None:
        self._db = db
        self.lease = lease
        self.lost = False
        self.when_lost: Callable[[], object] = lambda: None

    async def append(self, messages: Sequence[types.NewMessage]) -> list[types.Receipt]:
        """Append as the holder of the turn; LeaseLost when it is not ours any more."""
        return await self._db.append_messages(self.lease.conversation_id, messages, lease=self.lease)


@asynccontextmanager
async def begin(
    db: aio.AsyncSessionDB,
    conversation_id: str,
    *,
    patience: float,
    ttl: float = TTL,
    waiting: Callable[[str], None] = lambda _: None,
    given_up: Callable[[], bool] = lambda: False,
) -> AsyncIterator[Turn]:
    """Take the turn, waiting for another's to end; TurnBusy when it does not within `patience` seconds.

    `given_up` is asked while it waits: whether nobody wants the turn any more, which is TurnBusy, too.
    """
    async with held(db, await _acquire(db, conversation_id, patience, ttl, waiting, given_up)) as turn:
        yield turn


@asynccontextmanager
async def held(db: aio.AsyncSessionDB, lease: types.Lease) -> AsyncIterator[Turn]:
    """A turn whose lease was just taken, kept alive and given back."""
    turn = Turn(db, lease)
    beats = list[asyncio.Task[None]]()
    # Most turns are over before: those need no task for it.
    first = asyncio.get_running_loop().call_later(
        lease.ttl / 3, lambda: beats.append(asyncio.create_task(_beat(db, turn)))
    )
    try:
        yield turn
    finally:
        first.cancel()
        for beat in beats:
            beat.cancel()
        await _release(db, turn)


async def _acquire(
    db: aio.AsyncSessionDB,
    conversation_id: str,
    patience: float,
    ttl: float,
    waiting: Callable[[str], None],
    given_up: Callable[[], bool],
) -> types.Lease:
    loop = asyncio.get_running_loop()
    deadline, pause = loop.time() + patience, SOON
    freed: hearing.Expected | None = None
    with ExitStack() as stack:
        while True:
            try:
                return await aio.kept(db.acquire_lease(conversation_id, "turn", None, ttl), db.release_lease)
            except errors.Busy as error:
                if loop.time() >= deadline or given_up():
                    raise errors.TurnBusy(error.holder, error.expires_in) from None
                if freed is None:
                    known = (await db.snapshot(conversation_id)).conversation_id
                    freed = stack.enter_context(db.hearing.expect(known, "freed"))
                    waiting(error.holder)
                await freed.wait(min(pause, max(error.expires_in, SOON)))
                pause = min(pause * 1.5, SELDOM)


async def _beat(db: aio.AsyncSessionDB, turn: Turn) -> None:
    """Renew every third of the lease's time. Only a lost lease stops the turn: a store that is busy or full
    for a moment does not, and if it stays so, the lease runs out and the appends are refused."""
    while True:
        try:
            await db.renew_lease(turn.lease)
        except errors.LeaseLost:
            turn.lost = True
            turn.when_lost()
            return
        except errors.HoldfastError as error:
            logger.warning("the lease of a turn could not be renewed: %s", error)
        await asyncio.sleep(turn.lease.ttl / 3)


async def _release(db: aio.AsyncSessionDB, turn: Turn) -> None:
    """Given back even when the turn is being cancelled; what fails here runs out by itself."""
    task = asyncio.ensure_future(db.release_lease(turn.lease))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        with suppress(errors.HoldfastError):
            await task
        raise
    except errors.HoldfastError as error:
        logger.warning("the lease of a turn could not be given back: %s", error)
