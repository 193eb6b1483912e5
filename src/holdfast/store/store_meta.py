"""Keys of the table `meta` that the store itself uses. `set_meta` refuses them."""

from __future__ import annotations

import random
from urllib.parse import quote, unquote

from holdfast.store.driver import Tx

# When the store was created.
MADE = "created_at"
# The number of restores and copies: see `begin_generation`.
GENERATION = "generation"
# When a backup was made. Only the backup has it.
BACKUP = "backup_at"
# The store and generation that this store is a copy of, and when the copy was finished.
COPY_OF, COPIED_AT = "copy_of", "copied_at"
# Scheduled backups, and the store id in their file names.
BACKUP_DONE, BACKUP_CLAIMED = "scheduled_backup_at", "scheduled_backup_claimed_at"
BACKUP_FAILED = "scheduled_backup_failed_at"
STORE_ID = "store_id"
SCRUBBED_AT = "scrubbed_at"
UPKEEP_DONE = "upkeep_done_at"
# When a memory or mail was last deleted.
FORGOTTEN = "forgotten_at"
# The profile of the gateways that work on the store.
PROFILE = "gateway_profile"
# Prefix of the keys that describe the schema.
SCHEMA = "schema_"

NOT_COPIED = {
    *(MADE, GENERATION, BACKUP, COPY_OF, COPIED_AT, SCRUBBED_AT),
    *(BACKUP_DONE, BACKUP_CLAIMED, BACKUP_FAILED, STORE_ID),
}
LASTING = {UPKEEP_DONE, FORGOTTEN, PROFILE}
RESERVED = NOT_COPIED | LASTING | {SCHEMA + name for name in ("format", "revision", "server", "shape", "cookie")}


def is_copied(key: str) -> bool:
    """Return whether a copy of the store gets this key."""
    return key not in NOT_COPIED and not key.startswith(SCHEMA)


def begin_generation(tx: Tx, number: int) -> None:
    """Void all leases, and advance every fencing counter beyond all values used before.

    Counters of generation n begin at n * 2^32 plus a random number and grow by one at a time, so a counter of an
    earlier generation never reaches them, in whatever order backups are restored. The random number distinguishes two
    stores that were restored from the same backup.
    """
    counter = (number << 32) + random.SystemRandom().getrandbits(31)
    tx.run("restore_leases")
    tx.run("restore_counters", counter=counter)
    tx.run("restore_routes", counter=counter)
    tx.run("restore_budgets", counter=counter)
    tx.run("restore_claims", counter=counter)
    tx.run("meta_set", key=GENERATION, value=str(number))


def get_generation(tx: Tx) -> int:
    """Return how often the store was restored or copied."""
    row = tx.one("meta_get", key=GENERATION)
    return int(row[0]) if row and str(row[0]).isdigit() else 0


def get_profile(tx: Tx) -> str | None:
    """Return the gateway profile of this store; None if no gateway has used it."""
    row = tx.one("meta_get", key=PROFILE)
    return unquote(str(row[0])) if row else None


def get_or_set_profile(tx: Tx, wanted: str) -> str:
    """Return the gateway profile of this store, which is set to `wanted` if it has none."""
    tx.one("lock_meta")
    found = get_profile(tx)
    if found is None:
        tx.run("meta_set", key=PROFILE, value=quote(wanted, safe=""))
    return wanted if found is None else found
