"""Files on their way: written under another name, synced, and only then renamed to what they are called.

Killed anywhere, a process leaves the file that was there before, or the new one, and perhaps a draft.
The name of a draft says whose it is, so that the next writer removes those of dead processes and no others.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from hashlib import blake2b

import msgspec

from holdfast import errors
from holdfast.store import fault_points, leases
from holdfast.store.sqlite import paths as sqlite_paths

_NAME = re.compile(r"\.([0-9a-f]{8})-(\d+)-(\d*)-[0-9a-f]+\.draft(-\w+|\.queue)?$")


@contextlib.contextmanager
def draft(path: str, operation: str) -> Iterator[str]:
    """An empty file to write to; when the block ends well, it is in the place of `path`, whole and synced."""
    folder, name = os.path.split(os.path.abspath(path))
    with saying(path):
        prepare(folder)
        temp = new(folder, name)
    try:
        yield temp
        with saying(path):
            put(temp, path, operation)
    except BaseException:
        discard(temp)
        raise


@contextlib.contextmanager
def scratch(path: str) -> Iterator[str]:
    """An empty file beside `path` that is gone when the block ends."""
    folder, name = os.path.split(os.path.abspath(path))
    with saying(path):
        temp = new(folder, name)
    try:
        yield temp
    finally:
        discard(temp)


def prepare(folder: str) -> None:
    """A folder that is there, and that nobody else may write to."""
    sqlite_paths.make(folder)
    sqlite_paths.refuse_shared(folder)


def new(folder: str, name: str) -> str:
    """An empty draft of a name, ours alone; drafts of it that dead processes left are removed."""
    sweep(folder, name)
    me = leases.this_process(None)
    temp = os.path.join(folder, f".{name}.{_host(me)}-{me.pid}-{me.started}-{me.nonce}.draft")
    os.close(os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    return temp


def put(temp: str, path: str, operation: str) -> None:
    """The draft becomes the file, and stays it through a power loss."""
    sync(temp)
    fault_points.reach(operation, "synced")
    os.replace(temp, path)
    fault_points.reach(operation, "renamed")
    sync(os.path.dirname(os.path.abspath(path)))
    fault_points.reach(operation, "kept")


def sync(path: str) -> None:
    if os.name != "posix" and os.path.isdir(path):
        return  # There a folder cannot be synced.
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def discard(temp: str) -> None:
    """A draft and whatever a database keeps beside it."""
    for suffix in ("", "-journal", "-wal", "-shm", ".queue"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temp + suffix)


def sweep(folder: str, name: str | None = None) -> int:
    """Remove drafts of this name, or of any, whose writers are dead; how many."""
    removed = 0
    for path in left(folder, name):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
            removed += 1
    return removed


def left(folder: str, name: str | None = None) -> list[str]:
    """Drafts of this name, or of any, whose writers are dead."""
    me, found = leases.this_process(None), []
    for entry in sorted(os.listdir(folder)):
        named = _NAME.search(entry) if entry.startswith("." if name is None else f".{name}.") else None
        if named is None or named[1] != _host(me):
            continue
        if msgspec.structs.replace(me, pid=int(named[2]), started=named[3]).is_dead():
            found.append(os.path.join(folder, entry))
    return found


def _host(holder: leases.Holder) -> str:
    return blake2b(f"{holder.host} {holder.namespace}".encode(), digest_size=4).hexdigest()


@contextlib.contextmanager
def saying(path: str) -> Iterator[None]:
    """What the system says of a file, as an error of ours."""
    try:
        yield
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise errors.StoreUnusable(f"{errors.shown(path, 250)} cannot be read or written: {why}.") from error
