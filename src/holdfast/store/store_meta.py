"""What a store notes about itself, in `meta`. Nobody else may write these, and most are not true of a copy."""

from __future__ import annotations

from holdfast.store import deletion, generation, profiles
from holdfast.store.backup import schedule as backup_schedule
from holdfast.store.records import memory

# When the store was made.
MADE = "created_at"
# When a backup was made, in the backup.
BACKUP = "backup_at"
# Of which store, and which generation of it, this one is a copy; and when that was finished.
COPY_OF, COPIED_AT = "copy_of", "copied_at"
# What was declared when its tables were made begins like this.
SCHEMA = "schema_"

OWN = {MADE, generation.KEY, BACKUP, COPY_OF, COPIED_AT, *backup_schedule.META, *deletion.META}
LASTING = {"upkeep_done_at", memory.FORGOTTEN, profiles.KEY}
RESERVED = OWN | LASTING | {SCHEMA + name for name in ("format", "revision", "server", "shape", "cookie")}


def goes_over(key: str) -> bool:
    """Whether a note is as true of a copy."""
    return key not in OWN and not key.startswith(SCHEMA)
