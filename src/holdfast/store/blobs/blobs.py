"""Attachments: contents that are stored by digest, in files or in tables, and referred to by messages.

A message part refers to a blob: `{"type": "image", "blob": "<digest>"}`. An append does not check the reference;
collecting blobs reads the log to find all references. Storing and removing a blob take the same lock of the database,
so a collection cannot remove content that is being stored.
"""

from __future__ import annotations

import io
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, BinaryIO

import msgspec
from msgspec import Meta

from holdfast import errors, fault_points, types
from holdfast.store import conversation_row, validation
from holdfast.store.backup import atomic_file
from holdfast.store.blobs import files as blob_files
from holdfast.store.driver import DatabaseReader, Driver, Facet, Row, Tx
from holdfast.store.search import search
from holdfast.store.sqlite import connection as sqlite_connection

MAX_SEQ = 2**32 - 1
_KEY = '"blob":"'
_REFERENCE = re.compile(r'"blob":"([0-9a-f]{64})"')
_MEDIA_TYPE = r"(?a)^[\w.+-]{1,60}/[\w.+-]{1,60}(; ?[\w.+-]+=[\w.+\"-]+)*\Z"

Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z", description="64 hexadecimal characters")]
MediaType = Annotated[str, Meta(max_length=200, pattern=_MEDIA_TYPE, description="a media type such as image/png")]
DIGEST_ARGUMENT = validation.ArgumentType(Digest)
MEDIA_TYPE_ARGUMENT = validation.ArgumentType(MediaType)

# The last seq of each conversation, by key.
LastSeqs = dict[int, int]


class Blobs(Facet):
    """`db.blobs`: attachments, named by their digest."""

    def __init__(self, driver: Driver, clock: Callable[[], float]) -> None:
        super().__init__(driver, clock)
        self._lock = threading.Lock()
        self._opened_files: blob_files.BlobFiles | None = None

    @property
    def files(self) -> blob_files.BlobFiles:
        # Opened once: a temporary folder is removed with its object.
        with self._lock:
            if self._opened_files is None and self.driver.stores_blobs:
                self._opened_files = blob_files.BlobTables(self.driver)
            elif self._opened_files is None:
                self._opened_files = blob_files.BlobFiles(f"{self.driver.path}.blobs" if self.driver.has_file else None)
            return self._opened_files

    def put(self, content: bytes | str | os.PathLike[str], media_type: str = "application/octet-stream") -> types.Blob:
        """Store these bytes, or the file at this path. Messages refer to it by its digest.

        `collect` removes a blob without references after a day.
        """
        validation.check(MEDIA_TYPE_ARGUMENT, media_type=media_type)
        self.driver.read(lambda _: None)  # Raises if the store is closed or forked, before anything is written.
        now = self._clock()
        with _open_content(content) as source, atomic_file.translate_errors(self.files.folder):
            staged = self.files.stage(source)
        return _store(self.driver, self.files, staged, media_type, now)

    def get(self, digest: str) -> types.Blob | None:
        validation.check(DIGEST_ARGUMENT, digest=digest)
        return self.driver.read(lambda tx: read_blob(tx, digest))

    def open(self, digest: str) -> BinaryIO:
        """Open the content of a blob after verifying its digest. Raises NotFound or BlobDamaged."""
        validation.check(DIGEST_ARGUMENT, digest=digest)
        with atomic_file.translate_errors(self.files.folder):
            return self.files.open(digest)

    def referenced_by(self, session_id: str, digest: str) -> bool:
        """Return whether a message of a conversation or of its origins refers to a blob."""
        validation.check(DIGEST_ARGUMENT, digest=digest)
        return self.driver.read(lambda tx: has_reference(tx, session_id, digest))

    def collect(self, older_than_hours: float = 24) -> types.Collected:
        """Remove blobs that nothing refers to and that are older than this, and files that dead processes left."""
        validation.check(validation.Duration, older_than_hours=older_than_hours)
        age = older_than_hours * 3600
        with atomic_file.translate_errors(self.files.folder):
            return collect(self.driver, self.files, self._clock() - age, time.time() - age)


class AdminFacet(Facet):
    """The base class of the parts of `db.admin`."""

    def __init__(self, driver: Driver, clock: Callable[[], float], blobs: Blobs, searcher: search.Searcher) -> None:
        super().__init__(driver, clock)
        self.blobs = blobs
        self.searcher = searcher


def read_blob(tx: Tx, digest: str) -> types.Blob | None:
    row = tx.one("blob_get", digest=digest)
    return types.Blob(*row) if row else None


