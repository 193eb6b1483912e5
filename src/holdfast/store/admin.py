"""`db.admin`: checks, backups, export and import, removal and upkeep of a whole store."""

from __future__ import annotations

from typing import Any

from holdfast import errors, reports, types
from holdfast.store import deletion, fsck, leases, store_meta, validation
from holdfast.store.backup import backup as backups
from holdfast.store.backup import retention
from holdfast.store.blobs import blobs as attachments
from holdfast.store.driver import Progress, SchemaFault
from holdfast.store.transfer import copy as store_copy
from holdfast.store.transfer import export, import_


class Admin(backups.BackupAdmin, retention.RetentionAdmin, export.ExportAdmin, import_.ImportAdmin):
    """Methods for operators. They may read the whole store and take long."""

    # --- status --------------------------------------------------------------------------------------

    def info(self) -> dict[str, Any]:
        """Return engine, version, path, sizes and modes."""
        return self.driver.info()

    def status(self) -> dict[str, Any]:
        """Return `info` and the configuration and health of the database server or file; slower than `info`."""
        return self.driver.status()

    def count_messages(self) -> tuple[int, int]:
        """Count conversations and messages without reading the messages."""
        conversations, messages = self.driver.read(lambda tx: tx.one("store_counts")) or (0, 0)
        return conversations, messages

    def fsck(self, progress: Progress | None = None) -> types.Report:
        """Check every promise over the whole store, attachments too; it only reads."""
        report = fsck.check(self.driver, progress, schema=True)
        return attachments.check_contents(report, self.driver, self.blobs.files)

    def schema_faults(self) -> list[SchemaFault]:
        """Return the differences between the schema of the store and the declared one."""
        return self.driver.schema_faults()

    def repair_schema(self) -> None:
        """Create missing tables, and recreate triggers and indexes that differ from the declared schema."""
        self.driver.repair_schema()

    def allow_role(self, role: str) -> list[str]:
        """Let a role of the server use the store without changing its schema; return the statements that were run."""
        return self.driver.allow(role)

    # --- key-value pairs -----------------------------------------------------------------------------

    def get_meta(self, key: str) -> str | None:
        validation.check_id(key, "meta key")
        row = self.driver.read(lambda tx: tx.one("meta_get", key=key))
        return str(row[0]) if row else None

    def set_meta(self, key: str, value: str) -> None:
        """Set an application-defined value: ASCII text under a key that the store does not reserve."""
        validation.check_id(key, "meta key")
        if key in store_meta.RESERVED:
            raise errors.InvalidArgument(f"The meta key {key} is reserved for the store.", parameter="key")
        if not isinstance(value, str) or not value.isascii() or "\0" in value:
            raise errors.InvalidArgument("`value` must be ASCII text without NUL characters.", parameter="value")
        self.driver.write("meta", lambda tx: tx.run("meta_set", key=key, value=value))

    def get_or_set_profile(self, profile: str) -> str:
        """Return the gateway profile of the store, which is set to `profile` if the store has none."""
        found = self.driver.read(store_meta.get_profile)
        return found or self.driver.write("meta", lambda tx: store_meta.get_or_set_profile(tx, profile))

    # --- upkeep --------------------------------------------------------------------------------------

    def finalize_orphaned_sessions(self, older_than_days: float = 7) -> int:
        """End live continuations without a compaction (docs/concepts.md); return how many."""
        validation.check(validation.Duration, older_than_days=older_than_days)
        now = self._clock()
        return self.driver.write("upkeep", lambda tx: deletion.finalize_orphans(tx, older_than_days, now))

    def prune_empty_sessions(self) -> int:
        """Remove conversations that never had a message and that nothing refers to; return how many."""
        now = self._clock()
        return self.driver.write("upkeep", lambda tx: deletion.prune_empty(tx, now))

    def run_upkeep_once(self) -> dict[str, int]:
        """Run finalize_orphaned_sessions and prune_empty_sessions once per database; return the counts or {}."""
        if self.get_meta(store_meta.UPKEEP_DONE) is not None:
            return {}
        done = {
            "orphans_ended": self.finalize_orphaned_sessions(),
            "ghosts_removed": self.prune_empty_sessions(),
        }
        now = repr(self._clock())
        self.driver.write("meta", lambda tx: tx.run("meta_set", key=store_meta.UPKEEP_DONE, value=now))
        return done

    def free_stale_leases(self) -> int:
        """Free the leases that expired or whose holders died; return how many."""
        return self.driver.write("release", leases.free_stale)

    # --- removal -------------------------------------------------------------------------------------

    def unscrubbed_since(self) -> float | None:
        """Return when something was removed that is still in the files of the store, or None after a scrub."""
        return self.driver.read(deletion.unscrubbed_since)

    def titles_to_redact(self, session_id: str, seq: int) -> list[str]:
        """Return the titles that a redaction of this message would remove."""
        validation.check(validation.WholeNumber, seq=seq)
        return self.driver.read(lambda tx: deletion.find_derived_titles(tx, session_id, seq))

    # --- the search index ----------------------------------------------------------------------------

    def update_search_index(self, progress: Progress | None = None) -> int:
        """Index the messages that are not indexed yet, as the next search would; return how many."""
        return self.searcher.catch_up(progress)

    def rebuild_search_index(self, progress: Progress | None = None) -> int:
        """Discard the search index and build it again; return how many messages it has."""
        return self.searcher.rebuild(progress)

    def search_status(self) -> dict[str, Any]:
        """Return whether there is an index, how far behind the log it is, and what is wrong with it."""
        return self.searcher.info()

    # --- copies --------------------------------------------------------------------------------------

    def copy_to(self, target: Admin, progress: Progress | None = None) -> reports.CopyReport:
        """Copy everything into an empty store and verify it; `target` is the `admin` of that store.

        If the copy was interrupted, the same call begins again. Raises CopyRefused when the target holds other data,
        CopyUnfinished when the two differ.
        """
        return store_copy.copy(self.driver, self.blobs.files, target, progress)

    def is_unfinished_copy(self) -> bool:
        """Return whether this store is a copy that was begun and not finished."""
        return self.driver.read(store_copy.is_unfinished)
