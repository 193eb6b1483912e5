"""Write files atomically: to a temporary file that is synced and then renamed.

A process that is killed leaves the old file or the new one, and perhaps a temporary file. The name of a temporary file
identifies its process, so that the next writer removes the files of dead processes and no others.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from hashlib import blake2b

import msgspec

from holdfast import errors, fault_points
from holdfast.store import leases
from holdfast.store.sqlite import paths as sqlite_paths

# The name of a temporary file contains the beginning of the name of the file.
_MAX_NAME = 50
_NAME = re.compile(r"\.([0-9a-f]{8})-(\d+)-(\d*)-[0-9a-f]+\.draft(-\w+|\.queue)?$")


@contextlib.contextmanager
def replace(path: str, operation: str, *, private: bool = True) -> Iterator[str]:
    """Yield an empty temporary file. When the block succeeds, sync it and rename it to `path`.

    With `private`, create the folder if it is missing, and refuse one that other users can write to.
    """
    if private:
        with translate_errors(path):
            prepare_folder(os.path.dirname(os.path.abspath(path)))
    with temporary_file(path) as temp:
        yield temp
        with translate_errors(path):
            rename_into_place(temp, path, operation)


@contextlib.contextmanager
def temporary_file(path: str) -> Iterator[str]:
    """Yield an empty temporary file in the folder of `path`, and remove it when the block ends."""
    with translate_errors(path):
        temp = create(*os.path.split(os.path.abspath(path)))
    try:
        yield temp
    finally:
        discard(temp)


def prepare_folder(folder: str) -> None:
    """Create a folder if it is missing, and refuse one that other users can write to."""
    sqlite_paths.make_directory(folder)
    sqlite_paths.check_not_shared(folder)


def create(folder: str, name: str) -> str:
    """Create an empty temporary file with mode 0600, and remove the files that dead processes left for this name."""
    remove_abandoned(folder, name)
    me = leases.current_holder(None)
    temp = os.path.join(folder, f".{name[:_MAX_NAME]}.{_host(me)}-{me.pid}-{me.started}-{me.nonce}.draft")
    os.close(os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    return temp


def rename_into_place(temp: str, path: str, operation: str) -> None:
    """Rename a temporary file so that it survives a power loss."""
    sqlite_paths.sync(temp)
    fault_points.reach(operation, "synced")
    os.replace(temp, path)
    fault_points.reach(operation, "renamed")
    sqlite_paths.sync(os.path.dirname(os.path.abspath(path)))
    fault_points.reach(operation, "kept")


def discard(temp: str) -> None:
    """Remove a temporary file, and the files that SQLite adds to a database."""
    for suffix in ("", "-journal", "-wal", "-shm", ".queue"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temp + suffix)


def remove_abandoned(folder: str, name: str | None = None) -> int:
    """Remove the temporary files that dead processes left for this name, or for any; return how many."""
    removed = 0
    for path in find_abandoned(folder, name):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
            removed += 1
    return removed


def find_abandoned(folder: str, name: str | None = None) -> list[str]:
    me, found = leases.current_holder(None), []
    for entry in sorted(os.listdir(folder)):
        match = _NAME.search(entry) if entry.startswith("." if name is None else f".{name[:_MAX_NAME]}.") else None
        if match is None or match[1] != _host(me):
            continue
        if msgspec.structs.replace(me, pid=int(match[2]), started=match[3]).is_dead():
            found.append(os.path.join(folder, entry))
    return found


def _host(holder: leases.Holder) -> str:
    return blake2b(f"{holder.host} {holder.namespace}".encode(), digest_size=4).hexdigest()


@contextlib.contextmanager
def translate_errors(path: str) -> Iterator[None]:
    """Raise StoreUnusable in place of an OSError."""
    try:
        yield
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise errors.StoreUnusable(f"{errors.quote(path, 250)} cannot be read or written: {why}.") from error
