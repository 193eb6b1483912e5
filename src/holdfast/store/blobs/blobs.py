"""Attachments: contents that are stored by digest, in files or in tables, and referred to by messages.

A message part refers to a blob: `{"type": "image", "blob": "<digest>"}`. An append does not check the reference;
collecting blobs reads the log to find all references. Storing and removing a blob take the same lock of the database,
so a collection cannot remove content that is being stored.
"""

from __future__ import annotations

import io
import os
import re
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import BinaryIO

import msgspec

from holdfast import errors, types
from holdfast.store import fault_points, validation
from holdfast.store.backup import atomic_file
from holdfast.store.blobs import files as blob_files
from holdfast.store.blobs import tables as blob_tables
from holdfast.store.driver import Driver, Readable, Row, Tx
from holdfast.store.facet import Facet
from holdfast.store.sqlite import connection as sqlite_connection

MAX_SEQ = 2**32 - 1
_KEY = '"blob":"'
_REFERENCE = re.compile(r'"blob":"([0-9a-f]{64})"')
MEDIA_TYPE = r"[\w.+-]{1,60}/[\w.+-]{1,60}(; ?[\w.+-]+=[\w.+\"-]+)*"

Marks = dict[int, int]


class Blobs(Facet):
    """`db.blobs`: attachments, named by their digest."""

    _opened_files: blob_files.BlobFiles | None = None

    @property
    def files(self) -> blob_files.BlobFiles:
        if self._opened_files is None:
            if self.driver.stores_blobs:
                self._opened_files = blob_tables.BlobTables(self.driver)
            else:
                self._opened_files = blob_files.BlobFiles(self._blob_folder())
        return self._opened_files

    def _blob_folder(self) -> str:
        if self.driver.has_file:
            return f"{self.driver.path}.blobs"
        made = tempfile.mkdtemp(prefix="holdfast-blobs-")
        weakref.finalize(self, blob_files.BlobFiles(made).remove_all)
        return made

    def put(self, content: bytes | str | os.PathLike[str], media_type: str = "application/octet-stream") -> types.Blob:
        """Store these bytes, or the file at this path. Messages refer to it by its digest.

        `collect` removes a blob without references after a day.
        """
        _check_media_type(media_type)
        self.driver.read(lambda _: None)  # Raises if the store is closed or forked, before anything is written.
        now = self._clock()
        with _open(content) as source, atomic_file.translate_errors(self.files.folder):
            staged = self.files.stage(source)
        return _store(self.driver, self.files, staged, media_type, now)

    def get(self, digest: str) -> types.Blob | None:
        _check_digest(digest)
        return self.driver.read(lambda tx: look(tx, digest))

    def open(self, digest: str) -> BinaryIO:
        """Open the content of a blob after verifying its digest. Raises NotFound or BlobDamaged."""
        _check_digest(digest)
        with atomic_file.translate_errors(self.files.folder):
            return self.files.open(digest)

    def collect(self, older_than_hours: float = 24) -> types.Collected:
        """Remove blobs that nothing refers to and that are older than this, and files that dead processes left."""
        validation.check(validation.Duration, older_than_hours=older_than_hours)
        age = older_than_hours * 3600
        with atomic_file.translate_errors(self.files.folder):
            return collect(self.driver, self.files, self._clock() - age, time.time() - age)


class UsesBlobs(Facet):
    """A part of `db.admin` that reads or writes attachments."""

    def __init__(self, driver: Driver, clock: Callable[[], float], blobs: Blobs) -> None:
        super().__init__(driver, clock)
        self.blobs = blobs

    @property
    def _blob_files(self) -> blob_files.BlobFiles:
        return self.blobs.files


def _check_digest(digest: object) -> None:
    if not isinstance(digest, str) or not blob_files.DIGEST.fullmatch(digest):
        raise errors.InvalidArgument("`digest` must be 64 hexadecimal characters.")


def look(tx: Tx, digest: str) -> types.Blob | None:
    row = tx.one("blob_get", digest=digest)
    return types.Blob(*row) if row else None


def _check_media_type(media_type: object) -> None:
    if not isinstance(media_type, str) or len(media_type) > 200 or not re.fullmatch(MEDIA_TYPE, media_type, re.ASCII):
        raise errors.InvalidArgument("`media_type` must look like image/png.")


