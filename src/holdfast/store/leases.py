"""Leases: the right to do slow work on a conversation.

A lease is a row with a token. All leases of a conversation get their tokens from one counter, so that a newer token is
always larger and writes by an earlier holder are detected. A lease only saves work: the commit compares head and epoch
in any case.

A clock decides when another process may take over, and never whether a commit is valid. On Linux, leases use
CLOCK_BOOTTIME, which counts during suspend and cannot be set, and record the boot id: a lease from another boot has
expired. Elsewhere, and with a clock given by the caller, they use Unix time; then the column `boot` is "unix".
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
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import blake2b
from typing import Literal, NamedTuple, TypeVar

import msgspec

from holdfast import errors, process_info, types
from holdfast.store import conversation_row, validation, write_step
from holdfast.store.conversation_row import ConversationRow
from holdfast.store.driver import Driver, LeaseClock, QueryCall, Tx

logger = logging.getLogger("holdfast.store")
T = TypeVar("T")

PURPOSES: tuple[types.Purpose, ...] = ("compact", "turn")
PURPOSE = validation.ArgumentType(types.Purpose)
NO_RIGHTS = "42501"
"""The SQLSTATE for a table without grants for this role, such as one that another role restored."""
LEASE_TTL = 30.0
LOCK_TTL = 300.0
# Holders whose leases could not be released; older ones are forgotten, as their leases expire.
MAX_ABANDONED = 1000
_counter = itertools.count()
acting_agent: ContextVar[str] = ContextVar("holdfast_agent", default="")
"""The agent that runs in this context; part of the default holder name."""


class LeaseFailures:
    """Failed leases of this process. Work continues without a lease, and each class of error is logged once."""

    def __init__(self) -> None:
        self._logged: set[str] = set()
        self.abandoned = deque[str](maxlen=MAX_ABANDONED)
        """The holders of leases that could not be released."""

    def report(self, error: Exception) -> str | None:
        """Log an error as a warning and return its text; None if an error of its class was logged before."""
        if not isinstance(error, errors.HoldfastError):
            error = errors.LeasesUnavailable(
                f"{errors.LeasesUnavailable.default_message} ({type(error).__name__}: {error})"
            )
        if type(error).__name__ in self._logged:
            return None
        self._logged.add(type(error).__name__)
        logger.warning("%s", error)
        return str(error)

    def abandon(self, lease: types.Lease, error: Exception) -> None:
        """Report a failed release, and let this process take the lease again before it expires."""
        self.abandoned.append(lease.holder)
        self.report(error)


class LeaseMixin:
    """The lease methods of SessionDB."""

    driver: Driver
    lease_failures: LeaseFailures

    @write_step.shareable
    def acquire_lease(
        self, session_id: str, purpose: types.Purpose, holder: str | None = None, ttl: float = LEASE_TTL
    ) -> write_step.WriteStep[types.Lease]:
        """Take a lease, with a snapshot of the conversation. Raises Busy if another holder has it.

        The same holder gets a new token, which voids its old one.
        """
        check_lease_arguments(purpose, holder, ttl)
        who, abandoned = current_holder(holder), self.lease_failures.abandoned
        # A lease with a generated holder name is not synced. A power loss ends its process, too, and the next holder
        # has another name, so that even the same token, issued a second time, is not mistaken for the lost one.
        return write_step.WriteStep(
            "acquire",
            lambda tx: acquire(tx, session_id, purpose, who, ttl, abandoned),
            durable=holder is not None,
        )

    def renew_lease(self, lease: types.Lease) -> None:
        """Extend the lease by its ttl. Raises LeaseLost if it is no longer held: then stop the work."""
        validation.check_type(types.Lease, lease, "lease")
        self.driver.write("renew", lambda tx: renew(tx, lease), durable=False)

    @write_step.shareable
    def release_lease(self, lease: types.Lease) -> write_step.WriteStep[bool]:
        """Free the lease if it is still held, and return whether it was."""
        validation.check_type(types.Lease, lease, "lease")
        return write_step.WriteStep("release", lambda tx: release(tx, lease), durable=False)

    def leases(self) -> list[types.LeaseHeld]:
        """Return every lease, and whether it is held, expired, or its holder dead."""
        return self.driver.read(list_all)

    def snapshot(self, session_id: str) -> types.Snapshot:
        """Return head, epoch and last seq of the conversation, for a compaction without a lease."""
        return self.driver.read(lambda tx: snapshot(conversation_row.read(tx, session_id)))

    def begin_compaction(
        self, session_id: str, holder: str | None = None, ttl: float = LEASE_TTL
    ) -> types.Lease | types.Snapshot:
        """Take a lease for a compaction, or return a snapshot if leases are unavailable. Raises Busy.

        Pass the result to commit_compaction, which compares head and epoch in both cases.
        """
        check_lease_arguments("compact", holder, ttl)
        try:
            return self.acquire_lease(session_id, "compact", holder, ttl)
        except errors.Busy:
            raise
        except Exception as error:  # noqa: BLE001 -- the lock saves work only; the commit decides
            found = self.snapshot(session_id)
            self.lease_failures.report(error)
            return found

    def try_acquire_compression_lock(self, session_id: str, holder: str, ttl_seconds: float = LOCK_TTL) -> bool:
        """Take the lock unless another holder has it, and return whether it was taken."""
        _check_lock(holder, ttl_seconds)

        def acquire_lock() -> bool:
            try:
                self.acquire_lease(session_id, "compact", holder, ttl_seconds)
            except errors.Busy:
                return False
            return True

        # A caller that is refused would never compact again; one that is let through still cannot fork.
        return self._fail_open(acquire_lock, True)

    def refresh_compression_lock(self, session_id: str, holder: str, ttl_seconds: float = LOCK_TTL) -> bool:
        """Extend the lock, and return whether this holder still had it."""
        _check_lock(holder, ttl_seconds)

        def step(tx: Tx) -> bool:
            lease = find_by_holder(tx, session_id, "compact", holder, ttl_seconds)
            if lease is not None:
                renew(tx, lease)
            return lease is not None

        try:
            return self._fail_open(lambda: self.driver.write("renew", step), True)
        except errors.LeaseLost:
            return False

    def release_compression_lock(self, session_id: str, holder: str) -> bool:
        """Free the lock if this holder has it, and return whether it did."""
        _check_lock(holder)

        def step(tx: Tx) -> bool:
            lease = find_by_holder(tx, session_id, "compact", holder, LOCK_TTL)
            return lease is not None and release(tx, lease)

        return self._fail_open(lambda: self.driver.write("release", step), False)

    def get_compression_lock_holder(self, session_id: str) -> str | None:
        """Return the holder of the lock; None if it is free or expired, or its process died."""
        return self._fail_open(lambda: self.driver.read(lambda tx: holder_name(tx, session_id, "compact")), None)

    def _fail_open(self, call: Callable[[], T], otherwise: T) -> T:
        """Return the result of a call; if the lock subsystem fails, log that once and return `otherwise`."""
        try:
            return call()
        except Exception as error:
            if not is_lock_failure(error):
                raise
            self.lease_failures.report(error)
            return otherwise


def is_lock_failure(error: Exception) -> bool:
    """Return whether the lock subsystem failed, rather than the whole store or the caller's arguments."""
    return isinstance(error, errors.LeasesUnavailable) or not isinstance(error, errors.HoldfastError)


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
        if (self.host, self.namespace) != (_host(), _identity()[1]):
            return False
        if os.path.isdir("/proc/self"):
            return process_info.start_ticks(self.pid) != self.started
        return not process_info.exists(self.pid)


