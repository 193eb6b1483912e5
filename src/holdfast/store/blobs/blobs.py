"""Attachments: content kept by its digest beside the database, or in it, and named by messages.

A message part names a blob: `{"type": "image", "blob": "<digest>"}`. An append does not look at it. Who
names what is found by reading the log when blobs are collected. Putting a blob in its place and removing
one both happen under a lock of the database, so neither can take the other's content away.
"""

from __future__ import annotations

import io
import os
import re
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import BinaryIO

import msgspec

from holdfast import errors, types
from holdfast.store import fault_points, validation
from holdfast.store.backup import atomic_file
from holdfast.store.blobs import files as blob_files
from holdfast.store.blobs import tables as blob_tables
from holdfast.store.driver import Driver, Readable, Row, Tx
from holdfast.store.sqlite import connection as sqlite_connection

MAX_SEQ = 2**32 - 1
_KEY = '"blob":"'
_MENTION = re.compile(r'"blob":"([0-9a-f]{64})"')
MEDIA_TYPE = r"[\w.+-]{1,60}/[\w.+-]{1,60}(; ?[\w.+-]+=[\w.+\"-]+)*"

Marks = dict[int, int]


class Blobs:
    """The part of SessionDB that keeps attachments."""

    driver: Driver
    _clock: Callable[[], float]
    _own_shelf: blob_files.Shelf | None = None

    @property
    def _shelf(self) -> blob_files.Shelf:
        if self._own_shelf is None:
            in_tables = self.driver.keeps_blobs
            self._own_shelf = (
                blob_tables.TableShelf(self.driver) if in_tables else blob_files.Shelf(self._blob_folder())
            )
        return self._own_shelf

    def _blob_folder(self) -> str:
        if not self.driver.memory:
            return f"{self.driver.path}.blobs"
        made = tempfile.mkdtemp(prefix="holdfast-blobs-")
        weakref.finalize(self, blob_files.Shelf(made).remove_all)
        return made

    def put_blob(
        self, content: bytes | str | os.PathLike[str], media_type: str = "application/octet-stream"
    ) -> types.Blob:
        """Keep these bytes, or the file at this path; its digest is what messages name it by.

        One that no message names is removed by `collect_blobs` a day later.
        """
        _checked_media_type(media_type)
        self.driver.read(
            lambda _: None
        )  # a store that is closed or was opened before a fork says so before anything is written
        now = self._clock()
        with _opened(content) as source, atomic_file.translate_errors(self._shelf.folder):
            draft = self._shelf.draft(source)
        return _keep(self.driver, self._shelf, draft, media_type, now)

    def get_blob(self, digest: str) -> types.Blob | None:
        """What is known of a blob."""
        _checked_digest(digest)
        return self.driver.read(lambda tx: look(tx, digest))

    def open_blob(self, digest: str) -> BinaryIO:
        """Its content, after making sure that it is what the digest says. NotFound, or BlobDamaged."""
        _checked_digest(digest)
        with atomic_file.translate_errors(self._shelf.folder):
            return self._shelf.open(digest)

    def collect_blobs(self, older_than_hours: float = 24) -> types.Collected:
        """Remove what no message names and nobody put within these hours, and what writers that died left."""
        validation.check(validation.Duration, older_than_hours=older_than_hours)
        age = older_than_hours * 3600
        with atomic_file.translate_errors(self._shelf.folder):
            return collect(self.driver, self._shelf, self._clock() - age, time.time() - age)


def _checked_digest(digest: object) -> None:
    if not isinstance(digest, str) or not blob_files.DIGEST.fullmatch(digest):
        raise errors.InvalidArgument("A blob is named by 64 hexadecimal digits.")


def look(tx: Tx, digest: str) -> types.Blob | None:
    row = tx.one("blob_get", digest=digest)
    return types.Blob(*row) if row else None


def _checked_media_type(media_type: object) -> None:
    if not isinstance(media_type, str) or len(media_type) > 200 or not re.fullmatch(MEDIA_TYPE, media_type, re.ASCII):
        raise errors.InvalidArgument("A media type looks like image/png.")


def _keep(
    driver: Driver,
    kept: blob_files.Shelf,
    draft: blob_files.Draft,
    media_type: str,
    now: float,
    *,
    incoming: Callable[[Tx], None] | None = None,
) -> types.Blob:
    """A draft becomes a blob; one that is known keeps its media type when the draft is `incoming`, which is told."""

    def step(tx: Tx) -> types.Blob:
        if incoming is not None:
            incoming(tx)
        known = None if incoming is None else look(tx, draft.digest)
        blob = types.Blob(draft.digest, draft.size, known.media_type if known else media_type, now)
        # First, as it waits for a collection that is under way: what that takes is put after it.
        tx.run("blob_put", **msgspec.structs.asdict(blob))
        with atomic_file.translate_errors(kept.folder):
            kept.put(draft, tx)
        return blob

    try:
        return driver.write("blob", step)
    finally:
        atomic_file.discard(draft.temp)


