"""Leases: the right to do slow work on a conversation.

A lease is a row with a token from the conversation's one fence counter, whatever its purpose: a newer
token is always larger, so writes by an earlier holder are detected. A lease only saves work: the commit
decides what is written.

A clock decides when another process may take over, and never whether a commit is valid. On Linux, leases
use CLOCK_BOOTTIME, which counts during suspend and cannot be set, and record the boot id: a lease from
another boot has expired. Elsewhere, and with a clock given by the caller, they use Unix time. The column
`boot` tells which of the two an expiry refers to.
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
import re
import socket
import threading
import uuid
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import blake2b
from typing import Literal

import msgspec

from holdfast import alive, errors, types
from holdfast.store import conversation_row, validation, write_step
from holdfast.store.driver import Driver, LeaseClock, Row, Tx

logger = logging.getLogger("holdfast.store")

PURPOSES: tuple[types.Purpose, ...] = ("compact", "turn")
PURPOSE = validation.Kind(types.Purpose)
NO_RIGHTS = "42501"
"""PostgreSQL's code for a role without rights on a table: a table that another role restored has no grants."""
LEASE_TTL = 30.0
LOCK_TTL = 300.0
# Names of holders to remember whose leases could not be released; those leases expire anyway.
MAX_ABANDONED = 1000
_counted = itertools.count()
acting_agent: ContextVar[str] = ContextVar("holdfast_agent", default="")
"""The agent that runs in this context; part of the default holder name."""