def _store(
    driver: Driver,
    files: blob_files.BlobFiles,
    staged: blob_files.StagedBlob,
    media_type: str,
    now: float,
    *,
    keep_type: bool = False,
) -> types.Blob:
    """Store staged content. With `keep_type`, a blob that the store knows keeps its media type."""

    def step(tx: Tx) -> types.Blob:
        earlier = read_blob(tx, staged.digest) if keep_type else None
        blob = types.Blob(staged.digest, staged.size, earlier.media_type if earlier else media_type, now)
        # The row first: it waits for a collection that is running, which may remove the content.
        tx.run("blob_put", **msgspec.structs.asdict(blob))
        with atomic_file.translate_errors(files.folder):
            files.put(staged, tx)
        return blob

    try:
        return driver.write("blob", step)
    finally:
        atomic_file.discard(staged.temp)


def _open_content(content: bytes | str | os.PathLike[str]) -> BinaryIO:
    if isinstance(content, bytes | bytearray | memoryview):
        return io.BytesIO(content)
    path = validation.check_path(content, "content")
    sqlite_connection.check_not_open_here(path)
    with atomic_file.translate_errors(path):
        return open(path, "rb")


def find_references(body: str) -> set[str]:
    """Return the digests that a body refers to. Quotes in text are escaped, so text never looks like a reference."""
    return set(_REFERENCE.findall(body)) if _KEY in body else set()


def read_digests(tx: Tx) -> list[str]:
    """Return the digests of all blobs of the store."""
    return [row[0] for row in tx.all("blobs_all")]


def files_next_to(path: str) -> blob_files.BlobFiles:
    """Return the attachments of a backup or export."""
    return blob_files.BlobFiles(f"{path}.blobs")


def copy_contents(
    target: blob_files.BlobFiles,
    source: blob_files.BlobFiles,
    digests: Iterable[str],
    link_from: blob_files.BlobFiles | None = None,
) -> tuple[str, ...]:
    """Copy attachments. Return the digests that the source lacks, which is never an error."""
    with atomic_file.translate_errors(target.folder):
        target.remove_abandoned()
        return tuple(digest for digest in digests if not target.copy_from(source, digest, link_from))


class IncomingBlobs:
    """Stores the attachments of an import before the messages that refer to them."""

    def __init__(self, driver: Driver, files: blob_files.BlobFiles, source: blob_files.BlobFiles | None) -> None:
        self._driver = driver
        self._files = files
        self._source = source
        self._seen = set[str]()
        self.stored = set[str]()
        self.missing = set[str]()

    def store(self, wanted: Mapping[str, types.Blob | None], *, referenced: bool) -> None:
        """Store the blobs that the source has. `referenced`: stored messages refer to them already.

        If the messages are refused afterwards, `collect` removes the blobs like any others without references.
        """
        for digest, blob in wanted.items():
            if digest not in self._seen and not self._has(digest, blob, referenced):
                (self.stored if blob is not None and self._store(blob) else self.missing).add(digest)
            self._seen.add(digest)

    def _has(self, digest: str, blob: types.Blob | None, referenced: bool) -> bool:
        if self._files.state(digest) != "sound":
            return False
        return referenced or blob is None or self._driver.write("blob", lambda tx: self._renew(tx, blob))

    def _renew(self, tx: Tx, blob: types.Blob) -> bool:
        """Reset the age of a blob, so that no collection removes it before a message refers to it."""
        tx.one("lock_blobs")
        if not self._files.has(blob.digest, tx):
            return False
        tx.run("blob_known", **msgspec.structs.asdict(blob))
        return True

    def _store(self, blob: types.Blob) -> bool:
        """Store a blob. Return False when its content is missing, damaged or of another size."""
        if self._source is None:
            return False
        try:
            file = self._source.open_unverified(blob.digest)
        except (errors.NotFound, errors.BlobDamaged, OSError):
            return False
        with file, atomic_file.translate_errors(self._files.folder):
            # Compare sizes before anything is copied: a hostile file could fill the disk.
            if os.fstat(file.fileno()).st_size != blob.size:
                return False
            try:
                staged = self._files.stage_as(file, blob.digest)
            except errors.BlobDamaged:
                return False
        _store(self._driver, self._files, staged, blob.media_type, blob.at, keep_type=True)
        return True


