"""The folders of background processes: HOME/processes/STORE/PROCESS, deleted some time after the end.

The record of a process is stored before its folder is created, and cleaning up lists the folders before it reads the
records. So a folder of this store without a record belongs to a process that was deleted with its conversation.
"""

from __future__ import annotations

import glob
import os
import secrets
import shutil
import time
from collections.abc import Sequence
from hashlib import blake2b

from holdfast import types
from holdfast.tools.shell import supervisor_client

KEEP_SECONDS = 7 * 86_400.0
"""The time that the folder of an ended process is kept."""


def store_folder(home: str, database: str) -> str:
    """Return where the folders of a database's processes are; an in-memory database has a new one each time."""
    path = database if "://" in database else os.path.realpath(database)
    name = blake2b(path.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    return os.path.join(home, "processes", secrets.token_hex(16) if database == ":memory:" else name)


def list_all(own: str) -> list[str]:
    """Return the folders of all stores in the home of this one."""
    return glob.glob(os.path.join(glob.escape(os.path.dirname(own)), "*", "p*"))


def delete_expired(
    own: str, found: Sequence[str], records: Sequence[types.Process], keep_seconds: float = KEEP_SECONDS
) -> int:
    """Delete expired folders and return their number. `records` are all processes of the store, read afterwards.

    A folder expires a while after the end of its process, and at once if the process was redacted or deleted.
    """
    known = {process.id: process for process in records}
    deleted = 0
    for path in found:
        is_own = os.path.dirname(path) == own
        row = known.get(os.path.basename(path)) if is_own else None
        unwanted = is_own if row is None else not row.command
        ended = row is None or row.state != "running"
        old = _changed_at(path) < time.time() - keep_seconds
        # A process whose conversation was deleted has no record, and may still run.
        if ended and (unwanted or old) and not os.path.islink(path) and not supervisor_client.send(path):
            shutil.rmtree(path, ignore_errors=True)
            deleted += not os.path.lexists(path)
    return deleted


def _changed_at(folder: str) -> float:
    """Return when the last file was created or renamed, which is at the end of the process."""
    try:
        return os.lstat(folder).st_mtime
    except OSError:
        return time.time()


def last_written_at(folder: str) -> float:
    """Return when a file in the folder was last written; 0 if there is no folder."""
    try:
        paths = [folder, *(os.path.join(folder, name) for name in os.listdir(folder))]
        return max(os.lstat(path).st_mtime for path in paths)
    except OSError:
        return 0.0
