"""A lease that is held during a block: renewed in the background and released at the end.

If leases are unavailable, the block runs without one: turns of two processes may then interleave, and compactions are
compared by head and epoch only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from holdfast import errors, types
from holdfast.store import async_db, leases


class HeldLease:
    """A lease and its snapshot, or a snapshot alone if leases are unavailable."""

    def __init__(self, db: async_db.AsyncSessionDB, began: types.Lease | types.Snapshot) -> None:
        self.db = db
        self.lease = began if isinstance(began, types.Lease) else None
        """The lease that writes carry; None if leases are unavailable."""
        self.snapshot = began.snapshot if isinstance(began, types.Lease) else began
        self.lost = False
        self.renewal_error: errors.StoreError | None = None
        """Why the last renewal failed: then the lease expired and was not taken over."""
        self.on_lost: Callable[[], object] = lambda: None

    async def renew(self) -> None:
        """Renew the lease every third of its TTL.

        Only a lost lease stops the work. If the store is busy or full for too long, the lease expires and writes are
        refused. If leases become unavailable, the work continues without one.
        """
        while (lease := self.lease) is not None:
            try:
                await self.db.renew_lease(lease)
                self.renewal_error = None
            except errors.LeaseLost:
                if self.lease is not None:
                    self.lost = True
                    self.on_lost()
                return
            except Exception as error:  # noqa: BLE001 -- only a lost lease stops the work
                self.db.lease_failures.report(error)
                self.renewal_error = error if isinstance(error, errors.StoreError) else None
                if leases.is_lock_failure(error):
                    self.lease = None
            await asyncio.sleep(lease.ttl / 3)


@asynccontextmanager
async def hold(db: async_db.AsyncSessionDB, began: types.Lease | types.Snapshot) -> AsyncIterator[HeldLease]:
    """Renew a lease that was just acquired during the block, then release it; a snapshot stands for no lease."""
    held = HeldLease(db, began)
    lease, renewals = held.lease, list[asyncio.Task[None]]()
    if lease is None:
        yield held
        return
    # Most turns end before the first renewal and need no task for it.
    first = asyncio.get_running_loop().call_later(
        lease.ttl / 3, lambda: renewals.append(asyncio.create_task(held.renew()))
    )
    try:
        yield held
    finally:
        first.cancel()
        for renewal in renewals:
            renewal.cancel()
        await release(db, lease)


async def release(db: async_db.AsyncSessionDB, lease: types.Lease | types.Snapshot) -> None:
    """Release the lease, even while the task is being cancelled. A lease that cannot be released expires."""
    if isinstance(lease, types.Snapshot):
        return

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
