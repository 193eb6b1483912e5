"""A shelf in the database itself, for hosts that share no disk.

What is put there is a row for every part of some size. It comes and goes with the transaction that says so; a
draft is a file of this process, until then.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from typing import BinaryIO

from holdfast import errors
from holdfast.store import fault_points
from holdfast.store.blobs import files as blob_files
from holdfast.store.driver import Driver, Tx

# So much of a blob is in memory at once, and so long is a part.
PART = 256 * 1024
IN_MEMORY = 8 * 1024 * 1024


class TableShelf(blob_files.Shelf):
    """The attachments of one store, in its tables."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(tempfile.mkdtemp(prefix="holdfast-blobs-"))
        self._driver = driver
        weakref.finalize(self, blob_files.Shelf(self.folder).remove_all)

    def put(self, draft: blob_files.Draft, tx: Tx | None = None) -> None:
        if tx is None:
            self._driver.write("blob", lambda own: self.put(draft, own))
            return
        tx.run("parts_delete", digest=draft.digest)
        with open(draft.temp, "rb") as file:
            for number, part in enumerate(iter(lambda: file.read(PART), b"")):
                tx.run("part_insert", digest=draft.digest, part=number, content=part)
            if not os.fstat(file.fileno()).st_size:
                tx.run("part_insert", digest=draft.digest, part=0, content=b"")
        fault_points.reach("blob", "kept")

    def has(self, digest: str, tx: Tx | None = None) -> bool:
        if tx is None:
            return self._driver.read(lambda own: self.has(digest, own))
        return tx.one("part_get", digest=digest, part=0) is not None

    def raw(self, digest: str) -> BinaryIO:
        found = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115 -- given to whoever asked
        try:
            if not self._driver.read(lambda tx: self._read(tx, digest, found)):
                raise errors.NotFound("blob", digest)
            found.seek(0)
        except BaseException:
            found.close()
            raise
        return found  # type: ignore[return-value]

    def _read(self, tx: Tx, digest: str, into: tempfile.SpooledTemporaryFile[bytes]) -> int:
        number = 0
        while row := tx.one("part_get", digest=digest, part=number):
            into.write(row[0])
            number += 1
        return number

    def remove(self, digest: str, tx: Tx | None = None) -> None:
        if tx is None:
            self._driver.write("blob", lambda own: self.remove(digest, own))
            return
        tx.run("parts_delete", digest=digest)

    def strays(self, before: float) -> set[str]:  # noqa: ARG002
        """What nobody knows of; all that is known of comes and goes with its row."""
        return {row[0] for row in self._driver.read(lambda tx: tx.all("parts_strays"))}
