"""The turn lease: one turn at a time per conversation, across all processes and hosts.

A turn holds the `turn` lease from its first to its last message, and every append carries it: a process that lost the
lease cannot write, even if it has not noticed. If leases are unavailable, the turn runs without one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager

from holdfast import errors, types
from holdfast.store import async_db, held_lease, leases

RUNNING = "A turn of this conversation is running elsewhere ({}). Wait for it to end, or stop it there."
MIN_POLL_SECONDS, MAX_POLL_SECONDS = 0.02, 0.25


async def append(held: held_lease.HeldLease, message: types.NewMessage) -> types.Receipt:
    """Append a message under the lease. Raises LeaseLost if another process took over."""
    conversation_id = held.snapshot.conversation_id
    if held.lease is not None:
        try:
            return (await held.db.append_messages(conversation_id, [message], lease=held.lease))[0]
        except errors.LeasesUnavailable as error:
            held.db.lease_failures.report(error)
            held.lease = None
        except errors.LeaseLost as error:
            raise held.renewal_error or error from error
    return (await held.db.append_messages(conversation_id, [message]))[0]


@asynccontextmanager
async def begin(
    db: async_db.AsyncSessionDB,
    conversation_id: str,
    *,
    wait_seconds: float,
    ttl: float = leases.LEASE_TTL,
    on_wait: Callable[[str], None] = lambda _: None,
    is_cancelled: Callable[[], bool] = lambda: False,
    warn: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[held_lease.HeldLease]:
    """Hold the turn lease during the block. Raises Busy if another turn holds it for longer than `wait_seconds`.

    `on_wait` is called once with the holder. Busy is raised at once when `is_cancelled` returns True. `warn` is called
    if the turn runs without a lease, once per store.
    """
    loop = asyncio.get_running_loop()
    deadline, pause = loop.time() + wait_seconds, MIN_POLL_SECONDS
    released: async_db.HintWaiter | None = None
    began: types.Lease | types.Snapshot | None = None
    with ExitStack() as stack:
        while began is None:
            try:
                taking = db.acquire_lease(conversation_id, "turn", None, ttl)
                began = await async_db.await_or_release(taking, lambda lease: held_lease.release(db, lease))
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
                began = await without_lease(db, conversation_id, error, warn)
    async with held_lease.hold(db, began) as held:
        yield held


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
