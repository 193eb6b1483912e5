"""What may go by age or size, into an archive first; and making sure that what went is gone.

Nothing is ever removed by itself: somebody asks for a plan, looks at it, and has it carried out. The
archive is an export that was read back into another store and gave the same bytes again.
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


class Retention(blobs.Blobs):
    """The part of SessionDB that lets go of things."""

    searcher: search.Searcher

    def plan_prune(
        self,
        *,
        older_than_days: float | None = None,
        max_bytes: int | None = None,
        owner: str | None = None,
        source: str | None = None,
    ) -> reports.PrunePlan:
        """What would go: conversations unused for so many days, and then the longest unused ones until the
        text of the rest has at most max_bytes. What a lease, a route or a branch needs stays. Nothing is changed.
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
        """Write what the plan names to an archive, read that back, and remove it: all in one transaction.

        The archive is an export (`import_from` takes it), with attachments in `<archive>.blobs`. What changed
        since it was written stays in the store, and so does what names an attachment that is damaged.
        """
        if not isinstance(plan, reports.PrunePlan):
            raise errors.InvalidArgument("This takes a plan that plan_prune made.")
        path = _archive_path(self.driver, archive)
        if not plan.going:
            return reports.PruneReport(None, (), (), 0)
        if os.path.lexists(path):
            raise errors.CopyRefused(f"{errors.shown(path, 250)} is there already; an archive never replaces anything.")
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
        """Nothing of what was deleted or redacted before this call is in any file of the store after it.

        A file: others go on reading, and wait to write while the database is read once. A server: its tables are
        written anew, one after the other; all others wait for each, and only the role that made them may do that.
        StoreBusy when a process that reads was in the way: call it again. Without `files`, only attachments and the
        words in the search index go that nothing in the tables needs any more, which hinders nobody. Copies made
        earlier (backups, archives, exports) are not the store's, and are left alone.
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
        """Copies of the store that processes left half made beside it when they died."""
        if not self.driver.memory:
            folder = os.path.dirname(self.driver.path)
            with atomic_file.translate_errors(folder):
                atomic_file.remove_abandoned(folder)

    def shrink(self) -> None:
        """Give the room of what was removed back to the disk.

        The database is written anew: that takes its time and as much room again, and others wait to write.
        """
        self.driver.shrink()


# --- the plan ------------------------------------------------------------------------------------------


def _check_criteria(days: object, max_bytes: object, owner: object, source: object) -> None:
    if days is None and max_bytes is None:
        raise errors.InvalidArgument("Say what may go: older_than_days, max_bytes, or both.")
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
        return "somebody works on it"
    if routed:
        return "a route names it"
    if upkeep.awaited(tx, conversation_id):
        return "something waits to be answered in it, or still runs"
    return "a branch reads from it" if read else None


def _remove(tx: Tx, going: Sequence[reports.Prunable], archived: _Archived, now: float) -> dict[str, int]:
    """The keys of those that went: still what the archive has, and still not needed."""
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


class _Other(export.Exports, import_.Imports):
    """A store that is there to be read into."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self._clock = time.time


# Lines that may be of these kinds: most are messages, and need not be decoded.
_TOLD = (b'"kind":"conversation"', b'"kind":"blob"')


class _Archived(NamedTuple):
    """Where each conversation that is whole in an archive stood when it was written; what the archive lacks."""

    whole: dict[str, tuple[int, int]]
    lost_blobs: tuple[str, ...]


def _archive_path(driver: Driver, archive: object) -> str:
    given = os.fspath(archive) if isinstance(archive, str | os.PathLike) else None
    if not isinstance(given, str) or not given or "\0" in given:
        raise errors.InvalidArgument("An archive needs the path of a file, as text.")
    path = os.path.abspath(given)
    if not driver.memory:
        sqlite_paths.refuse_own(driver.path, os.path.realpath(path))
    return path


def _archive(store: Retention, path: str, names: list[str], progress: Progress | None) -> _Archived:
    """Write it and read it back, and its attachments beside it."""
    with atomic_file.replace(path, "prune") as temp:
        with atomic_file.translate_errors(path), open(temp, "w", encoding="utf-8", newline="\n") as file:
            wanted = _Other(store.driver).export_to(file, names, progress=progress).blobs
        fault_points.reach("prune", "exported")
        with atomic_file.translate_errors(path):
            _read_back(store.driver, path, temp)
        fault_points.reach("prune", "verified")
        lost = blobs.copy_contents(blobs.files_next_to(path), store._blob_files, wanted)
        # A missing one was lost before; of a damaged one there is something left to lose.
        damaged = {digest for digest in lost if store._blob_files.state(digest) == "damaged"}
        with atomic_file.translate_errors(path):
            return _Archived(_whole(temp, damaged), lost)


def _whole(temp: str, damaged: set[str]) -> dict[str, tuple[int, int]]:
    """The conversations of an archive that name no damaged attachment."""
    found: dict[str, tuple[int, int]] = {}
    name = ""
    with open(temp, "rb") as file:
        for data in file:
            line = transfer_format.decode(data) if any(kind in data for kind in _TOLD) else None
            if isinstance(line, transfer_format.Conversation):
                name, found[line.id] = line.id, (line.epoch, line.last_seq)
            elif isinstance(line, transfer_format.Blob) and line.digest in damaged:
                found.pop(name, None)
    return found


def _read_back(driver: Driver, path: str, temp: str) -> None:
    """Import the archive into another store, and export that: the same bytes, or CopyDamaged."""
    with atomic_file.temporary_file(path) as scratch, contextlib.closing(driver.adopt(scratch)) as other:
        with open(temp, "rb") as file:
            report = _Other(other).import_from(file)
        written, again = blake2b(digest_size=16), blake2b(digest_size=16)
        with open(temp, "rb") as file:
            for part in iter(lambda: file.read(blob_files.CHUNK), b""):
                written.update(part)
        _Other(other).export_to(lambda text: again.update(text.encode()))
        bad = [str(outcome.error) for outcome in report.outcomes if not outcome.ok]
        if bad or written.digest() != again.digest():
            raise errors.CopyDamaged(path, bad or ["read back, it is not what was written"])
