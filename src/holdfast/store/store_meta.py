"""What a store notes about itself, in `meta`. Nobody else may write these, and most are not true of a copy."""

from __future__ import annotations

import random
from urllib.parse import quote, unquote

from holdfast.store.driver import Tx

# When the store was made.
MADE = "created_at"
# Restores and copies: see `begin_generation`.
GENERATION = "generation"
# When a backup was made, in the backup.
BACKUP = "backup_at"
# Of which store, and which generation of it, this one is a copy; and when that was finished.
COPY_OF, COPIED_AT = "copy_of", "copied_at"
# Scheduled backups, and the id of the store that their names bear.
BACKUP_DONE, BACKUP_CLAIMED = "scheduled_backup_at", "scheduled_backup_claimed_at"
BACKUP_FAILED = "scheduled_backup_failed_at"
STORE_ID = "store_id"
SCRUBS, SCRUBBED_AT = "scrubs", "scrubbed_at"
UPKEEP_DONE = "upkeep_done_at"
# When a memory or mail was last forgotten.
FORGOTTEN = "forgotten_at"
# The profile of the gateways that work on the store.
PROFILE = "gateway_profile"
# What was declared when its tables were made begins like this.
SCHEMA = "schema_"

OWN = {
    *(MADE, GENERATION, BACKUP, COPY_OF, COPIED_AT, SCRUBS, SCRUBBED_AT),
    *(BACKUP_DONE, BACKUP_CLAIMED, BACKUP_FAILED, STORE_ID),
}
LASTING = {UPKEEP_DONE, FORGOTTEN, PROFILE}
RESERVED = OWN | LASTING | {SCHEMA + name for name in ("format", "revision", "server", "shape", "cookie")}


def goes_over(key: str) -> bool:
    """Whether a note is as true of a copy."""
    return key not in OWN and not key.startswith(SCHEMA)


def begin_generation(tx: Tx, number: int) -> None:
    """Void all leases, and raise every counter that work in flight is compared by past all values used before.

    The generation counts restores and copies. Counters of generation n begin at n * 2^32 and grow by one at a
    time, so none of an earlier generation reaches there, whichever backup is restored after which, and even for
    conversations that were deleted or absent in between. The random part keeps two stores apart that were
    made from one, as when the first was lost.
    """
    counter = (number << 32) + random.SystemRandom().getrandbits(31)
    tx.run("restore_leases")
    tx.run("restore_counters", counter=counter)
    tx.run("restore_routes", counter=counter)
    tx.run("restore_budgets", counter=counter)
    tx.run("restore_claims", counter=counter)
    tx.run("meta_set", key=GENERATION, value=str(number))


def generation(tx: Tx) -> int:
    """How often the store was restored or copied."""
    row = tx.one("meta_get", key=GENERATION)
    return int(row[0]) if row and str(row[0]).isdigit() else 0


def profile(tx: Tx) -> str | None:
    """The profile of this store; None: no gateway has worked on it yet."""
    row = tx.one("meta_get", key=PROFILE)
    return unquote(str(row[0])) if row else None


def keep_profile(tx: Tx, wanted: str) -> str:
    """The profile of this store, which is this one where it had none."""
    tx.one("lock_meta")
    found = profile(tx)
    if found is None:
        tx.run("meta_set", key=PROFILE, value=quote(wanted, safe=""))
    return wanted if found is None else found