def _store(
    driver: Driver,
    files: blob_files.BlobFiles,
    staged: blob_files.StagedBlob,
    media_type: str,
    now: float,
    *,
    importing: Callable[[Tx], None] | None = None,
) -> types.Blob:
    """Store staged content. An import is notified in the transaction, and keeps the media type of a known blob."""

    def step(tx: Tx) -> types.Blob:
        if importing is not None:
            importing(tx)
        known = None if importing is None else look(tx, staged.digest)
        blob = types.Blob(staged.digest, staged.size, known.media_type if known else media_type, now)
        # The row first: it waits for a collection that is running, which may remove the content.
        tx.run("blob_put", **msgspec.structs.asdict(blob))
        with atomic_file.translate_errors(files.folder):
            files.put(staged, tx)
        return blob

    try:
        return driver.write("blob", step)
    finally:
        atomic_file.discard(staged.temp)


def _open(content: bytes | str | os.PathLike[str]) -> BinaryIO:
    if isinstance(content, bytes | bytearray | memoryview):
        return io.BytesIO(content)
    path = os.fspath(content) if isinstance(content, str | os.PathLike) else None
    if not isinstance(path, str) or "\0" in path:
        raise errors.InvalidArgument("`content` must be bytes or the path of a file.")
    sqlite_connection.refuse_live(path)
    with atomic_file.translate_errors(path):
        return open(path, "rb")


def find_references(body: str) -> set[str]:
    """Return the digests that a body refers to. Quotes in text are escaped, so text never looks like a reference."""
    return set(_REFERENCE.findall(body)) if _KEY in body else set()


def files_next_to(path: str) -> blob_files.BlobFiles:
    """Return the attachments of a backup or export."""
    return blob_files.BlobFiles(f"{path}.blobs")


def copy_contents(
    target: blob_files.BlobFiles,
    source: blob_files.BlobFiles,
    digests: Iterable[str],
    near: blob_files.BlobFiles | None = None,
) -> tuple[str, ...]:
    """Copy attachments. Return the digests that the source lacks, which is never an error."""
    with atomic_file.translate_errors(target.folder):
        target.remove_abandoned()
        return tuple(digest for digest in digests if not target.copy_from(source, digest, near))


class Incoming:
    """Stores the attachments of an import before the messages that refer to them, and counts what is lost.

    `give_back` undoes it when the messages are refused.
    """

    def __init__(self, driver: Driver, files: blob_files.BlobFiles, source: blob_files.BlobFiles | None) -> None:
        self._driver = driver
        self._files = files
        self._source = source
        self._seen = set[str]()
        # The blobs of the last call that nothing referred to before.
        self._fresh: dict[str, types.Blob] = {}
        self._before = (set[str](), 0, 0)
        self._given_back = False
        self.came = 0
        self.lost: list[str] = []

    def take(self, wanted: Mapping[str, types.Blob | None], *, named: bool) -> None:
        """Store these blobs, as far as they are available. `named`: messages of the store refer to them already."""
        self._fresh = {}
        self._before = (set(self._seen), self.came, len(self.lost))
        for digest, blob in wanted.items():
            if digest not in self._seen and not self._has(digest, blob, named) and not (blob and self._store(blob)):
                self.lost.append(digest)
            self._seen.add(digest)

    def give_back(self) -> None:
        """Undo the last call: its messages were refused."""
        self._seen, self.came, lost = self._before
        del self.lost[lost:]
        if self._fresh:
            self._given_back = True
            self._driver.write("blob", self._drop)

    def settle(self) -> None:
        """Remove the blobs that were given back, unless another message refers to them by now."""
        if self._given_back:
            with atomic_file.translate_errors(self._files.folder):
                collect(self._driver, self._files, float("-inf"), float("-inf"))

    def _drop(self, tx: Tx) -> None:
        for blob in self._fresh.values():
            tx.run("blob_given_back", digest=blob.digest, at=blob.at)

    def _has(self, digest: str, blob: types.Blob | None, named: bool) -> bool:
        if self._files.state(digest) != "sound":
            return False
        return named or blob is None or self._driver.write("blob", lambda tx: self._renew(tx, blob))

    def _renew(self, tx: Tx, blob: types.Blob) -> bool:
        """Reset the age of a blob, so that no collection removes it before a message refers to it."""
        tx.one("lock_blobs")
        if not self._files.has(blob.digest, tx):
            return False
        self._note(tx, blob)
        tx.run("blob_known", **msgspec.structs.asdict(blob))
        return True

    def _store(self, blob: types.Blob) -> bool:
        staged = _stage(self._files, self._source, blob) if self._source is not None else None
        if staged is not None:
            note = partial(self._note, blob=blob)
            _store(self._driver, self._files, staged, blob.media_type, blob.at, importing=note)
            self.came += 1
        return staged is not None

    def _note(self, tx: Tx, blob: types.Blob) -> None:
        if not tx.one("blob_wanted", digest=blob.digest):
            self._fresh[blob.digest] = blob


