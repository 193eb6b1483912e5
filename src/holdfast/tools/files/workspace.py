"""The folders files may be read and written in, and the only way to open a file there.

A path is resolved first, links and all, and has to end below a root. What was resolved is then opened from the root
down, one part after the other, and no part may be a link: a link that somebody puts there after the check is refused
instead of followed. Only ordinary files are opened, and opening never waits for anybody.

Some files are off limits even inside: the program's own. They are known by path and by what they are, so that
another name for one of them does not help. They are not even opened: to close a database that somebody uses is to
drop its locks.
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

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK a pipe waits for a writer; without O_NOCTTY a terminal could become ours.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

# What the kernel shows as files: our own environment, among others.
_KERNEL = ("/proc", "/sys", "/dev")

_NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS)

Identity = tuple[int, int]


class Place(msgspec.Struct, frozen=True):
    """Where a path leads: the root it is below, and the way from there, without links."""

    root: str
    parts: tuple[str, ...]
    base: bool = True
    """Whether the root is the first, where relative paths begin."""

    @property
    def path(self) -> str:
        return os.path.join(self.root, *self.parts)

    @property
    def name(self) -> str:
        """As people and models are told it: from the project's folder where it is in it, and on one line."""
        return plain(os.path.join(*self.parts) if self.parts and self.base else self.path)


class Seen(msgspec.Struct, frozen=True):
    """A file as it was: what it is, how long, when it was changed."""

    identity: Identity
    size: int
    changed: tuple[int, int]
    mode: int
    owner: tuple[int, int]


def seen(found: os.stat_result) -> Seen:
    changed = (found.st_mtime_ns, found.st_ctime_ns)
    mode, owner = stat.S_IMODE(found.st_mode), (found.st_uid, found.st_gid)
    return Seen((found.st_dev, found.st_ino), found.st_size, changed, mode, owner)


def plain(name: str) -> str:
    """A name as one line of text: as it is, or quoted with its odd characters spelled out."""
    return name if name.isprintable() and name == name.strip() else errors.shown(name, 600)


class Workspace:
    """Folders that files may be opened in; the first is where relative paths begin."""

    def __init__(self, roots: Sequence[str], off_limits: Sequence[str] = ()) -> None:
        self.roots = [os.path.realpath(root) for root in roots]
        self._off_limits = [os.path.realpath(path) for path in off_limits]
        # A database has its journals beside it; what stands beside a folder is somebody else's.
        self._beginnings = tuple(
            own.casefold() + end for own in self._off_limits for end in ("/" if os.path.isdir(own) else "/-.")
        )

    def place(self, path: str) -> Place:
        """Where a path leads, if that is inside; ToolFailed where it is not, or is off limits."""
        if not path or "\0" in path:
            raise errors.ToolFailed("That is no path.")
        try:
            real = os.path.realpath(os.path.join(self.roots[0], os.path.expanduser(path)))
            real.encode("utf-8", "surrogateescape")
        except (OSError, ValueError):
            raise errors.ToolFailed("That is no path.") from None
        for number, root in enumerate(self.roots):
            if real == root or real.startswith(root.rstrip(os.sep) + os.sep):
                self._refuse(real, root)
                return Place(root, tuple(os.path.relpath(real, root).split(os.sep)) if real != root else (), not number)
        roots = " and ".join(self.roots)
        raise errors.ToolFailed(f"{errors.shown(path)} is outside of {roots}, where files may be read.")

    def off_limits(self, path: str) -> bool:
        """Whether a real path is one of the program's own, or stands beside one under its name, as journals do."""
        return (path + os.sep).casefold().startswith(self._beginnings)

    def _refuse(self, real: str, root: str) -> None:
        if self.off_limits(real):
            raise errors.ToolFailed("That belongs to Holdfast itself, and is off limits.")
        for kernel in _KERNEL:
            if (real + os.sep).startswith(kernel + os.sep) and not (root + os.sep).startswith(kernel + os.sep):
                raise errors.ToolFailed("That is not an ordinary file.")

    def own(self) -> set[Identity]:
        """What the program's own files are, whatever they are called."""
        found = set[Identity]()
        for path in self._off_limits:
            for name in (path, f"{path}-wal", f"{path}-shm"):
                with suppress(OSError):
                    status = os.stat(name)
                    found.add((status.st_dev, status.st_ino))
        return found

    # --- opening -------------------------------------------------------------------------------------

    @contextmanager
    def folder(self, place: Place, make: bool = False) -> Iterator[int]:
        """A folder, opened from its root down; with `make`, what is missing of it is made."""
        own = self.own()
        with ExitStack() as stack, _told():
            fd = stack.enter_context(_closing(os.open(place.root, FOLDER)))
            for part in place.parts:
                fd = stack.enter_context(_closing(self._next(fd, part, make)))
                status = os.fstat(fd)
                if (status.st_dev, status.st_ino) in own:
                    raise errors.ToolFailed("That belongs to Holdfast itself, and is off limits.")
            yield fd

    def _next(self, fd: int, part: str, make: bool) -> int:
        try:
            return os.open(part, FOLDER, dir_fd=fd)
        except FileNotFoundError:
            if not make:
                raise
        with suppress(FileExistsError):
            os.mkdir(part, dir_fd=fd)
        return os.open(part, FOLDER, dir_fd=fd)

    @contextmanager
    def reading(self, place: Place) -> Iterator[BinaryIO]:
        """An ordinary file, open for reading."""
        if not place.parts:
            raise errors.ToolFailed("That is a folder.")
        with self.folder(_above(place)) as fd, self.opened(fd, place.parts[-1], self.own()) as file:
            yield file

    @contextmanager
    def opened(self, fd: int, name: str, own: set[Identity]) -> Iterator[BinaryIO]:
        """An ordinary file of an open folder, if it is none of the program's own."""
        with _told():
            before = os.stat(name, dir_fd=fd, follow_symlinks=False)
            _refuse_odd(before, own)
            with open(os.open(name, _FILE, dir_fd=fd), "rb") as file:
                _refuse_odd(os.fstat(file.fileno()), own)
                yield file

    # --- writing -------------------------------------------------------------------------------------

    def writable(self, place: Place) -> None:
        """Refuse what is never written."""
        if not place.parts:
            raise errors.ToolFailed("That is a folder.")
        if reason := sensitive_paths.forbidden(place.parts):
            raise errors.NotAllowed(reason)

    def write(self, place: Place, data: bytes, before: Seen | None) -> None:
        """Put a whole file in place, at once. `before` is the one it replaces; None: there must be none yet.

        Never through a link, hard or symbolic: the name is given to a new file, which has the mode of the old one.
        """
        self.writable(place)
        with self.folder(_above(place), make=before is None) as fd, _told():
            name, draft = place.parts[-1], f".holdfast-{secrets.token_hex(8)}.tmp"
            try:
                _drafted(fd, draft, data, before)
                _settle(fd, draft, name, before)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(draft, dir_fd=fd)


def _above(place: Place) -> Place:
    return msgspec.structs.replace(place, parts=place.parts[:-1])


def _drafted(fd: int, draft: str, data: bytes, before: Seen | None) -> None:
    with open(os.open(draft, _NEW, 0o666, dir_fd=fd), "wb") as file:
        file.write(data)
        if before is not None:
            made = os.fstat(file.fileno())
            if (made.st_uid, made.st_gid) != before.owner:
                with suppress(PermissionError):
                    os.fchown(file.fileno(), *before.owner)
            # What a file may do as somebody else was not given to what is in it now.
            os.fchmod(file.fileno(), before.mode & 0o777)


def _settle(fd: int, draft: str, name: str, before: Seen | None) -> None:
    try:
        there = seen(os.stat(name, dir_fd=fd, follow_symlinks=False))
    except FileNotFoundError:
        there = None
    if there != before:
        raise errors.ToolFailed("The file was changed by somebody else meanwhile; nothing was written. Read it again.")
    if before is None:
        try:
            # Unlike a rename, it fails where somebody was quicker.
            os.link(draft, name, src_dir_fd=fd, dst_dir_fd=fd, follow_symlinks=False)
            return
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
    os.rename(draft, name, src_dir_fd=fd, dst_dir_fd=fd)


def _refuse_odd(found: os.stat_result, own: set[Identity]) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise errors.ToolFailed("That is a folder.")
    if stat.S_ISLNK(found.st_mode):
        raise OSError(errno.ELOOP, "")
    if not stat.S_ISREG(found.st_mode):
        raise errors.ToolFailed("That is not an ordinary file.")
    if (found.st_dev, found.st_ino) in own:
        raise errors.ToolFailed("That belongs to Holdfast itself, and is off limits.")


@contextmanager
def _closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _told() -> Iterator[None]:
    """What the system says against it, as a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise errors.ToolFailed("There is a link where there was none when it was looked for.") from None
        if error.errno == errno.ENXIO:
            raise errors.ToolFailed("That is not an ordinary file.") from None
        raise errors.ToolFailed(f"It cannot be opened: {error.strerror or error}.") from None
