"""Where a store may live: whose directory it is, what file system it is on, and with what modes.

Nothing here opens the database file: closing any descriptor of it would cancel the locks SQLite holds
on it in this process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from holdfast import errors, file_modes

# POSIX locks and shared memory do not work reliably across these.
NETWORK = re.compile(
    r"^(nfs\d*|cifs|smb\d*|smbfs|afs|afpfs|9p|ncpfs|webdav|davfs2?|coda|ceph|lustre|gpfs|glusterfs|beegfs"
    r"|orangefs|ocfs2|gfs2|fuse\.(sshfs|s3fs|gcsfuse|rclone|davfs2?|glusterfs|ceph.*|curlftpfs|mergerfs-nfs))$"
)

# Files that a connection to a store opens: database, log, -shm, the folder of each while it is made, and the queue.
DESCRIPTORS = 6
EXHAUSTED = (errno.EMFILE, errno.ENFILE)

# Bytes: more than any one file that SQLite makes beside a store needs to be opened.
PROBE = 64 * 1024

# What a store itself keeps under its own name.
_OWN = re.compile(r"$|-wal$|-shm$|-journal$|\.queue$|\.search|\.blobs")


def named(target: str) -> str:
    """The file a store is in, as it was named."""
    if not target or "\0" in target:
        raise errors.StoreUnusable("The store needs the path of a file.")
    # SQLite puts its -wal beside the file a link leads to, and so must every look at it.
    return os.path.realpath(target)


def prepare(path: str) -> None:
    """Make the directory and the file if they are not there, or refuse the place with a reason."""
    folder = os.path.dirname(path) or "."
    try:
        make(folder)
        if os.path.isdir(path):
            raise errors.StoreUnusable(f"{path} is a directory; name a file in it.")
        refuse_shared(folder)
        refuse_network(folder)
        _create(path)
    except OSError as error:
        if error.errno in EXHAUSTED:
            raise too_many_files(path) from error
        raise errors.StoreUnusable(f"{path} cannot hold a store: {error.strerror}.") from error


def make(folder: str) -> None:
    # Not makedirs: it gives the folders in between whatever mode the umask allows.
    if not os.path.isdir(folder):
        make(os.path.dirname(folder) or ".")
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)


def refuse_shared(folder: str) -> None:
    found = os.stat(folder)
    if file_modes.is_shared(found):
        raise errors.StoreUnusable(
            f"Others may write to the directory {folder} (mode {stat.S_IMODE(found.st_mode):04o}). "
            f"Use a directory of your own, or run: chmod go-w {folder}"
        )


def refuse_own(store: str, target: str) -> None:
    """A copy must not take the place of a file of the store it is made from."""
    if _OWN.match(target.removeprefix(store)):
        raise errors.CopyRefused(f"{errors.shown(target, 250)} belongs to the store itself; name another file.")


def refuse_network(folder: str) -> None:
    kind = filesystem(os.path.realpath(folder))
    if NETWORK.match(kind):
        raise errors.StoreUnusable(
            f"{folder} is on a network file system ({kind}), where SQLite's locks cannot be trusted. "
            "Use a local disk, or a PostgreSQL server for several hosts."
        )


def _create(path: str) -> None:
    try:
        # SQLite gives its -wal and -shm files the mode of the database file.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            raise errors.StoreUnusable(f"{path} is not a regular file.") from None


def tighten(paths: Iterable[str]) -> None:
    """Files of ours that somebody made readable to others, or brought along so, are ours alone again."""
    for path in paths if os.name == "posix" else ():
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(path)
            if found.st_mode & 0o077 and found.st_uid == os.geteuid():
                os.chmod(path, 0o600)


def inode(path: str) -> tuple[int, ...]:
    """The number of the file at a path and of its device; empty when there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_ino, found.st_dev


