"""Every file of a workspace, folder by folder, without following links and without what the project wants left out."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec

from holdfast import errors
from holdfast.tools import worker_thread
from holdfast.tools.files import gitignore, workspace

MOST = 300_000
DEPTH = 60
_RULES = 1_000_000


class Found(msgspec.Struct, frozen=True):
    """A file, and the open folder it is in, which is closed when the next one is asked for."""

    place: workspace.Place
    folder: int
    changed: float


class Walk:
    """One walk, with an end: so many files, so many seconds, or as soon as nobody waits for it."""

    def __init__(self, where: workspace.Workspace, everything: bool, seconds: float, stop: worker_thread.Stop) -> None:
        self._where, self._everything, self._stop = where, everything, stop
        self._until = time.monotonic() + seconds
        self._visited = 0
        self.cut = ""
        """Why it ended early; empty where it did not."""
        self.own = where.own()

    def over(self) -> bool:
        """Whether it has to end here."""
        if not self.cut and (self._stop() or time.monotonic() > self._until):
            self.cut = "there was no more time"
        return bool(self.cut)

    def files(self, start: workspace.Place) -> Iterator[Found]:
        """The ordinary files at or below a place."""
        with self._where.folder(start) as fd:
            # Rules of the folders above hold here, too.
            known = [self._rules_above(start, depth) for depth in range(len(start.parts))]
            yield from self._below(start, fd, [rules for rules in known if rules.rules])

    def _rules_above(self, start: workspace.Place, depth: int) -> gitignore.Rules:
        above = msgspec.structs.replace(start, parts=start.parts[:depth])
        with self._where.folder(above) as fd:
            return self._rules(fd, depth)

    def _below(self, here: workspace.Place, fd: int, known: Sequence[gitignore.Rules]) -> Iterator[Found]:
        rules = self._rules(fd, len(here.parts))
        known = [*known, rules] if rules.rules else known
        for entry in self._entries(fd):
            place = msgspec.structs.replace(here, parts=(*here.parts, entry.name))
            status = self._wanted(entry, place, known)
            if status is None:
                continue
            if stat.S_ISREG(status.st_mode):
                yield Found(place, fd, status.st_mtime)
            elif len(place.parts) < DEPTH:
                yield from self._folder(place, fd, known)
            else:
                self.cut = self.cut or f"there are more than {DEPTH} folders in each other"

    def _entries(self, fd: int) -> Iterator[os.DirEntry[str]]:
        with suppress(OSError), os.scandir(fd) as entries:
            for entry in entries:
                self._visited += 1
                if self._visited > MOST:
                    self.cut = self.cut or f"there are more than {MOST:,} files"
                if self.over():
                    return
                yield entry

    def _wanted(
        self, entry: os.DirEntry[str], place: workspace.Place, known: Sequence[gitignore.Rules]
    ) -> os.stat_result | None:
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            return None
        folder = stat.S_ISDIR(status.st_mode)
        if not folder and not stat.S_ISREG(status.st_mode):
            return None
        if (status.st_dev, status.st_ino) in self.own or self._where.off_limits(place.path):
            return None
        if self._everything:
            return None if entry.name == ".git" else status
        return None if gitignore.left_out(place.parts, folder, known) else status

    def _folder(self, place: workspace.Place, fd: int, known: Sequence[gitignore.Rules]) -> Iterator[Found]:
        try:
            below = os.open(place.parts[-1], workspace.FOLDER, dir_fd=fd)
        except OSError:
            return
        try:
            yield from self._below(place, below, known)
        finally:
            os.close(below)

    def _rules(self, fd: int, depth: int) -> gitignore.Rules:
        found = list[gitignore.Rule]()
        for name in () if self._everything else gitignore.FILES:
            with suppress(errors.ToolFailed), self._where.opened(fd, name, self.own) as file:
                found += gitignore.read(file.read(_RULES).decode("utf-8", "replace"), depth).rules
        return gitignore.Rules(depth, tuple(found))
