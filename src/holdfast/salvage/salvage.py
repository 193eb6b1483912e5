"""Salvage a damaged store: write what can be recovered to a new store, and list what is lost.

The damaged files are only read, in a separate process (SQLite drops the POSIX locks of a process that closes any
descriptor of the file) and only while no process has them open. The new store is written with all constraints in force
and checked by fsck before it gets its name.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast import errors, reports
from holdfast.salvage import page_reader, rebuild, recovered_rows
from holdfast.store import fsck, store_meta, validation
from holdfast.store.backup import atomic_file
from holdfast.store.blobs import blobs
from holdfast.store.blobs import files as blob_files
from holdfast.store.driver import Driver, Progress, Tx
from holdfast.store.records import memory as records_memory
from holdfast.store.sqlite import driver as sqlite_driver
from holdfast.store.transfer import jsonl, replay, validate

try:
    import fcntl
except ImportError:  # Windows: there a file in use does not open.
    fcntl = None  # type: ignore[assignment]

# The byte of the -shm file that every open connection holds a shared lock on.
SHM_LOCK_BYTE = 128
# The errors that the separate process reports by name; any other is StoreUnusable.
_ERRORS = {"StoreBusy": errors.StoreBusy, "StoreFull": errors.StoreFull, "CopyRefused": errors.CopyRefused}
_REFUSALS = (
    errors.ImportInvalid,
    errors.StoreRefused,
    errors.IdTaken,
    errors.ConversationDeleted,
    errors.InvalidArgument,
)


def salvage(
    damaged: str | os.PathLike[str], new: str | os.PathLike[str], progress: Progress | None = None
) -> reports.SalvageReport:
    """Recover the store at `damaged` into a new one at `new`, which must not exist.

    Raises StoreBusy while a process has the damaged store open, StoreUnusable when it cannot be read or the new one
    cannot be written. The damaged store is not changed, and after an error there is no new one.
    """
    given = (damaged, "damaged"), (new, "new")
    paths = [os.path.realpath(validation.check_path(path, name)) for path, name in given]
    code = "import sys; from holdfast.salvage import salvage; salvage.run_child(*sys.argv[1:])"
    with subprocess.Popen([sys.executable, "-c", code, *paths], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        last: dict[str, object] = {}
        for line in process.stdout:
            last = json.loads(line)
            if progress and "done" in last:
                progress(*msgspec.convert(last["done"], tuple[int, int]))
    if "report" in last:
        return msgspec.convert(last["report"], reports.SalvageReport)
    if "error" in last:
        kind, message = msgspec.convert(last["error"], tuple[str, str])
        raise _ERRORS.get(kind, errors.StoreUnusable)(message)
    raise errors.StoreUnusable(f"The process that read {paths[0]} ended with code {process.returncode}.")


def run_child(damaged: str, new: str) -> None:
    """Run in the separate process: write progress and the report as lines to standard output."""

    def send(message: dict[str, object]) -> None:
        sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
        sys.stdout.buffer.flush()

    try:
        send({"report": run(damaged, new, lambda done, total: send({"done": [done, total]}))})
    except errors.HoldfastError as error:
        send({"error": [type(error).__name__, str(error)]})


def run(damaged: str, new: str, progress: Progress | None = None) -> reports.SalvageReport:
    """Salvage in this process, which must not have the damaged store open."""
    began = time.monotonic()
    if os.path.lexists(new):
        raise errors.CopyRefused(f"{new} exists. Name a new file for the salvaged store.")
    with atomic_file.translate_errors(damaged), _lock(damaged):
        wal_path = Path(f"{damaged}-wal")
        wal = page_reader.read_wal(wal_path.read_bytes() if wal_path.exists() else b"")
        file = page_reader.DamagedFile(Path(damaged).read_bytes(), wal)
        found = recovered_rows.RecoveredRows()
        found.gather(file.read_rows(progress))
        # After a damaged frame of the WAL, only messages are used, because only their digests verify them.
        found.gather(row for row in file.read_doubtful_rows() if recovered_rows.is_message(row))
    lost = _list_damage(wal, file, found)
    with atomic_file.replace(new, "salvage") as temp:
        missed, placeholders = _write(found, temp, blobs.files_next_to(damaged), blobs.files_next_to(new))
        # Closed before it is renamed, so that all of it is in one file.
        with contextlib.closing(sqlite_driver.SqliteDriver(temp, durability="process-crash")) as driver:
            report = fsck.raise_if_damaged(fsck.check(driver), new)
    counts = (report.conversations, report.sessions, report.messages - placeholders)
    return reports.SalvageReport(new, *counts, tuple(lost + missed), time.monotonic() - began)


def _list_damage(
    wal: page_reader.WalPages, file: page_reader.DamagedFile, found: recovered_rows.RecoveredRows
) -> list[reports.Lost]:
    """List the damage to the files themselves."""
    counts = {
        "pages of the WAL are damaged: the last commits": wal.ignored,
        "pages of the file are damaged or missing": len(file.missing_pages),
        "rows cannot be read": file.unread + found.unrecognised,
    }
    lost = [reports.Lost(f"{count} {what}") for what, count in counts.items() if count]
    # Every store has a generation: without it and without any row, the file was not a store.
    if not (found.conversation_keys() or found.tombstones or found.generation):
        lost.append(reports.Lost("everything: the file holds no data of a store"))
    return lost


@contextlib.contextmanager
def _lock(path: str) -> Iterator[None]:
    """Lock the store against being opened. Raises StoreBusy if a process has it open."""
    try:
        fd = os.open(f"{path}-shm", os.O_RDWR)
    except FileNotFoundError:
        yield  # Every process that has the store open has created this file.
        return
    try:
        if fcntl is not None:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, SHM_LOCK_BYTE)
        yield
    except BlockingIOError:
        raise errors.StoreBusy(f"A process has {path} open. Stop it, and salvage again.") from None
    finally:
        os.close(fd)


# --- the new store ---------------------------------------------------------------------------------------


def _write(
    found: recovered_rows.RecoveredRows, temp: str, old: blob_files.BlobFiles, new: blob_files.BlobFiles
) -> tuple[list[reports.Lost], int]:
    """Write the new store. Return what is lost, and the number of placeholder messages."""
    lost: list[reports.Lost] = []
    placeholders = 0
    wanted: dict[str, str] = {}
    with contextlib.closing(sqlite_driver.SqliteDriver(temp, durability="process-crash")) as driver:
        origins: dict[int, rebuild.RebuiltOrigin] = {}
        for key in found.conversation_keys():
            candidates = rebuild.rebuild(found, key, origins)
            if candidates is not None:
                lines, missed = _write_conversation(driver, candidates)
                lost += missed
                if lines:
                    origins[key] = rebuild.RebuiltOrigin.from_lines(lines)
                    placeholders += candidates.placeholders
                    for message in candidates.messages:
                        wanted.update(dict.fromkeys(blobs.find_references(message.body), candidates.id))
        gone = [digest for digest in sorted(wanted) if not new.copy_from(old, digest)]
        lost += [reports.Lost(f"attachment {digest}", wanted[digest]) for digest in gone]
        sizes = {digest: os.path.getsize(new.path(digest)) for digest in wanted if digest not in gone}
        driver.write("salvage", lambda tx: _write_store_rows(tx, found, sizes))
    return lost, placeholders


def _write_conversation(driver: Driver, candidates: rebuild.Candidates) -> tuple[list[jsonl.Line], list[reports.Lost]]:
    """Write the most complete version that the constraints accept. Return its lines and what is lost."""
    for lines, left in candidates.versions:
        try:
            _replay(driver, lines)
        except _REFUSALS:
            continue
        return lines, candidates.lost + left
    contradiction = reports.Lost("everything: the recovered rows contradict each other", candidates.id)
    return [], [contradiction] if candidates.versions else candidates.lost


def _replay(driver: Driver, lines: list[jsonl.Line]) -> None:
    assert isinstance(lines[0], jsonl.ConversationLine)
    validator = validate.ConversationValidator(lines[0])
    for line in lines:
        validator.check(line)
    validator.finish()
    writer = replay.Replay()
    driver.write("salvage", lambda tx: writer.run(tx, enumerate(lines), len(lines)))


def _write_store_rows(tx: Tx, found: recovered_rows.RecoveredRows, sizes: dict[str, int]) -> None:
    """Write tombstones, attachments and memories, and advance all counters past those used before."""
    for name, at in found.tombstones.items():
        if 0 < len(name) <= 200 and name.isprintable():
            tx.run("tombstone_keep", id=name, at=at)
    for digest, size in sizes.items():
        media_type = found.media_types.get(digest, "application/octet-stream")
        tx.run("blob_put", digest=digest, size=size, media_type=media_type, at=time.time())
    for memory in found.memories():
        records_memory.import_memory(tx, memory)
    store_meta.begin_generation(tx, found.generation + 1)