class Leases:
    """The lease methods of SessionDB. Compactions and turns continue without a lease when leases fail."""

    driver: Driver

    def __init__(self) -> None:
        self._said: set[str] = set()
        self._abandoned = deque[str](maxlen=MAX_ABANDONED)

    @write_step.shareable
    def acquire_lease(
        self, session_id: str, purpose: types.Purpose, holder: str | None = None, ttl: float = LEASE_TTL
    ) -> write_step.WriteStep[types.Lease]:
        """Take the right to do slow work, with a snapshot of the conversation; raise Busy when another holder has it.

        The same holder gets a new token, which voids its old one.
        """
        check_terms(purpose, holder, ttl)
        who = this_process(holder)
        # Not synced unless the caller names the holder: a power loss also ends the holding process, writes under the
        # lease come later in the same log, and a token issued again after the loss has a holder with another name.
        named = holder is not None
        return write_step.WriteStep(
            "acquire", lambda tx: acquire(tx, session_id, purpose, who, ttl, self._abandoned), durable=named
        )

    def renew_lease(self, lease: types.Lease) -> None:
        """Extend the lease by its ttl; raise LeaseLost when it is no longer held: stop the work at once."""
        validation.check_type(types.Lease, lease, "lease")
        self.driver.write("renew", lambda tx: renew(tx, lease), durable=False)

    @write_step.shareable
    def release_lease(self, lease: types.Lease) -> write_step.WriteStep[bool]:
        """Free the lease if it is still held, and return whether it was."""
        validation.check_type(types.Lease, lease, "lease")
        return write_step.WriteStep("release", lambda tx: release(tx, lease), durable=False)

    def abandon_lease(self, lease: types.Lease, error: Exception) -> None:
        """Log a failed release once, and let this process take the lease again before it expires."""
        self._abandoned.append(lease.holder)
        self.warn_once(error)

    def leases(self) -> list[types.LeaseHeld]:
        """Return every lease, and whether it is held, expired, or its holder dead."""
        return self.driver.read(every)

    def snapshot(self, session_id: str) -> types.Snapshot:
        """Return head, epoch and last seq of the conversation, for a compaction without a lease."""
        return self.driver.read(lambda tx: snapshot(conversation_row.look(tx, session_id)))

    def begin_compaction(
        self, session_id: str, holder: str | None = None, ttl: float = LEASE_TTL
    ) -> types.Lease | types.Snapshot:
        """Take a lease for a compaction; if that fails other than by Busy, warn once and return a snapshot.

        Pass either to commit_compaction, which compares head and epoch in both cases.
        """
        check_terms("compact", holder, ttl)
        try:
            return self.acquire_lease(session_id, "compact", holder, ttl)
        except errors.Busy:
            raise
        except Exception as error:  # noqa: BLE001 -- the lock saves work only; the commit decides
            snapshot = self.snapshot(session_id)
            self.warn_once(error)
            return snapshot

    def try_acquire_compression_lock(self, session_id: str, holder: str, ttl_seconds: float = LOCK_TTL) -> bool:
        """Take the lock unless another holder has it, and return whether it was taken."""
        check_terms("compact", _name(holder), ttl_seconds)
        try:
            self.acquire_lease(session_id, "compact", holder, ttl_seconds)
        except errors.Busy:
            return False
        except Exception as error:  # noqa: BLE001 -- the lock saves work only; the commit decides
            # A caller that is refused would never compact again; one that is let through still cannot fork.
            self._fail_open(error)
        return True

    def refresh_compression_lock(self, session_id: str, holder: str, ttl_seconds: float = LOCK_TTL) -> bool:
        """Extend the lock, and return whether this holder still had it."""
        check_terms("compact", _name(holder), ttl_seconds)

        def step(tx: Tx) -> bool:
            lease = named(tx, session_id, "compact", holder, ttl_seconds)
            if lease is not None:
                renew(tx, lease)
            return lease is not None

        try:
            return self.driver.write("renew", step)
        except errors.LeaseLost:
            return False
        except Exception as error:  # noqa: BLE001 -- only a lost lease stops the work
            self._fail_open(error)
            return True

    def release_compression_lock(self, session_id: str, holder: str) -> bool:
        """Free the lock if this holder has it, and return whether it did."""
        check_terms("compact", _name(holder), LOCK_TTL)

        def step(tx: Tx) -> bool:
            lease = named(tx, session_id, "compact", holder, LOCK_TTL)
            return lease is not None and release(tx, lease)

        try:
            return self.driver.write("release", step)
        except Exception as error:  # noqa: BLE001 -- what is not released expires
            self._fail_open(error)
            return False

    def get_compression_lock_holder(self, session_id: str) -> str | None:
        """Return the holder of the lock; None when it is free or expired, or its process died."""
        try:
            return self.driver.read(lambda tx: holder_name(tx, session_id, "compact"))
        except Exception as error:  # noqa: BLE001 -- an unknown holder blocks no work
            self._fail_open(error)
            return None

    def _fail_open(self, error: Exception) -> None:
        """Log a failure of the lock subsystem once, and raise any other error."""
        if not is_lock_failure(error):
            raise error
        self.warn_once(error)

    def warn_once(self, error: Exception) -> str | None:
        """Log an error as a warning and return its text, once per class; None for repetitions."""
        if not isinstance(error, errors.HoldfastError):
            error = errors.LeasesUnavailable(
                f"{errors.LeasesUnavailable.default_message} ({type(error).__name__}: {error})"
            )
        if type(error).__name__ in self._said:
            return None
        self._said.add(type(error).__name__)
        logger.warning("%s", error)
        return str(error)


def is_lock_failure(error: Exception) -> bool:
    """Return whether the lock subsystem failed, rather than the whole store or the caller's arguments."""
    return isinstance(error, errors.LeasesUnavailable) or not isinstance(error, errors.HoldfastError)


def _name(holder: str) -> str:
    """Make a missing name invalid: a lock without a holder could not be released."""
    return "" if holder is None else holder


class Holder(msgspec.Struct, frozen=True):
    """The process, thread and agent that took a lease, and the name of the holder."""

    name: str
    host: str
    namespace: str
    pid: int
    started: str
    nonce: str
    thread: int = 0
    agent: str = ""

    def is_dead(self) -> bool:
        """Return whether the process has certainly ended; False if it is on another host or in another container."""
        if (self.host, self.namespace) != (_host(), _own()[1]):
            return False
        if os.path.isdir("/proc/self"):
            return alive.started(self.pid) != self.started
        return not alive.exists(self.pid)


def this_process(name: str | None) -> Holder:
    """Describe this thread as a holder. The default name is host, pid, thread, agent and a nonce."""
    pid, namespace, started, seed = _own()
    nonce, thread = f"{seed}{next(_counted):x}", threading.get_native_id()
    acting = re.sub(r"[^\w.#-]", "_", acting_agent.get(), flags=re.ASCII)[:60]
    name = name or f"{_process_name()}{thread}:{acting}:{nonce}"
    return Holder(name, _host(), namespace, pid, started, nonce, thread, acting)