def _opened(content: bytes | str | os.PathLike[str]) -> BinaryIO:
    if isinstance(content, bytes | bytearray | memoryview):
        return io.BytesIO(content)
    path = os.fspath(content) if isinstance(content, str | os.PathLike) else None
    if not isinstance(path, str) or "\0" in path:
        raise errors.InvalidArgument("A blob is made from bytes or from the path of a file.")
    sqlite_connection.refuse_live(path)
    with atomic_file.translate_errors(path):
        return open(path, "rb")


def mentioned(body: str) -> set[str]:
    """The blobs a body names. Quotes inside of a text are escaped there, so a text never looks like a name."""
    return set(_MENTION.findall(body)) if _KEY in body else set()


def beside(path: str) -> blob_files.Shelf:
    """Where the attachments of a file lie that is a copy of conversations."""
    return blob_files.Shelf(f"{path}.blobs")


def copied(
    into: blob_files.Shelf, source: blob_files.Shelf, wanted: Iterable[str], near: blob_files.Shelf | None = None
) -> tuple[str, ...]:
    """Copy attachments to another shelf; those that cannot be had, which are never a reason to fail."""
    with atomic_file.translate_errors(into.folder):
        into.sweep()
        return tuple(digest for digest in wanted if not into.copy_from(source, digest, near))


class Incoming:
    """Attachments that are about to be named, from the folder of an import: what came, and what is lost.

    They are taken in before the messages that name them. When those are refused, `give_back` undoes it.
    """

    def __init__(self, driver: Driver, kept: blob_files.Shelf, brought: blob_files.Shelf | None) -> None:
        self._driver = driver
        self._kept = kept
        self._brought = brought
        self._seen = set[str]()
        # Those of the last ones that nobody wanted here until they were taken.
        self._fresh: dict[str, types.Blob] = {}
        self._before = (set[str](), 0, 0)
        self._given_back = False
        self.came = 0
        self.lost: list[str] = []

    def take(self, wanted: Mapping[str, types.Blob | None], *, named: bool) -> None:
        """Have these here, as far as they can be had and anything is known of them.

        `named` says whether messages that are here name them already.
        """
        self._fresh = {}
        self._before = (set(self._seen), self.came, len(self.lost))
        for digest, blob in wanted.items():
            if digest not in self._seen and not self._here(digest, blob, named) and not (blob and self._taken(blob)):
                self.lost.append(digest)
            self._seen.add(digest)

    def give_back(self) -> None:
        """What was taken last is not named after all: it is as unwanted as it was before."""
        self._seen, self.came, told = self._before
        del self.lost[told:]
        if self._fresh:
            self._given_back = True
            self._driver.write("blob", self._drop)

    def settle(self) -> None:
        """Remove what was given back, unless somebody else has named it meanwhile."""
        if self._given_back:
            with atomic_file.translate_errors(self._kept.folder):
                collect(self._driver, self._kept, float("-inf"), float("-inf"))

    def _drop(self, tx: Tx) -> None:
        for blob in self._fresh.values():
            tx.run("blob_given_back", digest=blob.digest, at=blob.at)

    def _here(self, digest: str, blob: types.Blob | None, named: bool) -> bool:
        if self._kept.state(digest) != "sound":
            return False
        return named or blob is None or self._driver.write("blob", lambda tx: self._renewed(tx, blob))

    def _renewed(self, tx: Tx, blob: types.Blob) -> bool:
        """One that nobody named until now is young again, so that no collection takes it before it is named."""
        tx.one("lock_blobs")
        if not self._kept.has(blob.digest, tx):
            return False
        self._note(tx, blob)
        tx.run("blob_known", **msgspec.structs.asdict(blob))
        return True

    def _taken(self, blob: types.Blob) -> bool:
        draft = _drafted(self._kept, self._brought, blob) if self._brought is not None else None
        if draft is not None:
            _keep(self._driver, self._kept, draft, blob.media_type, blob.at, incoming=lambda tx: self._note(tx, blob))
            self.came += 1
        return draft is not None

    def _note(self, tx: Tx, blob: types.Blob) -> None:
        if not tx.one("blob_wanted", digest=blob.digest):
            self._fresh[blob.digest] = blob