def _stage(files: blob_files.BlobFiles, source: blob_files.BlobFiles, blob: types.Blob) -> blob_files.StagedBlob | None:
    """Stage the content of a blob. Return None when it is missing, damaged or of another size."""
    try:
        file = source.open_unverified(blob.digest)
    except (errors.NotFound, errors.BlobDamaged, OSError):
        return None
    with file, atomic_file.translate_errors(files.folder):
        # Compare sizes before anything is copied: a hostile file could fill the disk.
        if os.fstat(file.fileno()).st_size != blob.size:
            return None
        try:
            return files.stage_as(file, blob.digest)
        except errors.BlobDamaged:
            return None


def mark_dropped(tx: Tx, conversation: int, after: int, upto: int, now: float) -> None:
    """Mark the blobs of messages that are about to be removed: the next collection does not wait for them to age."""
    bodies = tx.all("blob_mentions_between", conversation=conversation, after=after, upto=upto)
    for digest in set().union(*(find_references(body) for (body,) in bodies)):
        tx.run("blob_dropped", digest=digest, at=now)


def collect(driver: Driver, files: blob_files.BlobFiles, before: float, strays_before: float) -> types.Collected:
    """Collect blobs. The log is read without a lock first; with the lock, only messages added since are read."""
    files.remove_abandoned()
    strays = files.find_older(strays_before)
    if not strays and driver.read(lambda tx: not tx.all("blobs_all")):
        return types.Collected(0, 0)
    named, marks = driver.read(_read_references)
    fault_points.reach("collect", "read")
    rows = driver.read(lambda tx: tx.all("blobs_all"))
    done = not _unreferenced(rows, named, before) and not any(dropped_at for _, _, _, dropped_at in rows)
    if done and not _unknown(strays, rows, named):
        return types.Collected(0, 0)  # Maintenance calls this often: take no lock when there is nothing to do.
    return driver.write("collect", lambda tx: _collect(tx, files, named, marks, before, strays))


def _read_references(tx: Tx) -> tuple[set[str], Marks]:
    found = set().union(*(find_references(body) for _, _, body in tx.all("blob_mentions")))
    return found | _references_of_mail(tx), dict(tx.all("blob_marks"))


def _references_of_mail(tx: Tx) -> set[str]:
    """Return the references of inbound messages that are not handled and of outbound messages that are not sent."""
    return set().union(*(find_references(body) for (body,) in tx.all("blob_mentions_open")))


def _references_since(tx: Tx, marks: Marks) -> set[str]:
    found = _references_of_mail(tx)
    for key, last_seq in tx.all("blob_marks"):
        if last_seq > marks.get(key, 0):
            rows = tx.all("blob_mentions_between", conversation=key, after=marks.get(key, 0), upto=last_seq)
            found = found.union(*(find_references(body) for (body,) in rows))
    return found


def _unreferenced(rows: Sequence[Row], named: set[str], before: float) -> dict[str, int]:
    """Return the digests and sizes of blobs without references that were dropped or are old."""
    return {
        digest: size
        for digest, size, at, dropped_at in rows
        if digest not in named and (dropped_at is not None or at < before)
    }


def _unknown(strays: set[str], rows: Sequence[Row], named: set[str]) -> set[str]:
    return strays - {row[0] for row in rows} - named


def _collect(
    tx: Tx, files: blob_files.BlobFiles, named: set[str], marks: Marks, before: float, strays: set[str]
) -> types.Collected:
    tx.one("lock_blobs")
    named = named | _references_since(tx, marks)
    rows = tx.all("blobs_all")
    gone = _unreferenced(rows, named, before)
    for digest, _, _, dropped_at in rows:
        if digest in gone:
            tx.run("blob_delete", digest=digest)
        elif dropped_at is not None:
            tx.run("blob_kept", digest=digest)
    # Before the commit: after it, this could remove content that another process has just stored.
    for digest in [*gone, *_unknown(strays, rows, named)]:
        files.remove(digest, tx)
    return types.Collected(len(gone), sum(gone.values()))


def check_contents(report: types.Report, driver: Readable, files: blob_files.BlobFiles) -> types.Report:
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