def is_this_process(name: str) -> bool:
    """Return whether a generated holder name is one of this process."""
    return name.startswith(_process_name())


def _process_name() -> str:
    return f"{_host()}:{_own()[0]}:"


def encode_holder(holder: Holder) -> str:
    return msgspec.json.encode(holder).decode()


def decode_holder(text: str) -> Holder:
    """Decode a stored holder; text in another format becomes its name."""
    try:
        return msgspec.json.decode(text, type=Holder)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Holder(text[:100], "", "", 0, "", "")


@functools.cache
def _host() -> str:
    """Return a name for this boot of this machine that is unique even if host names are not.

    A boot id is random at every start. Without one, the address of the network card is used, or a random number if
    there is none: then no other process is recognised as dead.
    """
    machine = (alive.boot_id() or f"{uuid.getnode():x}", alive.machine_id())
    return f"{socket.gethostname()}/{blake2b(' '.join(machine).encode(), digest_size=8).hexdigest()}"


@functools.cache
def _own() -> tuple[int, str, str, str]:
    """Return pid, pid namespace, start time and nonce prefix of this process; computed once per process."""
    pid = os.getpid()
    return pid, _namespace(), alive.started(pid), os.urandom(6).hex()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_own.cache_clear)


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def check_terms(purpose: types.Purpose, holder: str | None, ttl: float) -> None:
    validation.check(PURPOSE, purpose=purpose)
    validation.check(validation.LeaseTtl, ttl=ttl)
    validation.check_optional_id(holder, "holder")


@contextmanager
def reachable() -> Iterator[None]:
    """Raise LeasesUnavailable for errors of the lease table, which the store can do without."""
    try:
        yield
    except (errors.StoreBroken, errors.StoreRefused, errors.StoreCorrupt) as error:
        raise errors.LeasesUnavailable() from error
    except errors.StoreUnusable as error:
        if error.sqlstate != NO_RIGHTS:
            raise
        raise errors.LeasesUnavailable() from error


def acquire(
    tx: Tx,
    session_id: str,
    purpose: types.Purpose,
    holder: Holder,
    ttl: float,
    abandoned: Collection[str] = (),
) -> types.Lease:
    """Take the lease if it is free, expired, its holder dead, or already this holder's; else Busy.

    abandoned: names of holders whose leases this process could not release, and may take.
    """
    asked = validation.check_id(session_id)
    with reachable():
        rows, held = tx.batch(
            ("lock_conversation", {"id": asked}), ("lease_of_session", {"id": asked, "purpose": purpose})
        )
    here = conversation_row.state(tx, asked, rows)
    with reachable():
        if held:
            _refuse_if_held(tx.clock, held[0], holder.name, abandoned)
        values = {
            "conversation": here.key,
            "purpose": purpose,
            "holder": encode_holder(holder),
            "expires": tx.clock.now + ttl,
            "boot": tx.clock.boot,
            "snap_seq": here.last_seq,
            "acquired_at": tx.clock.unix,
        }
        (fence, *_), _ = tx.finish(("fence_next", {"conversation": here.key}), ("lease_put", values))
    return types.Lease(snapshot(here), purpose, fence[0], holder.name, ttl)


def _refuse_if_held(clock: LeaseClock, row: Row, name: str, abandoned: Collection[str]) -> None:
    _, text, expires, boot, _ = row
    holder, left = decode_holder(text), clock.left(boot, expires)
    if holder.name != name and left > 0 and not holder.is_dead() and holder.name not in abandoned:
        raise errors.Busy(holder.name, left)


def snapshot(here: conversation_row.State) -> types.Snapshot:
    return types.Snapshot(here.id, here.head_id, here.epoch, here.last_seq)


def check_held(tx: Tx, here: conversation_row.State, lease: types.Lease) -> None:
    """Raise LeaseLost unless the lease is held. The conversation is locked."""
    with reachable():
        row = tx.one("lease_row", conversation=here.key, purpose=lease.purpose)
    check_row(tx, here, lease, row)


