"""What PostgreSQL refuses: as errors of ours, and whether to try again.

Other writers work at the same time. A step that looked at something and was overtaken is refused by a constraint,
or as part of a deadlock; run again it finds what there is now, and says so in its own words.
"""

from __future__ import annotations

import random
import time

from holdfast import errors
from holdfast.store.postgres import dsn

_TYPED: tuple[tuple[str, type[errors.StoreError]], ...] = (
    ("40", errors.StoreBusy),  # a deadlock, or what cannot be put in an order
    ("55P03", errors.StoreBusy),  # the lock took too long
    ("55006", errors.StoreBusy),
    ("57014", errors.StoreBusy),  # the statement took too long
    ("57", errors.StoreUnreachable),  # the server is going or coming
    ("25P03", errors.StoreUnreachable),  # stood still in the middle of a transaction
    ("25P04", errors.StoreUnreachable),  # one that took longer than somebody allows
    ("08", errors.StoreUnreachable),
    ("53100", errors.StoreFull),
    ("53", errors.StoreBusy),
    ("54", errors.StoreFull),
    ("23", errors.StoreRefused),
    ("P0001", errors.StoreRefused),  # a trigger
    ("22P05", errors.StoreRefused),
    ("22", errors.StoreRefused),
    ("XX001", errors.StoreCorrupt),
    ("XX002", errors.StoreCorrupt),
    ("XX", errors.StoreBroken),  # most often somebody changes the schema at this moment
    ("58", errors.StoreCorrupt),
    ("25006", errors.StoreUnusable),  # a standby
    ("42501", errors.StoreUnusable),
    ("26000", errors.StoreUnusable),  # what was prepared on this connection is not there, or somebody else's
    ("42P05", errors.StoreUnusable),
    ("28", errors.StoreUnusable),
    ("3D", errors.StoreUnusable),
    ("3F", errors.StoreUnusable),
    ("42", errors.StoreBroken),
    ("0A", errors.StoreBroken),
)
# Another writer may be why: what is unique or referred to, locks in a circle, and a schema that is being changed.
_OVERTAKEN = ("23505", "23503", "40001", "40P01", "0A000", "XX000")
# What this connection will say again and another may not: it has prepared statements of an older schema, or is one
# to a server that takes no writes.
_SPENT = ("0A000", "XX000", "25006")
# Of one that could not be made, by a word of the server.
_NOT_LET_IN = "08004"
_READ_ONLY = "The database takes no writes (it is a standby, or set so); give the address of its primary"

_SHARED = (
    "A pooler gives this connection to others between two transactions; set its pool_mode = session, or give the "
    "address of the server itself"
)
_WORDS = {"25006": _READ_ONLY, "26000": _SHARED, "42P05": _SHARED}


def typed(state: str, told: str, where: str) -> errors.StoreError:
    """An error of ours for one of PostgreSQL's, by its code, which it stays known by."""
    ours = next((ours for code, ours in _TYPED if state.startswith(code)), errors.StoreError)
    told = _WORDS.get(state, told)
    if ours is errors.StoreUnreachable:
        error: errors.StoreError = errors.StoreUnreachable(where, told)
    else:
        error = ours(f"{(ours.__doc__ or '').strip()} ({told})")
    error.sqlstate = state
    return error


def unreached(where: str, text: str) -> errors.StoreError:
    """What a connection that could not be made, or was lost, is to us."""
    why, soon, remedy = dsn.said(text)
    if soon:
        return errors.StoreUnreachable(where, why)
    if remedy:
        return errors.StoreUnusable(f"No connection to PostgreSQL at {where}: {why.rstrip('.')}. {remedy}")
    error = errors.StoreUnusable(f"PostgreSQL at {where} does not let us in: {why}.")
    error.sqlstate = _NOT_LET_IN
    return error


def spent(error: errors.StoreError) -> bool:
    """Whether the connection it came over is better closed."""
    return error.sqlstate in _SPENT


def waited(error: errors.StoreError) -> bool:
    """Whether it is about a lock that could not be had in time."""
    return error.sqlstate == "55P03"


def another_way(error: errors.StoreError) -> bool:
    """Whether a step that was tried in one statement is to be run as a whole, which meets what hindered it."""
    known = (errors.StoreRefused, errors.StoreUnreachable, errors.StoreUnusable, errors.StoreBroken)
    # One that is of no kind never got to the server: some values are not to be had in one list.
    return isinstance(error, known) or type(error) is errors.StoreError or error.sqlstate in _OVERTAKEN


class Patience:
    """How often, and for how long, a step is run again. A store that was open is waited for, whoever refuses it now;
    `writable`: one that took writes is waited for until it does again."""

    def __init__(self, seconds: float, attempts: int, *, writable: bool = True) -> None:
        self._away = (_NOT_LET_IN, "25006") if writable else (_NOT_LET_IN,)
        self._until = time.monotonic() + seconds
        self._left = attempts
        self._refused = False
        self._lost: errors.StoreUnreachable | None = None
        self._pause = 0.01

    def spend(self, error: errors.StoreError) -> None:
        """Returns when the step may be run again; else raises the error."""
        state = error.sqlstate
        if isinstance(error, errors.StoreUnreachable) or state in self._away:
            self._wait(error)
        elif state in _OVERTAKEN and self._left > 0:
            self._left -= 1
            # Two that got into each other's way twice should not meet a third time.
            time.sleep(random.uniform(0, 0.002))
        elif isinstance(error, errors.StoreRefused) and state and not self._refused:
            # A limit that another writer reached first is told by the step itself, when it looks again.
            self._refused = True
        elif self._lost is not None and isinstance(error, errors.StoreBusy | errors.StoreFull):
            # They say that nothing was written, and an earlier attempt may have been committed.
            raise self._lost
        else:
            raise error

    def _wait(self, error: errors.StoreError) -> None:
        if isinstance(error, errors.StoreUnreachable):
            self._lost = error
        if time.monotonic() + self._pause > self._until:
            raise error
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, 0.5)
