"""Checks of the path of a SQLite store: directory, file system, modes, inodes and free space.

Nothing here opens the database file: closing any descriptor of it would cancel the POSIX locks that SQLite holds on it
in this process.
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
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from holdfast import errors, file_modes

# File systems on which POSIX locks and shared memory are not reliable.
NETWORK_FILESYSTEMS = re.compile(
    r"^(nfs\d*|cifs|smb\d*|smbfs|afs|afpfs|9p|ncpfs|webdav|davfs2?|coda|ceph|lustre|gpfs|glusterfs|beegfs"
    r"|orangefs|ocfs2|gfs2|fuse\.(sshfs|s3fs|gcsfuse|rclone|davfs2?|glusterfs|ceph.*|curlftpfs|mergerfs-nfs))$"
)

# Descriptors that opening a store needs: database, WAL, -shm, the directory of each while it is created, queue.
DESCRIPTORS = 6
EXHAUSTED = (errno.EMFILE, errno.ENFILE)

# More than SQLite needs to create any of its files.
PROBE_BYTES = 64 * 1024

# Suffixes of the files that belong to a store.
_OWN = re.compile(r"$|-wal$|-shm$|-journal$|\.queue$|\.search|\.blobs")


def resolve(target: str) -> str:
    if not target or "\0" in target:
        raise errors.StoreUnusable("`target` must be a file path or a postgresql:// address.")
    # SQLite resolves symbolic links before it names the -wal file.
    return os.path.realpath(target)


def create_file(path: str) -> None:
    """Create the directory and the file if they are missing, or raise StoreUnusable with the reason."""
    folder = os.path.dirname(path) or "."
    with translate_open_errors(path, "cannot hold a store"):
        make_directory(folder)
        if os.path.isdir(path):
            raise errors.StoreUnusable(f"{path} is a directory; name a file in it.")
        check_not_shared(folder)
        check_not_on_network(folder)
        try:
            # SQLite gives its -wal and -shm files the mode of the database file.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            if not os.path.isfile(path):
                raise errors.StoreUnusable(f"{path} is not a regular file.") from None


def make_directory(folder: str) -> None:
    """Create a directory and its parents with mode 0700; os.makedirs creates parents with the mode of the umask."""
    if not os.path.isdir(folder):
        make_directory(os.path.dirname(folder) or ".")
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)


def sync(path: str) -> None:
    """Sync a file or a folder to disk."""
    if os.name != "posix" and os.path.isdir(path):
        return  # Windows cannot sync a folder.
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def check_not_shared(folder: str) -> None:
    found = os.stat(folder)
    if file_modes.is_writable_by_others(found):
        raise errors.StoreUnusable(
            f"Other users may write to the directory {folder} (mode {stat.S_IMODE(found.st_mode):04o}). "
            f"Use a directory of your own, or run: chmod go-w {folder}"
        )


def check_not_own_file(store: str, target: str) -> None:
    """Refuse to write a copy over a file of the store it is made from."""
    if _OWN.match(target.removeprefix(store)):
        raise errors.CopyRefused(f"{errors.quote(target, 250)} belongs to the store itself; name another file.")


def check_not_on_network(folder: str) -> None:
    kind = filesystem(os.path.realpath(folder))
    if NETWORK_FILESYSTEMS.match(kind):
        raise errors.StoreUnusable(
            f"{folder} is on a network file system ({kind}), where SQLite's locks cannot be trusted. "
            "Use a local disk, or a PostgreSQL server for several hosts."
        )


def restrict_permissions(paths: Iterable[str]) -> None:
    """Remove the permissions of group and others from files of this user."""
    for path in paths if os.name == "posix" else ():
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(path)
            if found.st_mode & 0o077 and found.st_uid == os.geteuid():
                os.chmod(path, 0o600)


Inode = tuple[int, ...]  # inode and device; empty if there is no file


class Inodes(NamedTuple):
    """The files of a store."""

    main: Inode
    wal: Inode
    shm: Inode


def inode(path: str) -> Inode:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_ino, found.st_dev


def check_no_former_wal(path: str, opened: Inodes | None) -> None:
    """Refuse a new database file with the WAL of the former one: SQLite would write old pages into the new file."""
    main, wal = inode(path), inode(f"{path}-wal")
    if opened and main and wal and opened.main != main and opened.wal == wal:
        raise errors.StoreMoved(
            f"{path} was replaced while it was open, and {path}-wal still belongs to the former file; nothing was "
            "acknowledged. Close every program that uses the store and remove that WAL."
        )


def too_many_files(path: str) -> errors.StoreError:
    return errors.StoreError(
        f"{path} cannot be opened: this process has too many open files. Close some, or raise the limit (`ulimit -n`)."
    )


@contextlib.contextmanager
def translate_open_errors(path: str, problem: str = "cannot be opened") -> Iterator[None]:
    """Translate errors of the operating system while a store is opened."""
    try:
        yield
    except OSError as error:
        if error.errno in EXHAUSTED:
            raise too_many_files(path) from error
        raise errors.StoreUnusable(f"{path} {problem}: {error.strerror}.") from error


def is_out_of_descriptors() -> bool:
    """Return whether this process cannot open the files of another connection, by trying to open as many."""
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


def read_only_reason(path: str) -> str:
    """Return why an existing store cannot be written; empty if it can be, or does not exist."""
    folder = os.path.dirname(path) or "."
    if not os.path.isfile(path) or not os.access(path, os.R_OK):
        return ""
    for place in (path, folder):
        if not os.access(place, os.W_OK):
            mounted = hasattr(os, "statvfs") and os.statvfs(place).f_flag & os.ST_RDONLY
            return "the file system is read-only" if mounted else f"no permission to write to {place}"
    return ""


def is_full(folder: str) -> bool:
    """Return whether the disk or a quota is full, by writing a file: statvfs does not cover every quota."""
    probe = os.path.join(folder or ".", f".holdfast-{os.getpid()}-{threading.get_ident()}")
    try:
        fd = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.unlink(probe)
            _fill(fd, PROBE_BYTES)
        finally:
            os.close(fd)
    except OSError as error:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return False


def _fill(fd: int, size: int) -> None:
    """Write this many bytes: a full disk may accept the first few."""
    while size > 0:
        size -= os.write(fd, bytes(size))
    os.fsync(fd)


def filesystem(folder: str) -> str:
    """Return the type of the file system, as the system names it; empty if unknown."""
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
    """Parse /proc/self/mountinfo, which escapes some characters of a path in octal."""
    mounts = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")[0]
        if len(fields) >= 5:
            mounts.append((re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), fields[4]), kind))
    return _innermost(mounts, folder)


def from_mount(text: str, folder: str) -> str:
    """Parse the output of mount(8) on macOS: `/dev/disk1s1 on /path (apfs, local, …)`."""
    return _innermost(re.findall(r"^.+? on (.+) \((\w+)[,)]", text, re.MULTILINE), folder)


def _innermost(mounts: Iterable[tuple[str, str]], folder: str) -> str:
    """Return the type of the last mount with the longest matching path, as the kernel resolves it."""
    best, found = "", ""
    for point, kind in mounts:
        if kind and len(point) >= len(best) and f"{folder}/".startswith(point.rstrip("/") + "/"):
            best, found = point, kind
    return found


def size_and_mode(path: str) -> dict[str, Any] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return {"bytes": found.st_size, "mode": f"{found.st_mode & 0o7777:04o}"}
