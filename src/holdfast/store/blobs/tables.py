"""Attachments in tables of the database, for hosts that share no disk.

The content of an attachment is split into rows, which are written and deleted in the transaction of their blob. Staged
content is in a temporary file of this process.
"""

from __future__ import annotations

import os
import tempfile
from typing import BinaryIO, cast

from holdfast import errors, fault_points
from holdfast.store.blobs import files as blob_files
from holdfast.store.driver import Driver, Tx

PART_BYTES = 256 * 1024
MAX_MEMORY_BYTES = 8 * 1024 * 1024


class BlobTables(blob_files.BlobFiles):
    def __init__(self, driver: Driver) -> None:
        super().__init__()
        self._driver = driver

    def put(self, staged: blob_files.StagedBlob, tx: Tx | None = None) -> None:
        if tx is None:
            self._driver.write("blob", lambda own: self.put(staged, own))
            return
        tx.run("parts_delete", digest=staged.digest)
        with open(staged.temp, "rb") as file:
            for number, part in enumerate(iter(lambda: file.read(PART_BYTES), b"")):
                tx.run("part_insert", digest=staged.digest, part=number, content=part)
            if not os.fstat(file.fileno()).st_size:
                tx.run("part_insert", digest=staged.digest, part=0, content=b"")
        fault_points.reach("blob", "kept")

    def has(self, digest: str, tx: Tx | None = None) -> bool:
        if tx is None:
            return self._driver.read(lambda own: self.has(digest, own))
        return tx.one("part_get", digest=digest, part=0) is not None

    def open_unverified(self, digest: str) -> BinaryIO:
        found = tempfile.SpooledTemporaryFile(MAX_MEMORY_BYTES)  # noqa: SIM115 -- the caller closes it
        try:
            if not self._driver.read(lambda tx: self._read(tx, digest, found)):
                raise errors.NotFound("blob", digest)
            found.seek(0)
        except BaseException:
            found.close()
            raise
        return cast("BinaryIO", found)

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

    def find_older(self, before: float) -> set[str]:  # noqa: ARG002
        """Return the digests of contents without a blob: their age does not matter, as rows are transactional."""
        return {row[0] for row in self._driver.read(lambda tx: tx.all("parts_strays"))}