def _drafted(kept: blob_files.Shelf, source: blob_files.Shelf, blob: types.Blob) -> blob_files.Draft | None:
    """A draft of what the folder has; None when that is not the content that was told of."""
    try:
        file = source.raw(blob.digest)
    except (errors.NotFound, errors.BlobDamaged, OSError):
        return None
    with file, atomic_file.translate_errors(kept.folder):
        # Before anything is copied: a file made to fill the disk says how large it is.
        if os.fstat(file.fileno()).st_size != blob.size:
            return None
        try:
            return kept.draft_of(file, blob.digest)
        except errors.BlobDamaged:
            return None


def drop(tx: Tx, conversation: int, after: int, upto: int, now: float) -> None:
    """These messages are about to go: what only they name goes with the next collection, however young."""
    bodies = tx.all("blob_mentions_between", conversation=conversation, after=after, upto=upto)
    for digest in set().union(*(mentioned(body) for (body,) in bodies)):
        tx.run("blob_dropped", digest=digest, at=now)


def collect(driver: Driver, kept: blob_files.Shelf, before: float, strays_before: float) -> types.Collected:
    """The log is read without a lock first; under it only what came since is read."""
    kept.sweep()
    strays = kept.strays(strays_before)
    if not strays and driver.read(lambda tx: not tx.all("blobs_all")):
        return types.Collected(0, 0)
    named, marks = driver.read(_named)
    fault_points.reach("collect", "read")
    rows = driver.read(lambda tx: tx.all("blobs_all"))
    done = not _unwanted(rows, named, before) and not any(dropped_at for _, _, _, dropped_at in rows)
    if done and not _unknown(strays, rows, named):
        return types.Collected(0, 0)  # without the lock: whoever looks after a store asks often
    return driver.write("collect", lambda tx: _collect(tx, kept, named, marks, before, strays))


def _named(tx: Tx) -> tuple[set[str], Marks]:
    found = set().union(*(mentioned(body) for _, _, body in tx.all("blob_mentions")))
    return found | _named_by_mail(tx), dict(tx.all("blob_marks"))


def _named_by_mail(tx: Tx) -> set[str]:
    """Those of what is not worked yet, or not sent."""
    return set().union(*(mentioned(body) for (body,) in tx.all("blob_mentions_open")))


def _named_since(tx: Tx, marks: Marks) -> set[str]:
    found = _named_by_mail(tx)
    for key, last_seq in tx.all("blob_marks"):
        if last_seq > marks.get(key, 0):
            rows = tx.all("blob_mentions_between", conversation=key, after=marks.get(key, 0), upto=last_seq)
            found = found.union(*(mentioned(body) for (body,) in rows))
    return found


def _unwanted(rows: Sequence[Row], named: set[str], before: float) -> dict[str, int]:
    """Digests and sizes of blobs that no message names, and that went or are old."""
    return {
        digest: size
        for digest, size, at, dropped_at in rows
        if digest not in named and (dropped_at is not None or at < before)
    }


def _unknown(strays: set[str], rows: Sequence[Row], named: set[str]) -> set[str]:
    return strays - {row[0] for row in rows} - named


def _collect(
    tx: Tx, kept: blob_files.Shelf, named: set[str], marks: Marks, before: float, strays: set[str]
) -> types.Collected:
    tx.one("lock_blobs")
    named = named | _named_since(tx, marks)
    rows = tx.all("blobs_all")
    gone = _unwanted(rows, named, before)
    for digest, _, _, dropped_at in rows:
        if digest in gone:
            tx.run("blob_delete", digest=digest)
        elif dropped_at is not None:
            tx.run("blob_kept", digest=digest)
    # Files go before the commit: after it, one put anew meanwhile could be taken away.
    for digest in [*gone, *_unknown(strays, rows, named)]:
        kept.remove(digest, tx)
    return types.Collected(len(gone), sum(gone.values()))


def checked(report: types.Report, driver: Readable, kept: blob_files.Shelf) -> types.Report:
    """What fsck found, and the blobs that messages name and that are not there, or not what they were."""
    try:
        mentions = driver.read(lambda tx: tx.all("blob_mentions"))
    except (errors.StoreCorrupt, errors.StoreBroken):
        return report  # that is a finding of its own, and made already
    wanted: dict[str, tuple[str, int]] = {}
    for conversation_id, seq, body in mentions:
        for digest in mentioned(body):
            wanted.setdefault(digest, (conversation_id, seq))
    states = {digest: kept.state(digest) for digest in wanted}
    bad = tuple(
        types.Violation("blobs", where, f"blob {digest[:12]}…, named by message {seq}, is {states[digest]}")
        for digest, (where, seq) in wanted.items()
        if states[digest] != "sound"
    )
    return msgspec.structs.replace(report, violations=report.violations + bad)
