"""Who holds a lease, whether that process still lives, and by which clock a lease runs out.

A clock only decides when another may take over; no commit ever rests on one. On Linux leases run on
CLOCK_BOOTTIME (it counts while the machine sleeps and nobody can set it) and name the boot they belong
to: a lease from another boot is over. Elsewhere, and wherever the caller gave a clock, they run on Unix
time; the column `boot` says which of the two an expiry is measured by.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextvars import ContextVar
from hashlib import blake2b

import msgspec

from holdfast import alive

UNIX = "unix"
_counted = itertools.count()
MACHINE_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)
agent: ContextVar[str] = ContextVar("holdfast_agent", default="")
"""The name of the agent that acts in this context; leases taken in it bear this name."""


class Timeline(msgspec.Struct, frozen=True):
    """What time it is for leases, and how to read an expiry written by either clock."""

    boot: str
    unix: float
    machine: float

    @property
    def now(self) -> float:
        return self.unix if self.boot == UNIX else self.machine

    def left(self, boot: str, expires: float) -> float:
        """Seconds until this expiry; zero or less means it has run out."""
        if boot == UNIX:
            return expires - self.unix
        return expires - self.machine if boot == alive.boot_id() else 0.0


def timeline(clock: Callable[[], float] | None) -> Timeline:
    unix = clock() if clock else time.time()
    machine = time.clock_gettime(MACHINE_CLOCK) if MACHINE_CLOCK is not None else 0.0
    by_unix = clock is not None or MACHINE_CLOCK is None or not alive.boot_id()
    return Timeline(UNIX if by_unix else alive.boot_id(), unix, machine)


class Holder(msgspec.Struct, frozen=True):
    """A process on a host, the thread and the agent that took the lease, and the name the holder goes by."""

    name: str
    host: str
    namespace: str
    pid: int
    started: str
    nonce: str
    thread: int = 0
    agent: str = ""

    def is_dead(self) -> bool:
        """Surely gone. A process this one cannot see (other host, other container) is never called dead."""
        if (self.host, self.namespace) != (_host(), _own()[1]):
            return False
        if os.path.isdir("/proc/self"):
            return alive.started(self.pid) != self.started
        return not alive.exists(self.pid)


def this_process(name: str | None) -> Holder:
    """The holder that this thread is now; without a name it goes by host, pid, thread, agent and a nonce."""
    pid, namespace, started, seed = _own()
    nonce, thread = f"{seed}{next(_counted):x}", threading.get_native_id()
    acting = re.sub(r"[^\w.#-]", "_", agent.get(), flags=re.ASCII)[:60]
    name = name or f"{_process_name()}{thread}:{acting}:{nonce}"
    return Holder(name, _host(), namespace, pid, started, nonce, thread, acting)


def is_this_process(name: str) -> bool:
    """Whether an unnamed holder, known by its generated name, is this process."""
    return name.startswith(_process_name())


def _process_name() -> str:
    return f"{_host()}:{_own()[0]}:"


def encode(holder: Holder) -> str:
    return msgspec.json.encode(holder).decode()


def decode(text: str) -> Holder:
    """A holder row as found; one written by something else still has to be readable."""
    try:
        return msgspec.json.decode(text, type=Holder)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Holder(text[:100], "", "", 0, "", "")


@functools.cache
def _host() -> str:
    """A name for this start of this machine that no other has, though many are called the same.

    A boot id is made of chance at every start. Where there is none, the address of the network card stands for the
    machine (or chance, if that has none: then nothing is ever known of another process).
    """
    told = (alive.boot_id() or f"{uuid.getnode():x}", alive.machine_id())
    return f"{socket.gethostname()}/{blake2b(' '.join(told).encode(), digest_size=8).hexdigest()}"


@functools.cache
def _own() -> tuple[int, str, str, str]:
    """The number of this process, where that counts, when it began, and what its nonces begin with: asked once in the
    life of a process."""
    pid = os.getpid()
    return pid, _namespace(), alive.started(pid), os.urandom(6).hex()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_own.cache_clear)


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
