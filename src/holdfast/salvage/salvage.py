"""Salvage: what can be read of a damaged store goes into a new one, and what cannot is listed.

The damaged files are only read, by a process of its own (one that has them open as a store would lose its
locks by closing them again), and only while no process has them open. The new store is written through all
constraints, checked as a whole, and only then given its name.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import msgspec

from holdfast import errors, reports
from holdfast.salvage import page_reader, rebuild, recovered_rows
from holdfast.store import fsck, store_meta
from holdfast.store.backup import atomic_file
from holdfast.store.blobs import blobs
from holdfast.store.blobs import files as blob_files
from holdfast.store.driver import Driver, Progress, Tx
from holdfast.store.records import memory as records_memory
from holdfast.store.sqlite import driver as sqlite_driver
from holdfast.store.transfer import format as transfer_format
from holdfast.store.transfer import replay, validate

try:
    import fcntl
except ImportError:  # Windows: there a file in use does not open.
    fcntl = None  # type: ignore[assignment]

# Where in the -shm file every open connection holds a lock for as long as it is open.
IN_USE = 128
_PLACEHOLDER = rebuild.PLACEHOLDER.encode()
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
    """Read what can be read of the store at `damaged` into a new one at `new`, which must not exist.

    Raises StoreBusy while a process has the damaged store open, StoreUnusable when there is nothing to read
    or no room to write. Nothing of the damaged store is changed, and on any error there is no new one.
    """
    paths = _checked(damaged, new)
    code = "import sys; from holdfast.salvage import salvage; salvage.child(*sys.argv[1:])"
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
        raise _error(*msgspec.convert(last["error"], tuple[str, str]))
    raise errors.StoreUnusable(f"The process that read {paths[0]} ended with code {process.returncode}.")


def _error(kind: str, message: str) -> errors.HoldfastError:
    known = {"StoreBusy": errors.StoreBusy, "StoreFull": errors.StoreFull, "CopyRefused": errors.CopyRefused}
    return known.get(kind, errors.StoreUnusable)(message)


def child(damaged: str, new: str) -> None:
    """The process of its own: progress and the report as lines on standard output."""

    def say(what: dict[str, object]) -> None:
        sys.stdout.buffer.write(msgspec.json.encode(what) + b"\n")
        sys.stdout.buffer.flush()

    try:
        say({"report": run(damaged, new, lambda done, total: say({"done": [done, total]}))})
    except errors.HoldfastError as error:
        say({"error": [type(error).__name__, str(error)]})


def _checked(*paths: object) -> list[str]:
    found = []
    for path in paths:
        given = os.fspath(path) if isinstance(path, str | os.PathLike) else None
        if not isinstance(given, str) or not given or "\0" in given:
            raise errors.InvalidArgument("A salvage needs the paths of two files, as text.")
        found.append(os.path.realpath(given))
    return found


def run(damaged: str, new: str, progress: Callable[[int, int], None] | None = None) -> reports.SalvageReport:
    """The work itself; never in a process that has the damaged store open."""
    began = time.monotonic()
    if os.path.lexists(new):
        raise errors.CopyRefused(f"{new} is there already; a salvage never replaces anything.")
    with atomic_file.translate_errors(damaged), _unused(damaged):
        log = page_reader.read_wal(_read(damaged + "-wal"))
        book = page_reader.Book(_read(damaged, needed=True), log)
        found = recovered_rows.Remains()
        found.gather(book.rows(progress))
        # Behind a damaged place of the log: only what fills a gap, and only messages prove themselves.
        found.gather(row for row in book.doubtful_rows() if recovered_rows.proves_itself(row))
    lost = _damage(log, book, found)
    with atomic_file.replace(new, "salvage") as temp:
        missed, placeholders = _write(
            found, temp, blob_files.BlobFiles(f"{damaged}.blobs"), blob_files.BlobFiles(f"{new}.blobs")
        )
        conversations, sessions, messages = _finish(temp, new)
    counts = (conversations, sessions, messages - placeholders)
    return reports.SalvageReport(new, *counts, tuple(lost + missed), time.monotonic() - began)


def _damage(log: page_reader.Wal, book: page_reader.Book, found: recovered_rows.Remains) -> list[reports.Lost]:
    """What is known to be wrong of the files themselves; what that cost is listed after it, where it can be told."""
    unread = book.unread + sum(found.strange.values())
    counts = {
        "pages of the log are damaged: what was committed last": log.ignored,
        "pages of the file are damaged or missing": len(book.missing_pages),
        "rows cannot be read": unread,
    }
    lost = [reports.Lost(f"{count} {what}") for what, count in counts.items() if count]
    # Every store counts its restores: without that note, and with nothing else either, it hardly was one.
    if not (found.known() or found.tombstones or found.generation):
        lost.append(reports.Lost("everything: nothing in this file is of a store"))
    return lost


def _read(path: str, *, needed: bool = False) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        if needed:
            raise
        return b""


@contextlib.contextmanager
def _unused(path: str) -> Iterator[None]:
    """Nobody has the store open, and nobody can open it, until the block ends."""
    try:
        fd = os.open(f"{path}-shm", os.O_RDWR)
    except FileNotFoundError:
        yield  # Without this file no process has it open.
        return
    try:
        if fcntl is not None:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, IN_USE)
        yield
    except BlockingIOError:
        raise errors.StoreBusy(f"A process has {path} open; stop it, and salvage again.") from None
    finally:
        os.close(fd)


# --- the new store ---------------------------------------------------------------------------------------


def _write(
    found: recovered_rows.Remains, temp: str, old: blob_files.BlobFiles, new: blob_files.BlobFiles
) -> tuple[list[reports.Lost], int]:
    """What could not go over, and how many messages are only placeholders."""
    lost: list[reports.Lost] = []
    placeholders = 0
    wanted: dict[str, str] = {}
    with contextlib.closing(sqlite_driver.SqliteDriver(temp, durability="process-crash")) as driver:
        origins: dict[int, rebuild.Kept] = {}
        for key in found.known():
            story = rebuild.tell(found, key, origins)
            if isinstance(story, rebuild.Unnamed):
                what = f"{story.messages} messages of a conversation whose name is lost"
                lost.append(reports.Lost(what))
            elif story is not None:
                told, missed = _conversation(driver, story)
                lost += missed
                if told is not None:
                    origins[key] = _kept(told)
                    placeholders += sum(map(_is_placeholder, told))
                    wanted.update({digest: story.id for body in story.bodies for digest in blobs.find_references(body)})
        gone = [digest for digest in sorted(wanted) if not new.copy_from(old, digest)]
        lost += [reports.Lost(f"attachment {digest}", wanted[digest]) for digest in gone]
        sizes = {digest: os.path.getsize(new.path(digest)) for digest in wanted if digest not in gone}
        driver.write("salvage", lambda tx: _settle(tx, found, sizes))
    return lost, placeholders


def _conversation(driver: Driver, story: rebuild.Story) -> tuple[list[transfer_format.Line] | None, list[reports.Lost]]:
    """In the fullest way the constraints let in: that way, and what it left out."""
    for told, left in story.ways:
        try:
            _replayed(driver, told)
        except _REFUSALS:
            continue
        return told, story.lost + left
    return None, [reports.Lost("everything: what is left of it does not fit together", story.id)]


def _replayed(driver: Driver, told: list[transfer_format.Line]) -> None:
    head = told[0]
    assert isinstance(head, transfer_format.Conversation)
    vetted = validate.ConversationValidator(head)
    for number, line in enumerate(told):
        vetted.check(number, line)
    vetted.finish(len(told))
    writing = replay.Replay(head)
    driver.write("salvage", lambda tx: writing.run(tx, enumerate(told), len(told)))


def _kept(told: list[transfer_format.Line]) -> rebuild.Kept:
    head = told[0]
    assert isinstance(head, transfer_format.Conversation)
    return rebuild.Kept(
        head.id,
        frozenset(line.id for line in told if isinstance(line, transfer_format.Session)),
        head.last_seq,
        {line.epoch: line.seen_seq for line in told if isinstance(line, transfer_format.Compaction)},
    )


def _is_placeholder(line: transfer_format.Line) -> bool:
    """Whether it stands for a message that is lost."""
    return (
        isinstance(line, transfer_format.Message)
        and line.uid == f"lost-{line.seq}"
        and bytes(line.body) == _PLACEHOLDER
    )


def _settle(tx: Tx, found: recovered_rows.Remains, sizes: dict[str, int]) -> None:
    """Deleted ids stay deleted, attachments and memories are known, and no counter from before can match."""
    for name, at in found.tombstones.items():
        if 0 < len(name) <= 200 and name.isprintable():
            tx.run("tombstone_keep", id=name, at=at)
    for digest, size in sizes.items():
        media_type = found.blobs.get(digest, "application/octet-stream")
        tx.run("blob_put", digest=digest, size=size, media_type=media_type, at=time.time())
    for memory in found.memories():
        records_memory.keep(tx, memory)
    store_meta.begin_generation(tx, found.generation + 1)


def _finish(temp: str, new: str) -> tuple[int, int, int]:
    """A sound store that was closed, so that all of it is in one file; else an error, and no store."""
    with contextlib.closing(sqlite_driver.SqliteDriver(temp, durability="process-crash")) as driver:
        report = fsck.check(driver)
    if not report.ok:
        raise errors.CopyDamaged(new, [f"{bad.promise} {bad.detail}" for bad in report.violations])
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{temp}.queue")
    return report.conversations, report.sessions, report.messages