def check_row(tx: Tx, here: conversation_row.State, lease: types.Lease, row: Row | None) -> None:
    """Raise LeaseLost unless this row has the token and the holder of the lease, and has not expired."""
    if lease.conversation_id != here.id:
        raise errors.LeaseLost("The lease belongs to another conversation.")
    with reachable():
        left = 0.0
        if row is not None and row[0] == lease.token and decode_holder(row[1]).name == lease.holder:
            left = tx.clock.left(row[3], row[2])
    if left <= 0:
        raise errors.LeaseLost()


def renew(tx: Tx, lease: types.Lease) -> None:
    here = conversation_row.lock(tx, lease.conversation_id)
    check_held(tx, here, lease)
    with reachable():
        tx.run(
            "lease_extend",
            conversation=here.key,
            purpose=lease.purpose,
            token=lease.token,
            expires=tx.clock.now + lease.ttl,
            boot=tx.clock.boot,
        )


def release(tx: Tx, lease: types.Lease) -> bool:
    """Free the lease if its token is still valid, and return whether it was."""
    values = {"conversation_id": lease.conversation_id, "purpose": lease.purpose, "token": lease.token}
    with reachable():
        (released,) = tx.finish(("lease_release", values))
    return bool(released)


def free(tx: Tx, here: conversation_row.State, purpose: types.Purpose, token: int) -> bool:
    with reachable():
        return tx.run("lease_delete", conversation=here.key, purpose=purpose, token=token) == 1


def named(tx: Tx, session_id: str, purpose: types.Purpose, holder: str, ttl: float) -> types.Lease | None:
    """Return the lease with this holder's name, for callers that identify themselves by name only."""
    here = conversation_row.lock(tx, session_id)
    with reachable():
        row = tx.one("lease_row", conversation=here.key, purpose=purpose)
    if row is None or decode_holder(row[1]).name != holder:
        return None
    return types.Lease(snapshot(here), purpose, row[0], holder, ttl)


def holder_name(tx: Tx, session_id: str, purpose: types.Purpose) -> str | None:
    """Return the name of the current holder; None if the lease is free or expired, or its holder died."""
    here = conversation_row.look(tx, session_id)
    with reachable():
        row = tx.one("lease_row", conversation=here.key, purpose=purpose)
    if row is None:
        return None
    return decode_holder(row[1]).name if _state(tx.clock, row) == "held" else None


def turn_began(tx: Tx, here: conversation_row.State) -> int | None:
    """Return the last seq before the running turn; None when no turn runs or leases are unavailable."""
    try:
        with reachable():
            row = tx.one("lease_row", conversation=here.key, purpose="turn")
        return row[4] if row is not None and _state(tx.clock, row) == "held" else None
    except errors.LeasesUnavailable:
        return None


def every(tx: Tx) -> list[types.LeaseHeld]:
    with reachable():
        rows = tx.all("leases_all")
    return [_as_seen(tx.clock, row[0], row[1], row[2:]) for row in rows]


def free_stale(tx: Tx) -> int:
    """Free every lease that expired or whose holder died, and return how many."""
    conversation_row.lock_all(tx, (lease.conversation_id for lease in every(tx) if lease.state != "held"))
    # Read again under the locks: a lease may have been taken or deleted in between.
    stale = [lease for lease in every(tx) if lease.state != "held"]
    return sum(
        free(tx, conversation_row.lock(tx, lease.conversation_id), lease.purpose, lease.token) for lease in stale
    )


def _as_seen(clock: LeaseClock, conversation: str, purpose: types.Purpose, row: Row) -> types.LeaseHeld:
    token, text, expires, boot, snap_seq, acquired_at = row
    holder = decode_holder(text)
    return types.LeaseHeld(
        conversation_id=conversation,
        purpose=purpose,
        token=token,
        holder=holder.name,
        host=holder.host,
        pid=holder.pid,
        expires_in=max(0.0, clock.left(boot, expires)),
        state=_state(clock, row),
        snap_seq=snap_seq,
        thread=holder.thread,
        agent=holder.agent,
        acquired_at=acquired_at,
    )


def _state(clock: LeaseClock, row: Row) -> Literal["held", "expired", "dead"]:
    if clock.left(row[3], row[2]) <= 0:
        return "expired"
    return "dead" if decode_holder(row[1]).is_dead() else "held"
