"""The turn lease: one turn at a time per conversation, across all processes and hosts.

A turn holds the `turn` lease from its first to its last message, and every append carries it: a process that lost the
lease cannot write, even if it has not noticed. A background task renews the lease and cancels the turn when it is
lost. If leases are unavailable, the turn runs without one: turns of two processes may then interleave.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager

from holdfast import errors, types
from holdfast.store import async_db, leases

TTL_SECONDS = 30.0
RUNNING = "A turn of this conversation is running elsewhere ({}). Wait for it to end, or stop it there."
MIN_POLL_SECONDS, MAX_POLL_SECONDS = 0.02, 0.25


class HeldTurn:
    """The right to append the next messages of a conversation."""

    def __init__(self, db: async_db.AsyncSessionDB, began: types.Lease | types.Snapshot) -> None:
        self._db = db
        self.lease = began if isinstance(began, types.Lease) else None
        self.snapshot = began.snapshot if isinstance(began, types.Lease) else began
        self.fenced = self.lease is not None
        """Whether appends carry the lease."""
        self.lost = False
        self.renewal_error: errors.StoreError | None = None
        """Why the last renewal failed: then the lease expired and was not taken over."""
        self.on_lost: Callable[[], object] = lambda: None

    async def append(self, messages: Sequence[types.NewMessage]) -> list[types.Receipt]:
        """Append under the lease. Raises LeaseLost if another process took over."""
        if self.fenced:
            try:
                return await self._db.append_messages(self.snapshot.conversation_id, messages, lease=self.lease)
            except errors.LeasesUnavailable as error:
                self._db.lease_failures.report(error)
                self.fenced = False
            except errors.LeaseLost as error:
                raise self.renewal_error or error from error
        return await self._db.append_messages(self.snapshot.conversation_id, messages)


@asynccontextmanager
async def begin(
    db: async_db.AsyncSessionDB,
    conversation_id: str,
    *,
    wait_seconds: float,
    ttl: float = TTL_SECONDS,
    on_wait: Callable[[str], None] = lambda _: None,
    is_cancelled: Callable[[], bool] = lambda: False,
    warn: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[HeldTurn]:
    """Acquire the turn lease for the block. Raises Busy if another turn holds it for longer than `wait_seconds`.

    `on_wait` is called once with the holder. Busy is raised at once when `is_cancelled` returns True. `warn` is called
    if the turn runs without a lease, once per store.
    """
    async with hold(db, await _acquire(db, conversation_id, wait_seconds, ttl, on_wait, is_cancelled, warn)) as turn:
        yield turn


@asynccontextmanager
async def hold(db: async_db.AsyncSessionDB, began: types.Lease | types.Snapshot) -> AsyncIterator[HeldTurn]:
    """Renew the lease that was just acquired during the block, then release it; a snapshot is a turn without lease."""
    turn = HeldTurn(db, began)
    if turn.lease is None:
        yield turn
        return
    lease, renewals = turn.lease, list[asyncio.Task[None]]()
    # Most turns end before the first renewal and need no task for it.
    first = asyncio.get_running_loop().call_later(
        lease.ttl / 3, lambda: renewals.append(asyncio.create_task(_renew(db, turn, lease)))
    )
    try:
        yield turn
    finally:
        first.cancel()
        for renewal in renewals:
            renewal.cancel()
        await release(db, lease)


async def _acquire(
    db: async_db.AsyncSessionDB,
    conversation_id: str,
    wait_seconds: float,
    ttl: float,
    on_wait: Callable[[str], None],
    is_cancelled: Callable[[], bool],
    warn: Callable[[str], None],
) -> types.Lease | types.Snapshot:
    loop = asyncio.get_running_loop()
    deadline, pause = loop.time() + wait_seconds, MIN_POLL_SECONDS
    released: async_db.HintWaiter | None = None
    with ExitStack() as stack:
        while True:
            try:
                taking = db.acquire_lease(conversation_id, "turn", None, ttl)
                return await async_db.await_or_release(taking, lambda lease: release(db, lease))
            except errors.Busy as error:
                if loop.time() >= deadline or is_cancelled():
                    raise errors.Busy(error.holder, error.expires_in, RUNNING.format(error.holder)) from None
                if released is None:
                    known = (await db.snapshot(conversation_id)).conversation_id
                    released = stack.enter_context(db.notifications.expect(known, "freed"))
                    on_wait(error.holder)
                await released.wait(min(pause, max(error.expires_in, MIN_POLL_SECONDS)))
                pause = min(pause * 1.5, MAX_POLL_SECONDS)
            except Exception as error:  # noqa: BLE001 -- a failing lock never stops a turn
                return await without_lease(db, conversation_id, error, warn)


async def without_lease(
    db: async_db.AsyncSessionDB, conversation_id: str, error: Exception, warn: Callable[[str], None]
) -> types.Snapshot:
    """Return a snapshot to run a turn without a lease. Raises `error` if it is no failure of the lock subsystem."""
    if not leases.is_lock_failure(error):
        raise error
    snapshot = await db.snapshot(conversation_id)
    if warning := db.lease_failures.report(error):
        warn(warning)
    return snapshot


async def _renew(db: async_db.AsyncSessionDB, turn: HeldTurn, lease: types.Lease) -> None:
    """Renew the lease every third of its TTL.

    Only a lost lease stops the turn. If the store is busy or full for too long, the lease expires and appends are
    refused. If leases become unavailable, the turn continues without one.
    """
    while turn.fenced:
        try:
            await db.renew_lease(lease)
            turn.renewal_error = None
        except errors.LeaseLost:
            if turn.fenced:
                turn.lost = True
                turn.on_lost()
            return
        except Exception as error:  # noqa: BLE001 -- only a lost lease stops the turn
            db.lease_failures.report(error)
            turn.renewal_error = error if isinstance(error, errors.StoreError) else None
            turn.fenced = not leases.is_lock_failure(error)
        await asyncio.sleep(lease.ttl / 3)


async def release(db: async_db.AsyncSessionDB, lease: types.Lease) -> None:
    """Release the lease, even while the turn is being cancelled. A lease that cannot be released expires."""

    async def work() -> None:
        try:
            await db.release_lease(lease)
        except Exception as error:  # noqa: BLE001 -- an unreleased lease expires
            db.lease_failures.abandon(lease, error)

    task = asyncio.ensure_future(work())
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise
