"""Prune conversations by age or size into an archive, and scrub removed text from the files.

Nothing is removed automatically: the caller makes a plan, reviews it and carries it out. The archive is an export that
was imported into another store and exported again with the same bytes.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

from holdfast import errors, reports, types
from holdfast.store import conversation_row, deletion, fault_points, upkeep, validation
from holdfast.store.backup import atomic_file
from holdfast.store.blobs import blobs
from holdfast.store.blobs import files as blob_files
from holdfast.store.driver import Driver, Progress, Tx
from holdfast.store.search import search
from holdfast.store.sqlite import paths as sqlite_paths
from holdfast.store.transfer import export, import_
from holdfast.store.transfer import format as transfer_format


class Retention(export.Exports):
    """The methods of `db.admin` that remove conversations and scrub files."""

    searcher: search.Searcher

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
        _check_criteria(older_than_days, max_bytes, owner, source)
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
        path = _archive_path(self.driver, archive)
        if not plan.going:
            return reports.PruneReport(None, (), (), 0)
        if os.path.lexists(path):
            raise errors.CopyRefused(f"{errors.shown(path, 250)} exists. Name a new file for the archive.")
        archived = _archive(self, path, [going.conversation_id for going in plan.going], progress)
        now = self._clock()
        removed = self.driver.write("prune", lambda tx: _remove(tx, plan.going, archived, now))
        for key in removed.values():
            self.searcher.forget(key)
        sizes = {going.conversation_id: going.bytes for going in plan.going}
        kept = tuple(name for name in sizes if name not in removed)
        return reports.PruneReport(
            path, tuple(removed), kept, sum(sizes[name] for name in removed), archived.lost_blobs
        )

    def scrub(self, *, files: bool = True) -> types.Collected:
        """Remove the bytes of everything that was deleted or redacted before this call from all files of the store.

        SQLite: other processes can read, and wait to write while the database is read once. PostgreSQL: tables are
        rewritten one by one, other processes wait for each, and only the owner of the tables may do it. Raises
        StoreBusy when a reader was in the way: call it again. Without `files`, only attachments and words in the
        search index are removed, which blocks no process. Backups, archives and exports are not changed.
        """
        validation.check(validation.OptionalFlag, files=files)
        with atomic_file.translate_errors(self._blob_files.folder):
            collected = blobs.collect(self.driver, self._blob_files, float("-inf"), float("-inf"))
        self._sweep()
        self.searcher.purge(files)
        if files:
            self.driver.scrub()
        return collected

    def _sweep(self) -> None:
        """Remove the temporary files that dead processes left in the folder of the store."""
        if self.driver.has_file:
            folder = os.path.dirname(self.driver.path)
            with atomic_file.translate_errors(folder):
                atomic_file.remove_abandoned(folder)

    def shrink(self) -> None:
        """Return the space of removed data to the disk.

        The database is rewritten, which needs as much space again; other processes wait to write.
        """
        self.driver.shrink()


# --- the plan ------------------------------------------------------------------------------------------


def _check_criteria(days: object, max_bytes: object, owner: object, source: object) -> None:
    if days is None and max_bytes is None:
        raise errors.InvalidArgument("Give `older_than_days`, `max_bytes` or both.")
    validation.check(validation.OptionalDuration, older_than_days=days)
    validation.check(validation.OptionalNumber, max_bytes=max_bytes)
    validation.check_filters(owner=owner, source=source)


def _plan(tx: Tx, before: float, max_bytes: int | None, owner: str | None, source: str | None) -> reports.PrunePlan:
    rows = tx.all("prune_candidates", owner=owner, source=source)
    left = total = sum(row[4] for row in rows)
    going: list[reports.Prunable] = []
    needed: list[reports.Prunable] = []
    for _, id_, title, messages, size, active_at, routed, read in rows:
        if active_at >= before and (max_bytes is None or left <= max_bytes):
            continue
        reason = _reason(tx, id_, routed, read)
        found = reports.Prunable(id_, title, messages, size, active_at, reason)
        (needed if reason else going).append(found)
        left -= 0 if reason else size
    return reports.PrunePlan(tuple(going), tuple(needed), total)


def _reason(tx: Tx, conversation_id: str, routed: int, read: int) -> str | None:
    if upkeep.leased(tx, conversation_id):
        return "a process works on it"
    if routed:
        return "a route is bound to it"
    if upkeep.awaited(tx, conversation_id):
        return "it has open messages or running processes"
    return "a branch reads from it" if read else None


def _remove(tx: Tx, going: Sequence[reports.Prunable], archived: _Archived, now: float) -> dict[str, int]:
    """Remove the conversations that are unchanged since the archive and still not needed; return their keys."""
    removed: dict[str, int] = {}
    conversation_row.lock_all(tx, (each.conversation_id for each in going))
    for name in (each.conversation_id for each in going):
        try:
            here = conversation_row.lock(tx, name)
        except errors.NoSuchSession:
            continue
        routed, read = tx.one("prune_needed", conversation=here.key) or (1, 1)
        if archived.whole.get(name) == (here.epoch, here.last_seq) and _reason(tx, name, routed, read) is None:
            removed[name] = deletion.delete(tx, name, now)
    return removed


# --- the archive ---------------------------------------------------------------------------------------


class _VerificationStore(export.Exports, import_.Imports):
    """The store that an archive is verified in."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver, time.time, blobs.Blobs(driver, time.time))


