"""One turn at a time per conversation, over all processes and hosts.

A turn holds the `turn` lease from its first word to its last, and every append carries it: a process that lost the
lease, however long ago and without noticing, cannot write. A task beside the turn renews the lease, and stops
the turn at once when it is gone. If the lock subsystem fails, in whatever way, the turn is taken without a lease:
then turns of two processes may interleave, and nothing else is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager

from holdfast import errors, types
from holdfast.store import async_db, leases

TTL = 30.0
SOON, SELDOM = 0.02, 0.25


class Turn:
    """The right to write the next messages of a conversation."""

    def __init__(self, db: async_db.AsyncSessionDB, began: types.Lease | types.Snapshot) -> None:
        self._db = db
        self.lease = began if isinstance(began, types.Lease) else None
        self.snapshot = began.snapshot if isinstance(began, types.Lease) else began
        self.fenced = self.lease is not None
        """Whether appends carry the lease."""
        self.lost = False
        self.hindrance: errors.StoreError | None = None
        """Why the store could not renew the lease the last time: then a lease that ran out was not taken over."""
        self.when_lost: Callable[[], object] = lambda: None

    async def append(self, messages: Sequence[types.NewMessage]) -> list[types.Receipt]:
        """Append as the holder of the turn; LeaseLost when it is not ours any more."""
        if self.fenced:
            try:
                return await self._db.append_messages(self.snapshot.conversation_id, messages, lease=self.lease)
            except errors.LeasesUnavailable as error:
                self._db.lease_failures.report(error)
                self.fenced = False
            except errors.LeaseLost as error:
                raise self.hindrance or error from error
        return await self._db.append_messages(self.snapshot.conversation_id, messages)


@asynccontextmanager
async def begin(
    db: async_db.AsyncSessionDB,
    conversation_id: str,
    *,
    patience: float,
    ttl: float = TTL,
    waiting: Callable[[str], None] = lambda _: None,
    given_up: Callable[[], bool] = lambda: False,
    warn: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[Turn]:
    """Take the turn, waiting for another's to end; Busy when it does not within `patience` seconds.

    `given_up` is asked while it waits: whether the turn is still wanted; if not, Busy is raised. `warn` is called
    when the turn is taken without a lease, once per store.
    """
    async with held(db, await _acquire(db, conversation_id, patience, ttl, waiting, given_up, warn)) as turn:
        yield turn


@asynccontextmanager
async def held(db: async_db.AsyncSessionDB, began: types.Lease | types.Snapshot) -> AsyncIterator[Turn]:
    """A turn whose lease was just taken, kept alive and given back; or one without a lease."""
    turn = Turn(db, began)
    if turn.lease is None:
        yield turn
        return
    lease, beats = turn.lease, list[asyncio.Task[None]]()
    # Most turns are over before: those need no task for it.
    first = asyncio.get_running_loop().call_later(
        lease.ttl / 3, lambda: beats.append(asyncio.create_task(_beat(db, turn, lease)))
    )
    try:
        yield turn
    finally:
        first.cancel()
        for beat in beats:
            beat.cancel()
        await release(db, lease)


async def _acquire(
    db: async_db.AsyncSessionDB,
    conversation_id: str,
    patience: float,
    ttl: float,
    waiting: Callable[[str], None],
    given_up: Callable[[], bool],
    warn: Callable[[str], None],
) -> types.Lease | types.Snapshot:
    loop = asyncio.get_running_loop()
    deadline, pause = loop.time() + patience, SOON
    freed: async_db.HintWaiter | None = None
    with ExitStack() as stack:
        while True:
            try:
                taking = db.acquire_lease(conversation_id, "turn", None, ttl)
                return await async_db.await_or_release(taking, lambda lease: release(db, lease))
            except errors.Busy as error:
                if loop.time() >= deadline or given_up():
                    message = (
                        f"A turn of this conversation is running elsewhere ({error.holder}). Wait, or stop it there."
                    )
                    raise errors.Busy(error.holder, error.expires_in, message) from None
                if freed is None:
                    known = (await db.snapshot(conversation_id)).conversation_id
                    freed = stack.enter_context(db.notifications.expect(known, "freed"))
                    waiting(error.holder)
                await freed.wait(min(pause, max(error.expires_in, SOON)))
                pause = min(pause * 1.5, SELDOM)
            except Exception as error:  # noqa: BLE001 -- no failure of the lock stops a turn
                return await without_lease(db, conversation_id, error, warn)


async def without_lease(
    db: async_db.AsyncSessionDB, conversation_id: str, error: Exception, warn: Callable[[str], None]
) -> types.Snapshot:
    """Begin a turn that could get no lease from a bare snapshot; raises `error` if the lock did not fail."""
    if not leases.is_lock_failure(error):
        raise error
    snapshot = await db.snapshot(conversation_id)
    if warning := db.lease_failures.report(error):
        warn(warning)
    return snapshot


async def _beat(db: async_db.AsyncSessionDB, turn: Turn, lease: types.Lease) -> None:
    """Renew every third of the lease's time. Only a lost lease stops the turn: a store that is busy or full
    for a moment does not, and if it stays so, the lease runs out and the appends are refused. If the lock subsystem
    fails, the turn continues without the lease."""
    while turn.fenced:
        try:
            await db.renew_lease(lease)
            turn.hindrance = None
        except errors.LeaseLost:
            if turn.fenced:
                turn.lost = True
                turn.when_lost()
            return
        except Exception as error:  # noqa: BLE001 -- only a lost lease stops the turn
            db.lease_failures.report(error)
            turn.hindrance = error if isinstance(error, errors.StoreError) else None
            turn.fenced = not leases.is_lock_failure(error)
        await asyncio.sleep(lease.ttl / 3)


async def release(db: async_db.AsyncSessionDB, lease: types.Lease) -> None:
    """Release the lease, also while the turn is being cancelled. A lease that cannot be released expires."""

    async def work() -> None:
        try:
            await db.release_lease(lease)
        except Exception as error:  # noqa: BLE001 -- it changes no outcome
            db.lease_failures.abandon(lease, error)

    task = asyncio.ensure_future(work())
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise
