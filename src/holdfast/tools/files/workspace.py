"""The folders in which files may be read and written, and the only way to open a file there.

A path is resolved first, including links, and must end below a root. The resolved path is then opened from the root
down, one component at a time, and no component may be a link: a link that another process creates after the check is
refused, not followed. Only regular files are opened, and opening never blocks.

The program's own files are off limits even inside a root. They are recognised by path and by inode, so a hard link to
one of them does not help. They are not even opened: SQLite loses its POSIX locks when any descriptor of a database
file is closed.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import BinaryIO

import msgspec

from holdfast import errors
from holdfast.tools.permissions import sensitive_paths

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a pipe waits for a writer; without O_NOCTTY, a terminal could become the controlling one.
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

# Virtual files of the kernel, such as the environment of this process.
_KERNEL = ("/proc", "/sys", "/dev")

_NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS)

Identity = tuple[int, int]
"""Device and inode number."""

CHANGED = "The file was changed by another program; nothing was written. Read it again."
OFF_LIMITS = "This file belongs to Holdfast itself and is off limits."
NOT_A_FILE = "This is not a regular file."
IS_A_FOLDER = "This is a folder."


class WorkspacePath(msgspec.Struct, frozen=True):
    """A resolved path: its root and its components below the root, without links."""

    root: str
    parts: tuple[str, ...]
    in_first_root: bool = True
    """Whether the root is the first one, from which relative paths start."""

    @property
    def path(self) -> str:
        return os.path.join(self.root, *self.parts)

    @property
    def name(self) -> str:
        """The path for display, on one line: relative in the first root, absolute elsewhere."""
        return quote_name(os.path.join(*self.parts) if self.parts and self.in_first_root else self.path)


class FileVersion(msgspec.Struct, frozen=True):
    """Identifies one version of a file: its inode, size, times, mode and owner."""

    identity: Identity
    size: int
    times: tuple[int, int]
    mode: int
    owner: tuple[int, int]


def file_version(found: os.stat_result) -> FileVersion:
    times = (found.st_mtime_ns, found.st_ctime_ns)
    mode, owner = stat.S_IMODE(found.st_mode), (found.st_uid, found.st_gid)
    return FileVersion((found.st_dev, found.st_ino), found.st_size, times, mode, owner)


def quote_name(name: str) -> str:
    """Return a name as one line of text: unchanged, or quoted with escapes if it has unprintable characters."""
    return name if name.isprintable() and name == name.strip() else errors.quote(name, 600)


class Workspace:
    """The folders in which files may be opened; relative paths start at the first."""

    def __init__(self, roots: Sequence[str], off_limits: Sequence[str] = ()) -> None:
        self.roots = [os.path.realpath(root) for root in roots]
        self._off_limits = [os.path.realpath(path) for path in off_limits]
        # The journals of a database are in the same folder and have its name as a prefix.
        self._own_prefixes = tuple(
            own.casefold() + end for own in self._off_limits for end in ("/" if os.path.isdir(own) else "/-.")
        )

    def resolve(self, path: str) -> WorkspacePath:
        """Resolve a path. Raise ToolFailed if it is outside of the roots or off limits."""
        if not path or "\0" in path:
            raise errors.ToolFailed("Invalid path.")
        try:
            real = os.path.realpath(os.path.join(self.roots[0], os.path.expanduser(path)))
            real.encode("utf-8", "surrogateescape")
        except (OSError, ValueError):
            raise errors.ToolFailed("Invalid path.") from None
        for number, root in enumerate(self.roots):
            if real == root or real.startswith(root.rstrip(os.sep) + os.sep):
                self._refuse(real, root)
                parts = tuple(os.path.relpath(real, root).split(os.sep)) if real != root else ()
                return WorkspacePath(root, parts, in_first_root=not number)
        roots = " and ".join(self.roots)
        raise errors.ToolFailed(f"{errors.quote(path)} is outside of the workspace ({roots}).")

    def is_off_limits(self, path: str) -> bool:
        """Return whether a real path is one of the program's own files, or a journal of one."""
        return (path + os.sep).casefold().startswith(self._own_prefixes)

    def _refuse(self, real: str, root: str) -> None:
        if self.is_off_limits(real):
            raise errors.ToolFailed(OFF_LIMITS)
        for kernel in _KERNEL:
            if (real + os.sep).startswith(kernel + os.sep) and not (root + os.sep).startswith(kernel + os.sep):
                raise errors.ToolFailed(NOT_A_FILE)

    def own_files(self) -> set[Identity]:
        """Return the device and inode numbers of the program's own files."""
        found = set[Identity]()
        for path in self._off_limits:
            for name in (path, f"{path}-wal", f"{path}-shm"):
                with suppress(OSError):
                    status = os.stat(name)
                    found.add((status.st_dev, status.st_ino))
        return found

    # --- opening -------------------------------------------------------------------------------------

    @contextmanager
    def open_folder(self, path: WorkspacePath, create: bool = False) -> Iterator[int]:
        """Open a folder, from its root down. With `create`, missing folders are created."""
        own = self.own_files()
        with ExitStack() as stack, _translate_errors():
            fd = stack.enter_context(_closing(os.open(path.root, FOLDER_FLAGS)))
            for part in path.parts:
                fd = stack.enter_context(_closing(self._open_child(fd, part, create)))
                status = os.fstat(fd)
                if (status.st_dev, status.st_ino) in own:
                    raise errors.ToolFailed(OFF_LIMITS)
            yield fd

    def _open_child(self, fd: int, part: str, create: bool) -> int:
        try:
            return os.open(part, FOLDER_FLAGS, dir_fd=fd)
        except FileNotFoundError:
            if not create:
                raise
        with suppress(FileExistsError):
            os.mkdir(part, dir_fd=fd)
        return os.open(part, FOLDER_FLAGS, dir_fd=fd)

    @contextmanager
    def open_file(self, path: WorkspacePath) -> Iterator[BinaryIO]:
        """Open a regular file for reading."""
        if not path.parts:
            raise errors.ToolFailed(IS_A_FOLDER)
        with self.open_folder(_parent(path)) as fd, self.open_in(fd, path.parts[-1], self.own_files()) as file:
            yield file

    @contextmanager
    def open_in(self, fd: int, name: str, own: set[Identity]) -> Iterator[BinaryIO]:
        """Open a regular file of an open folder, unless it is one of the program's own."""
        with _translate_errors():
            before = os.stat(name, dir_fd=fd, follow_symlinks=False)
            _check_regular(before, own)
            with open(os.open(name, _FILE_FLAGS, dir_fd=fd), "rb") as file:
                _check_regular(os.fstat(file.fileno()), own)
                yield file

    # --- writing -------------------------------------------------------------------------------------

    def check_writable(self, path: WorkspacePath) -> None:
        """Raise an error for files that are never written."""
        if not path.parts:
            raise errors.ToolFailed(IS_A_FOLDER)
        if reason := sensitive_paths.forbidden(path.parts):
            raise errors.NotAllowed(reason)

    def write(self, path: WorkspacePath, data: bytes, before: FileVersion | None) -> None:
        """Write a file atomically. `before` is the version that it replaces; None: the file must not exist yet.

        Never through a link, hard or symbolic: a new file with the mode of the old one takes its name.
        """
        self.check_writable(path)
        with self.open_folder(_parent(path), create=before is None) as fd, _translate_errors():
            name, draft = path.parts[-1], f".holdfast-{secrets.token_hex(8)}.tmp"
            try:
                _write_draft(fd, draft, data, before)
                _publish_draft(fd, draft, name, before)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(draft, dir_fd=fd)