def current_holder(name: str | None) -> Holder:
    """Describe this thread as a holder. The default name is host, pid, thread, agent and a nonce."""
    pid, namespace, started, seed = _identity()
    nonce, thread = f"{seed}{next(_counter):x}", threading.get_native_id()
    acting = re.sub(r"[^\w.#-]", "_", acting_agent.get(), flags=re.ASCII)[:60]
    name = name or f"{_process_name()}{thread}:{acting}:{nonce}"
    return Holder(name, _host(), namespace, pid, started, nonce, thread, acting)


def is_this_process(name: str) -> bool:
    """Return whether a generated holder name is one of this process."""
    return name.startswith(_process_name())


def _process_name() -> str:
    return f"{_host()}:{_identity()[0]}:"


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
    machine = (process_info.boot_id() or f"{uuid.getnode():x}", process_info.machine_id())
    return f"{socket.gethostname()}/{blake2b(' '.join(machine).encode(), digest_size=8).hexdigest()}"


@functools.cache
def _identity() -> tuple[int, str, str, str]:
    """Return pid, pid namespace, start time and nonce prefix of this process; computed once per process."""
    pid = os.getpid()
    return pid, _namespace(), process_info.start_ticks(pid), os.urandom(6).hex()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_identity.cache_clear)


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _check_lock(holder: str, ttl: float = LOCK_TTL) -> None:
    validation.check_id(holder, "holder")
    validation.check(validation.LeaseTtl, ttl=ttl)


class LeaseRow(NamedTuple):
    """A row of the table `leases`. Chat leases have the first four columns."""

    token: int
    holder: str
    expires: float
    boot: str
    snap_seq: int = 0
    acquired_at: float | None = None

    @property
    def decoded(self) -> Holder:
        return decode_holder(self.holder)

    def seconds_left(self, clock: LeaseClock) -> float:
        return clock.left(self.boot, self.expires)

    def state(self, clock: LeaseClock) -> Literal["held", "expired", "dead"]:
        if self.seconds_left(clock) <= 0:
            return "expired"
        return "dead" if self.decoded.is_dead() else "held"

    def describe(self, clock: LeaseClock, conversation_id: str, purpose: types.Purpose) -> types.LeaseHeld:
        holder = self.decoded
        return types.LeaseHeld(
            conversation_id=conversation_id,
            purpose=purpose,
            token=self.token,
            holder=holder.name,
            host=holder.host,
            pid=holder.pid,
            expires_in=max(0.0, self.seconds_left(clock)),
            state=self.state(clock),
            snap_seq=self.snap_seq,
            thread=holder.thread,
            agent=holder.agent,
            acquired_at=self.acquired_at,
        )


