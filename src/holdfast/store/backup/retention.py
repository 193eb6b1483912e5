"""Prune conversations by age or size into an archive, and scrub removed text from the files.

Nothing is removed automatically: the caller makes a plan, reviews it and carries it out. The archive is an export that
was imported into another store and exported again with the same bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Mapping, Sequence

import msgspec

from holdfast import errors, fault_points, reports, types
from holdfast.store import conversation_row, deletion, validation
from holdfast.store.backup import atomic_file
from holdfast.store.blobs import blobs
from holdfast.store.driver import Progress, Tx
from holdfast.store.search import search
from holdfast.store.sqlite import driver as sqlite_driver
from holdfast.store.sqlite import paths as sqlite_paths
from holdfast.store.transfer import export, import_, jsonl


class RetentionAdmin(export.ExportAdmin):
    """The methods of `db.admin` that remove conversations and scrub files."""

    def plan_prune(
        self,
        *,
        older_than_days: float | None = None,
        max_bytes: int | None = None,
        owner: str | None = None,
        source: str | None = None,
    ) -> reports.PrunePlan:
        """Plan which conversations to remove: those unused for this many days, then the longest unused ones until
        the text of the rest has at most `max_bytes`. Conversations with a lease, a route or a branch are kept.
        """
        if older_than_days is None and max_bytes is None:
            raise errors.InvalidArgument("Give `older_than_days`, `max_bytes` or both.")
        validation.check(validation.OptionalDuration, older_than_days=older_than_days)
        validation.check(validation.OptionalNumber, max_bytes=max_bytes)
        validation.check_filters(owner=owner, source=source)
        before = float("-inf") if older_than_days is None else self._clock() - older_than_days * 86_400
        return self.driver.read(lambda tx: _plan(tx, before, max_bytes, owner, source))

    def prune(
        self,
        plan: reports.PrunePlan,
        archive: str | os.PathLike[str],
        *,
        progress: Progress | None = None,
    ) -> reports.PruneReport:
        """Write the planned conversations to an archive, verify it, and remove them in one transaction.

        The archive is an export for `import_from`, with attachments in `<archive>.blobs`. Conversations that changed
        since it was written, or that refer to a damaged attachment, stay in the store.
        """
        if not isinstance(plan, reports.PrunePlan):
            raise errors.InvalidArgument("`plan` must be a plan made by plan_prune.")
        path = os.path.abspath(validation.check_path(archive, "archive"))
        if self.driver.has_file:
            sqlite_paths.check_not_own_file(self.driver.path, os.path.realpath(path))
        if not plan.going:
            return reports.PruneReport(None, (), (), 0)
        if os.path.lexists(path):
            raise errors.CopyRefused(f"{errors.quote(path, 250)} exists. Name a new file for the archive.")
        sizes = {going.conversation_id: going.bytes for going in plan.going}
        archived, lost = _archive(self, path, list(sizes), progress)
        now = self._clock()
        removed = self.driver.write("prune", lambda tx: _remove(tx, list(sizes), archived, now))
        for key in removed.values():
            self.searcher.remove(key)
        kept = tuple(name for name in sizes if name not in removed)
        return reports.PruneReport(path, tuple(removed), kept, sum(sizes[name] for name in removed), lost)

    def scrub(self, *, files: bool = True) -> types.Collected:
        """Remove the bytes of everything that was deleted or redacted before this call from all files of the store.

        SQLite: other processes can read, and wait to write while the database is rewritten, which needs as much space
        again. PostgreSQL: tables are rewritten one by one, other processes wait for each, and only the owner of the
        tables may do it. Raises StoreFull if there is too little space, and StoreBusy if a long read prevented it: call
        it again, which rewrites the database again. Without `files`, only attachments and words in the search index are
        removed, which blocks no process. Backups, archives and exports are not changed.
        """
        with atomic_file.translate_errors(self.blobs.files.folder):
            collected = blobs.collect(self.driver, self.blobs.files, float("-inf"), float("-inf"))
        if self.driver.has_file:
            folder = os.path.dirname(self.driver.path)
            with atomic_file.translate_errors(folder):
                atomic_file.remove_abandoned(folder)
        self.searcher.purge(files)
        if files:
            self.driver.scrub()
        return collected

    def shrink(self) -> None:
        """Return the space of removed data to the disk.

        The database is rewritten, which needs as much space again; other processes wait to write.
        """
        self.driver.shrink()


# --- the plan ------------------------------------------------------------------------------------------


def _plan(tx: Tx, before: float, max_bytes: int | None, owner: str | None, source: str | None) -> reports.PrunePlan:
    rows = tx.all("prune_candidates", owner=owner, source=source)
    left = total = sum(row[4] for row in rows)
    going: list[reports.Prunable] = []
    needed: list[reports.Prunable] = []
    for _, id_, title, messages, size, active_at, routed, read in rows:
        if active_at >= before and (max_bytes is None or left <= max_bytes):
            continue
        reason = _reason_to_keep(tx, id_, routed, read)
        found = reports.Prunable(id_, title, messages, size, active_at, reason)
        (needed if reason else going).append(found)
        left -= 0 if reason else size
    return reports.PrunePlan(tuple(going), tuple(needed), total)


def _reason_to_keep(tx: Tx, conversation_id: str, routed: int, read: int) -> str | None:
    if deletion.has_lease(tx, conversation_id):
        return "a process works on it"
    if routed:
        return "a route is bound to it"
    if deletion.has_pending_work(tx, conversation_id):
        return "it has open messages or running processes"
    return "a branch reads from it" if read else None


def _remove(tx: Tx, names: Sequence[str], archived: Mapping[str, jsonl.Line], now: float) -> dict[str, int]:
    """Remove the conversations that are unchanged since the archive and still not needed; return their keys."""
    removed: dict[str, int] = {}
    conversation_row.lock_all(tx, names)
    for name in names:
        try:
            here = conversation_row.lock(tx, name)
        except errors.NoSuchSession:
            if name in tx.retry_state:  # by an earlier attempt whose commit outcome is unknown
                removed[name] = deletion.delete(tx, name, now)
            continue
        routed, read = tx.one("prune_needed", conversation=here.key) or (1, 1)
        unchanged = archived.get(name) == next(map(_without_fence, export.read_lines(tx, here.key)))
        if unchanged and _reason_to_keep(tx, name, routed, read) is None:
            removed[name] = deletion.delete(tx, name, now)
    return removed


def _without_fence(line: jsonl.Line) -> jsonl.Line:
    """Return the line of a conversation without the counter that every lease advances."""
    return msgspec.structs.replace(line, fence=0) if isinstance(line, jsonl.ConversationLine) else line


# --- the archive ---------------------------------------------------------------------------------------


class _VerificationStore(export.ExportAdmin, import_.ImportAdmin):
    """The store that an archive is verified in."""


def _archive(
    store: RetentionAdmin, path: str, names: list[str], progress: Progress | None
) -> tuple[dict[str, jsonl.Line], tuple[str, ...]]:
    """Write an archive and its attachments, and verify it.

    Return the lines of the conversations that are complete in it, and the attachments that it lacks.
    """
    with atomic_file.replace(path, "prune") as temp, atomic_file.translate_errors(path):
        with open(temp, "w", encoding="utf-8", newline="\n") as file:
            wanted = store.export_to(file, names, progress=progress).blobs
        fault_points.reach("prune", "exported")
        _verify(path, temp)
        fault_points.reach("prune", "verified")
        lost = blobs.copy_contents(blobs.files_next_to(path), store.blobs.files, wanted)
        # A missing attachment was lost before; a damaged one may still be of use, so its conversation is kept.
        damaged = {digest for digest in lost if store.blobs.files.state(digest) == "damaged"}
        return _read_conversations(temp, damaged), lost


def _verify(path: str, temp: str) -> None:
    """Import the archive into another store and export that. Raises CopyDamaged unless the bytes are equal."""
    with atomic_file.temporary_file(path) as scratch, contextlib.closing(sqlite_driver.open_file(scratch)) as other:
        store = _VerificationStore(other, time.time, blobs.Blobs(other, time.time), search.Searcher(other))
        with open(temp, "rb") as file:
            report = store.import_from(file)
            file.seek(0)
            written = hashlib.file_digest(file, hashlib.blake2b).digest()
        again = hashlib.blake2b()
        store.export_to(lambda text: again.update(text.encode()))
        bad = [str(outcome.error) for outcome in report.outcomes if not outcome.ok]
        if bad or written != again.digest():
            raise errors.CopyDamaged(path, bad or ["exporting its import gives different bytes"])


def _read_conversations(temp: str, damaged: set[str]) -> dict[str, jsonl.Line]:
    """Return the lines of the conversations of an archive that refer to no damaged attachment, by id."""
    found: dict[str, jsonl.Line] = {}
    name = ""
    with open(temp, "rb") as file:
        for data in file:
            # Most lines are messages, which need not be decoded.
            line = jsonl.decode(data) if b'"kind":"conversation"' in data or b'"kind":"blob"' in data else None
            if isinstance(line, jsonl.ConversationLine):
                name, found[line.id] = line.id, _without_fence(line)
            elif isinstance(line, jsonl.BlobLine) and line.digest in damaged:
                found.pop(name, None)
    return found