def refuse_strange_log(path: str, opened: Sequence[int]) -> None:
    """Another file with the log of the one before: SQLite would write the old pages into the new file.

    `opened` begins with the inodes of the file and its log, as they were when they were opened.
    """
    now, log = inode(path), inode(f"{path}-wal")
    if opened and now and log and opened[:2] != now and opened[2:4] == log:
        raise errors.StoreMoved(
            f"{path} was replaced while it was open, and {path}-wal still belongs to the file before; nothing was "
            "acknowledged. Close every program that uses the store and remove that log."
        )


def too_many_files(path: str) -> errors.StoreError:
    return errors.StoreError(
        f"{path} cannot be opened: this process has too many open files. Close some, or raise the limit (`ulimit -n`)."
    )


@contextlib.contextmanager
def opening(path: str) -> Iterator[None]:
    """What the system refuses while a store is opened, as an error of ours."""
    try:
        yield
    except OSError as error:
        if error.errno in EXHAUSTED:
            raise too_many_files(path) from error
        raise errors.StoreUnusable(f"{path} cannot be opened: {error.strerror}.") from error


def out_of_files() -> bool:
    """Whether this process cannot open as many more files as a connection to a store needs. Tried, as for `full`."""
    opened: list[int] = []
    try:
        while len(opened) < DESCRIPTORS:
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno in EXHAUSTED
    finally:
        for fd in opened:
            os.close(fd)
    return False


def read_only(path: str) -> str:
    """Why nothing can be written to a store that is there; empty when it can be, or there is none."""
    folder = os.path.dirname(path) or "."
    if not os.path.isfile(path) or not os.access(path, os.R_OK):
        return ""
    for place in (path, folder):
        if not os.access(place, os.W_OK):
            mounted = hasattr(os, "statvfs") and os.statvfs(place).f_flag & os.ST_RDONLY
            return "the file system is read-only" if mounted else f"no permission to write to {place}"
    return ""


def full(folder: str) -> bool:
    """Whether nothing more can be written there. Tried, as no figure of the system tells of every quota."""
    probe = os.path.join(folder or ".", f".holdfast-{os.getpid()}-{threading.get_ident()}")
    try:
        fd = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.unlink(probe)
            _fill(fd, PROBE)
        finally:
            os.close(fd)
    except OSError as error:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return False


def _fill(fd: int, size: int) -> None:
    """As much as this: the last few bytes of a disk are taken, and only the next are refused."""
    while size > 0:
        size -= os.write(fd, bytes(size))
    os.fsync(fd)


def filesystem(folder: str) -> str:
    """The kind of file system a folder is on, as the system names it; empty when it cannot be told."""
    try:
        if sys.platform == "linux":
            with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
                return from_mountinfo(file.read(), folder)
        if sys.platform == "darwin":
            table = subprocess.run(["/sbin/mount"], capture_output=True, text=True, timeout=5, check=False)
            return from_mount(table.stdout, folder)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ""


def from_mountinfo(text: str, folder: str) -> str:
    """The last mount over the longest path wins, as the kernel sees it."""
    best, kind = -1, ""
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, behind = before.split(" "), after.split(" ")
        if len(fields) < 5 or not behind[0]:
            continue
        point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
        if _within(folder, point) and len(point) >= best:
            best, kind = len(point), behind[0]
    return kind


def from_mount(text: str, folder: str) -> str:
    """The same from the output of mount(8) on macOS: `/dev/disk1s1 on /path (apfs, local, …)`."""
    best, kind = -1, ""
    for source_point, kinds in re.findall(r"^.+? on (.+) \((\w+)[,)]", text, re.MULTILINE):
        if _within(folder, source_point) and len(source_point) >= best:
            best, kind = len(source_point), kinds
    return kind


def _within(folder: str, point: str) -> bool:
    return folder == point or folder.startswith(point.rstrip("/") + "/")


def size_and_mode(path: str) -> dict[str, Any] | None:
    """Of a file that may not be there."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return {"bytes": found.st_size, "mode": f"{found.st_mode & 0o7777:04o}"}