# Most lines are messages, which need not be decoded.
_DECODED_KINDS = (b'"kind":"conversation"', b'"kind":"blob"')


class _Archived(NamedTuple):
    """The epoch and last seq of each conversation that is complete in an archive, and the attachments it lacks."""

    whole: dict[str, tuple[int, int]]
    lost_blobs: tuple[str, ...]


def _archive_path(driver: Driver, archive: object) -> str:
    path = os.path.abspath(validation.check_path(archive, "archive"))
    if driver.has_file:
        sqlite_paths.refuse_own(driver.path, os.path.realpath(path))
    return path


def _archive(store: Retention, path: str, names: list[str], progress: Progress | None) -> _Archived:
    """Write an archive and its attachments, and verify it."""
    with atomic_file.replace(path, "prune") as temp:
        with atomic_file.translate_errors(path), open(temp, "w", encoding="utf-8", newline="\n") as file:
            wanted = store.export_to(file, names, progress=progress).blobs
        fault_points.reach("prune", "exported")
        with atomic_file.translate_errors(path):
            _verify(store.driver, path, temp)
        fault_points.reach("prune", "verified")
        lost = blobs.copy_contents(blobs.files_next_to(path), store._blob_files, wanted)
        # A missing attachment was lost before; a damaged one may still be of use, so its conversation is kept.
        damaged = {digest for digest in lost if store._blob_files.state(digest) == "damaged"}
        with atomic_file.translate_errors(path):
            return _Archived(_whole(temp, damaged), lost)


def _whole(temp: str, damaged: set[str]) -> dict[str, tuple[int, int]]:
    """Find the conversations of an archive that refer to no damaged attachment."""
    found: dict[str, tuple[int, int]] = {}
    name = ""
    with open(temp, "rb") as file:
        for data in file:
            line = transfer_format.decode(data) if any(kind in data for kind in _DECODED_KINDS) else None
            if isinstance(line, transfer_format.Conversation):
                name, found[line.id] = line.id, (line.epoch, line.last_seq)
            elif isinstance(line, transfer_format.Blob) and line.digest in damaged:
                found.pop(name, None)
    return found


def _verify(driver: Driver, path: str, temp: str) -> None:
    """Import the archive into another store and export that. Raises CopyDamaged unless the bytes are equal."""
    with atomic_file.temporary_file(path) as scratch, contextlib.closing(driver.open_store(scratch)) as other:
        with open(temp, "rb") as file:
            report = _VerificationStore(other).import_from(file)
        written, again = blake2b(digest_size=16), blake2b(digest_size=16)
        with open(temp, "rb") as file:
            for part in iter(lambda: file.read(blob_files.CHUNK), b""):
                written.update(part)
        _VerificationStore(other).export_to(lambda text: again.update(text.encode()))
        bad = [str(outcome.error) for outcome in report.outcomes if not outcome.ok]
        if bad or written.digest() != again.digest():
            raise errors.CopyDamaged(path, bad or ["its import exports other bytes"])