def check_lease_arguments(purpose: types.Purpose, holder: str | None, ttl: float) -> None:
    validation.check(PURPOSE, purpose=purpose)
    validation.check(validation.LeaseTtl, ttl=ttl)
    validation.check_optional_id(holder, "holder")


@contextmanager
def lease_table_errors() -> Iterator[None]:
    """Replace database errors of the block by LeasesUnavailable: callers then continue without a lease."""
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
    """Take a lease that is free or expired, is this holder's, or whose holder died. Raises Busy otherwise.

    A lease of a holder in `abandoned` can be taken, too: this process could not release it.
    """
    session_id = validation.check_id(session_id)
    with lease_table_errors():
        rows, held = tx.batch(
            ("lock_conversation", {"id": session_id}), ("lease_of_session", {"id": session_id, "purpose": purpose})
        )
    here = conversation_row.require(tx, session_id, next(iter(rows), None))
    with lease_table_errors():
        if held:
            refuse_if_held(tx.clock, LeaseRow(*held[0]), holder.name, abandoned)
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


def refuse_if_held(clock: LeaseClock, row: LeaseRow, name: str, abandoned: Collection[str] = ()) -> None:
    """Raise Busy if another holder has the lease."""
    holder, left = row.decoded, row.seconds_left(clock)
    if holder.name != name and left > 0 and not holder.is_dead() and holder.name not in abandoned:
        raise errors.Busy(holder.name, left)


def snapshot(here: ConversationRow) -> types.Snapshot:
    return types.Snapshot(here.id, here.head_id, here.epoch, here.last_seq)


def _read(tx: Tx, here: ConversationRow, purpose: types.Purpose) -> LeaseRow | None:
    with lease_table_errors():
        row = tx.one("lease_row", conversation=here.key, purpose=purpose)
    return LeaseRow(*row) if row is not None else None


def check_held(tx: Tx, here: ConversationRow, lease: types.Lease) -> None:
    """Raise LeaseLost unless the lease is held. The conversation is locked."""
    check_row(tx, here, lease, _read(tx, here, lease.purpose))


def check_row(tx: Tx, here: ConversationRow, lease: types.Lease, row: LeaseRow | None) -> None:
    """Raise LeaseLost unless this row has the token and the holder of the lease, and has not expired."""
    if lease.conversation_id != here.id:
        raise errors.LeaseLost("The lease belongs to another conversation.")
    with lease_table_errors():
        left = 0.0
        if row is not None and row.token == lease.token and row.decoded.name == lease.holder:
            left = row.seconds_left(tx.clock)
    if left <= 0:
        raise errors.LeaseLost()


def renew(tx: Tx, lease: types.Lease) -> None:
    here = conversation_row.lock(tx, lease.conversation_id)
    check_held(tx, here, lease)
    with lease_table_errors():
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
    with lease_table_errors():
        (released,) = tx.finish(_release(lease))
    return bool(released)


def _release(lease: types.Lease | types.LeaseHeld) -> QueryCall:
    values = {"conversation_id": lease.conversation_id, "purpose": lease.purpose, "token": lease.token}
    return "lease_release", values


def find_by_holder(tx: Tx, session_id: str, purpose: types.Purpose, holder: str, ttl: float) -> types.Lease | None:
    """Return the lease if a holder of this name has it; the compression-lock methods know no token."""
    here = conversation_row.lock(tx, session_id)
    row = _read(tx, here, purpose)
    if row is None or row.decoded.name != holder:
        return None
    return types.Lease(snapshot(here), purpose, row.token, holder, ttl)


def holder_name(tx: Tx, session_id: str, purpose: types.Purpose) -> str | None:
    """Return the name of the current holder; None if the lease is free or expired, or its holder died."""
    row = _read(tx, conversation_row.read(tx, session_id), purpose)
    return row.decoded.name if row is not None and row.state(tx.clock) == "held" else None


def turn_start_seq(tx: Tx, here: ConversationRow) -> int | None:
    """Return the last seq before the running turn; None if no turn runs or leases are unavailable."""
    try:
        row = _read(tx, here, "turn")
    except errors.LeasesUnavailable:
        return None
    return row.snap_seq if row is not None and row.state(tx.clock) == "held" else None


def list_all(tx: Tx) -> list[types.LeaseHeld]:
    with lease_table_errors():
        return [LeaseRow(*row).describe(tx.clock, id_, purpose) for id_, purpose, *row in tx.all("leases_all")]


def free_stale(tx: Tx) -> int:
    """Free every lease that expired or whose holder died, and return how many."""
    conversation_row.lock_all(tx, (lease.conversation_id for lease in list_all(tx) if lease.state != "held"))
    # Read again under the locks: a lease may have been taken or deleted in between.
    stale = [_release(lease) for lease in list_all(tx) if lease.state != "held"]
    with lease_table_errors():
        return sum(map(len, tx.batch(*stale)))
