"""Generations of a store: each restore or copy begins one, and nothing from an earlier one can match any more."""

from __future__ import annotations

import random

from holdfast.store.driver import Tx

KEY = "generation"


def leap(tx: Tx, generation: int) -> None:
    """Void all leases, and raise every counter that work in flight is compared by past all values used before.

    The generation counts restores and copies. Counters of generation n begin at n * 2^32 and grow by one at a
    time, so none of an earlier generation reaches there, whichever backup is restored after which, and even for
    conversations that were deleted or absent in between. The random part keeps two stores apart that were
    made from one, as when the first was lost.
    """
    counter = (generation << 32) + random.SystemRandom().getrandbits(31)
    tx.run("restore_leases")
    tx.run("restore_counters", counter=counter)
    tx.run("restore_routes", counter=counter)
    tx.run("restore_budgets", counter=counter)
    tx.run("restore_claims", counter=counter)
    tx.run("meta_set", key=KEY, value=str(generation))


def current(tx: Tx) -> int:
    """How often the store was restored or copied."""
    row = tx.one("meta_get", key=KEY)
    return int(row[0]) if row and str(row[0]).isdigit() else 0