def mark_for_collection(tx: Tx, conversation: int, after: int, upto: int, now: float) -> None:
    """Mark the blobs of messages that are about to be removed: the next collection does not wait for them to age."""
    rows = tx.all("blob_mentions_between", conversation=conversation, after=after, upto=upto)
    for digest in _references_of(rows):
        tx.run("blob_dropped", digest=digest, at=now)


def has_reference(tx: Tx, session_id: str, digest: str) -> bool:
    """Return whether a conversation refers to a blob."""
    reference = f'{_KEY}{digest}"'
    return any(
        tx.one("blob_mention", conversation=each.key, after=each.after, upto=each.upto, reference=reference)
        for each in conversation_row.lineage(tx, conversation_row.read(tx, session_id))
    )


def _references_of(rows: Iterable[Row]) -> set[str]:
    """Return the digests that bodies refer to. The body is the last column."""
    return set().union(*(find_references(row[-1]) for row in rows))


def collect(driver: Driver, files: blob_files.BlobFiles, before: float, strays_before: float) -> types.Collected:
    """Collect blobs. The log is read without a lock first; with the lock, only messages added since are read."""
    files.remove_abandoned()
    strays = files.find_older(strays_before)
    if not strays and driver.read(lambda tx: not tx.all("blobs_all")):
        return types.Collected(0, 0)
    named, last_seqs = driver.read(_read_references)
    fault_points.reach("collect", "read")
    rows = driver.read(lambda tx: tx.all("blobs_all"))
    done = not _find_unreferenced(rows, named, before) and not any(dropped_at for _, _, _, dropped_at in rows)
    if done and not _find_unknown(strays, rows, named):
        return types.Collected(0, 0)  # Maintenance calls this often: take no lock when there is nothing to do.
    return driver.write("collect", lambda tx: _collect(tx, files, named, last_seqs, before, strays))


def _read_references(tx: Tx) -> tuple[set[str], LastSeqs]:
    """Return the references of all messages, and of mail that is not handled or not sent."""
    return _references_of([*tx.all("blob_mentions"), *tx.all("blob_mentions_open")]), dict(tx.all("blob_marks"))


def _references_since(tx: Tx, last_seqs: LastSeqs) -> set[str]:
    found = _references_of(tx.all("blob_mentions_open"))
    for key, last_seq in tx.all("blob_marks"):
        if last_seq > last_seqs.get(key, 0):
            after = last_seqs.get(key, 0)
            found |= _references_of(tx.all("blob_mentions_between", conversation=key, after=after, upto=last_seq))
    return found


def _find_unreferenced(rows: Sequence[Row], named: set[str], before: float) -> dict[str, int]:
    """Return the digests and sizes of blobs without references that were dropped or are old."""
    return {
        digest: size
        for digest, size, at, dropped_at in rows
        if digest not in named and (dropped_at is not None or at < before)
    }


def _find_unknown(strays: set[str], rows: Sequence[Row], named: set[str]) -> set[str]:
    return strays - {row[0] for row in rows} - named


def _collect(
    tx: Tx, files: blob_files.BlobFiles, named: set[str], last_seqs: LastSeqs, before: float, strays: set[str]
) -> types.Collected:
    tx.one("lock_blobs")
    named = named | _references_since(tx, last_seqs)
    rows = tx.all("blobs_all")
    gone = _find_unreferenced(rows, named, before)
    for digest, _, _, dropped_at in rows:
        if digest in gone:
            tx.run("blob_delete", digest=digest)
        elif dropped_at is not None:
            tx.run("blob_kept", digest=digest)
    # Before the commit: after it, this could remove content that another process has just stored.
    for digest in [*gone, *_find_unknown(strays, rows, named)]:
        files.remove(digest, tx)
    return types.Collected(len(gone), sum(gone.values()))


def check_contents(report: types.Report, driver: DatabaseReader, files: blob_files.BlobFiles) -> types.Report:
    """Add a violation to the report for each referenced blob whose content is missing or damaged."""
    try:
        mentions = driver.read(lambda tx: tx.all("blob_mentions"))
    except (errors.StoreCorrupt, errors.StoreBroken):
        return report  # fsck has reported it.
    wanted: dict[str, tuple[str, int]] = {}
    for conversation_id, seq, body in mentions:
        for digest in find_references(body):
            wanted.setdefault(digest, (conversation_id, seq))
    states = {digest: files.state(digest) for digest in wanted}
    bad = tuple(
        types.Violation("blobs", where, f"blob {digest[:12]}… of message {seq} is {states[digest]}")
        for digest, (where, seq) in wanted.items()
        if states[digest] != "sound"
    )
    return msgspec.structs.replace(report, violations=report.violations + bad)