def _parent(path: WorkspacePath) -> WorkspacePath:
    return msgspec.structs.replace(path, parts=path.parts[:-1])


def _write_draft(fd: int, draft: str, data: bytes, before: FileVersion | None) -> None:
    with open(os.open(draft, _NEW_FLAGS, 0o666, dir_fd=fd), "wb") as file:
        file.write(data)
        if before is not None:
            made = os.fstat(file.fileno())
            if (made.st_uid, made.st_gid) != before.owner:
                with suppress(PermissionError):
                    os.fchown(file.fileno(), *before.owner)
            # Set-user-id and set-group-id bits were not granted to the new content.
            os.fchmod(file.fileno(), before.mode & 0o777)


def _publish_draft(fd: int, draft: str, name: str, before: FileVersion | None) -> None:
    try:
        there = file_version(os.stat(name, dir_fd=fd, follow_symlinks=False))
    except FileNotFoundError:
        there = None
    if there != before:
        raise errors.ToolFailed(CHANGED)
    if before is None:
        try:
            # Unlike rename, link fails if another process has created the file.
            os.link(draft, name, src_dir_fd=fd, dst_dir_fd=fd, follow_symlinks=False)
            return
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
    os.rename(draft, name, src_dir_fd=fd, dst_dir_fd=fd)


def _check_regular(found: os.stat_result, own: set[Identity]) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise errors.ToolFailed(IS_A_FOLDER)
    if stat.S_ISLNK(found.st_mode):
        raise OSError(errno.ELOOP, "")
    if not stat.S_ISREG(found.st_mode):
        raise errors.ToolFailed(NOT_A_FILE)
    if (found.st_dev, found.st_ino) in own:
        raise errors.ToolFailed(OFF_LIMITS)


@contextmanager
def _closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Raise operating system errors as ToolFailed."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise errors.ToolFailed("The path became a link after it was checked.") from None
        if error.errno == errno.ENXIO:
            raise errors.ToolFailed(NOT_A_FILE) from None
        raise errors.ToolFailed(f"The file cannot be opened: {error.strerror or error}.") from None
