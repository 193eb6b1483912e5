"""The lease calls of SessionDB, and the same lease for callers that know locks by name.

A caller of the lock-named calls keeps no lease of its own; its name is all it has, so the name decides.
"""

from __future__ import annotations

import logging
from collections import deque

from holdfast import errors, types
from holdfast.store import conversation_row, holders, leases, write_step
from holdfast.store.driver import Driver, Tx

logger = logging.getLogger("holdfast.store")

LEASE_TTL = 30.0
LOCK_TTL = 300.0
# As many holders are remembered whose leases could not be released. Each of these leases expires anyway.
MAX_ABANDONED = 1000


class Leases:
    """The part of SessionDB that gives leases. However they fail, compactions and turns continue without."""

    driver: Driver

    def __init__(self) -> None:
        self._said: set[str] = set()
        self._abandoned = deque[str](maxlen=MAX_ABANDONED)

    def acquire_step(
        self, session_id: str, purpose: types.Purpose, holder: str | None = None, ttl: float = LEASE_TTL
    ) -> write_step.WriteStep[types.Lease]:
        """The right to do slow work, with the snapshot it begins from; Busy when another has it.

        The same holder asking again gets a new token, and its old one is dead.
        """
        leases.checked(purpose, holder, ttl)
        who = holders.this_process(holder)
        # Not synced: what is written under it comes later in the same log; with the power goes whoever held it, and
        # a server that forgot it gives its token to a holder of another name. Unless names are given, and given again.
        named = holder is not None
        return write_step.WriteStep(
            "acquire", lambda tx: leases.acquire(tx, session_id, purpose, who, ttl, self._abandoned), lasting=named
        )

    acquire_lease = write_step.as_method(acquire_step)

    def renew_lease(self, lease: types.Lease) -> None:
        """Start the lease's time anew; LeaseLost when it is not held any more: stop the work at once."""
        leases.checked_lease(lease)
        self.driver.write("renew", lambda tx: leases.renew(tx, lease), lasting=False)

    def release_step(self, lease: types.Lease) -> write_step.WriteStep[bool]:
        """Free the lease if it is still held; whether it was."""
        leases.checked_lease(lease)
        return write_step.WriteStep("release", lambda tx: leases.release(tx, lease), lasting=False)

    release_lease = write_step.as_method(release_step)

    def abandon_lease(self, lease: types.Lease, error: Exception) -> None:
        """After a release that failed: log it, once, and let this process take the lease again before it expires."""
        self._abandoned.append(lease.holder)
        self.warn_once(error)

    def leases(self) -> list[types.LeaseHeld]:
        """Every lease there is, and whether it is held, expired, or its holder dead."""
        return self.driver.read(leases.every)

    def free_stale_leases(self) -> int:
        """Free the leases that ran out or whose holders died; how many. Whoever asks next would do the same."""
        return self.driver.write("release", leases.free_stale)

    def snapshot(self, session_id: str) -> types.Snapshot:
        """Where the conversation stands, for a compaction without a lease."""
        return self.driver.read(lambda tx: leases.snapshot(conversation_row.look(tx, session_id)))

    def begin_compaction(
        self, session_id: str, holder: str | None = None, ttl: float = LEASE_TTL
    ) -> types.Lease | types.Snapshot:
        """Take a lease to compact by; if acquiring it fails in any way but Busy, a bare snapshot, and one warning.

        Either may be given to commit_compaction: head and epoch are compared all the same.
        """
        leases.checked("compact", holder, ttl)
        try:
            return self.acquire_lease(session_id, "compact", holder, ttl)
        except errors.Busy:
            raise
        except Exception as error:  # noqa: BLE001 -- the lock saves work only; the commit decides
            snapshot = self.snapshot(session_id)
            self.warn_once(error)
            return snapshot

    def try_acquire_compression_lock(self, session_id: str, holder: str, ttl_seconds: float = LOCK_TTL) -> bool:
        """Take the lock, if nobody else has it."""
        leases.checked("compact", _name(holder), ttl_seconds)
        try:
            self.acquire_lease(session_id, "compact", holder, ttl_seconds)
        except errors.Busy:
            return False
        except Exception as error:  # noqa: BLE001 -- the lock saves work only; the commit decides
            # Refused, such a caller would never compact again; let through, it still cannot fork.
            self._fail_open(error)
        return True

    def refresh_compression_lock(self, session_id: str, holder: str, ttl_seconds: float = LOCK_TTL) -> bool:
        """Start the lock's time anew; whether this holder still had it."""
        leases.checked("compact", _name(holder), ttl_seconds)

        def step(tx: Tx) -> bool:
            lease = leases.named(tx, session_id, "compact", holder, ttl_seconds)
            if lease is not None:
                leases.renew(tx, lease)
            return lease is not None

        try:
            return self.driver.write("renew", step)
        except errors.LeaseLost:
            return False
        except Exception as error:  # noqa: BLE001 -- only a lost lease stops the work
            self._fail_open(error)
            return True

    def release_compression_lock(self, session_id: str, holder: str) -> bool:
        """Free the lock if this holder has it; whether it had."""
        leases.checked("compact", _name(holder), LOCK_TTL)

        def step(tx: Tx) -> bool:
            lease = leases.named(tx, session_id, "compact", holder, LOCK_TTL)
            return lease is not None and leases.release(tx, lease)

        try:
            return self.driver.write("release", step)
        except Exception as error:  # noqa: BLE001 -- what is not released expires
            self._fail_open(error)
            return False

    def get_compression_lock_holder(self, session_id: str) -> str | None:
        """Who compacts this conversation now; nobody, when the lock ran out or its process died."""
        try:
            return self.driver.read(lambda tx: leases.holder_name(tx, session_id, "compact"))
        except Exception as error:  # noqa: BLE001 -- an unknown holder blocks no work
            self._fail_open(error)
            return None

    def _fail_open(self, error: Exception) -> None:
        """Log a failure of the lock subsystem, once; other errors are the caller's."""
        if not is_lock_failure(error):
            raise error
        self.warn_once(error)

    def warn_once(self, error: Exception) -> str | None:
        """Log a warning with its remedy, the first time only, and return it; an unexpected error is the lock's."""
        if not isinstance(error, errors.HoldfastError):
            error = errors.LeasesUnavailable(f"{errors.LeasesUnavailable()} ({type(error).__name__}: {error})")
        if type(error).__name__ in self._said:
            return None
        self._said.add(type(error).__name__)
        logger.warning("%s", error)
        return str(error)


def is_lock_failure(error: Exception) -> bool:
    """Whether the lock subsystem failed, and not the store as a whole, nor the caller by its arguments."""
    return isinstance(error, errors.LeasesUnavailable) or not isinstance(error, errors.HoldfastError)


def _name(holder: str) -> str:
    """Without a name, nobody could ever give the lock back."""
    return "" if holder is None else holder
