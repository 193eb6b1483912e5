"""The tools find_files and search_files, and the bounded walk over a workspace that both use."""

from __future__ import annotations

import heapq
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, BinaryIO

import msgspec
import regex  # type: ignore[import-untyped]

from holdfast import errors, types
from holdfast.tools import base, worker_thread
from holdfast.tools.files import gitignore, workspace
from holdfast.tools.permissions import sensitive_paths

MAX_FILES_SHOWN = 100
MAX_LINES_SHOWN = 100
MAX_LINE_WIDTH = 300
MAX_PATTERN_LENGTH = 1_000
MAX_FILES_VISITED = 300_000
MAX_DEPTH = 60
MAX_IGNORE_FILE_BYTES = 1_000_000
TIMEOUT_SECONDS = 20.0
BLOCK_BYTES = 1 << 20

_LOCATION = {
    "folder": {"type": "string", "description": "Where to look; the whole project by default."},
    "include_ignored": {"type": "boolean", "description": "Also look at files that .gitignore excludes."},
}

_FIND_SPEC = types.ToolSpec(
    "find_files",
    "Find files of the project by name, newest first. Files that .gitignore excludes are skipped.",
    {
        "type": "object",
        "properties": {
            "pattern": {
                "type": "string",
                "description": "Such as *.py (at any depth), src/**/*.{js,ts} or **/test_*; * for all.",
            },
            **_LOCATION,
        },
        "required": ["pattern"],
    },
)

_SEARCH_SPEC = types.ToolSpec(
    "search_files",
    "Search the contents of the project's files, line by line. Results are path:line: text. Files that .gitignore "
    "excludes, binary files and files that hold secrets are skipped.",
    {
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "The text to search for."},
            "regex": {"type": "boolean", "description": "Treat `text` as a regular expression (Python syntax)."},
            "any_case": {"type": "boolean", "description": "Ignore case."},
            "files": {"type": "string", "description": "Only search files that match this pattern, such as *.py."},
            **_LOCATION,
        },
        "required": ["text"],
    },
)


def find_files(space: workspace.Workspace) -> base.Tool:
    """Build the tool that finds files by name."""

    async def run(arguments: base.Arguments) -> types.Content:
        query = _parse_query(space, arguments, arguments["pattern"])
        return await worker_thread.run_in_thread(lambda stop: _find(space, query, stop))

    return base.Tool(_FIND_SPEC, run, parallel=True)


def search_files(space: workspace.Workspace) -> base.Tool:
    """Build the tool that searches the contents of files."""

    async def run(arguments: base.Arguments) -> types.Content:
        text = arguments["text"]
        if not text or len(text) > MAX_PATTERN_LENGTH or "\n" in text:
            raise errors.ToolFailed(
                f"`text` must be one line of 1 to {MAX_PATTERN_LENGTH:,} characters: files are searched line by line."
            )
        pattern = text if arguments.get("regex", False) else regex.escape(text, special_only=True)
        matcher = LineMatcher(pattern, arguments.get("any_case", False))
        query = _parse_query(space, arguments, arguments.get("files") or "*")

        def search(stop: worker_thread.Stop) -> str:
            found = _Search(space, Walk(space, query.include_ignored, TIMEOUT_SECONDS, stop), matcher)
            for file in query.matching(found.walk):
                found.search_file(file)
            return found.report()

        return await worker_thread.run_in_thread(search)

    return base.Tool(_SEARCH_SPEC, run, parallel=True)


class _Query(msgspec.Struct, frozen=True):
    start: workspace.WorkspacePath
    include_ignored: bool
    matches: gitignore.Matcher
    """Whether a file is wanted, by its path below the start."""
    hidden: Callable[[str], bool]

    def matching(self, walk: Walk) -> Iterator[WalkedFile]:
        depth = len(self.start.parts)
        for file in walk.files(self.start):
            if self.matches("/".join(file.path.parts[depth:])) and not self.hidden(file.path.path):
                yield file


def _parse_query(space: workspace.Workspace, arguments: base.Arguments, pattern: str) -> _Query:
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise errors.ToolFailed(f"A pattern has at most {MAX_PATTERN_LENGTH:,} characters.")
    start = space.resolve(arguments.get("folder") or ".")
    ignored = arguments.get("include_ignored", False)
    return _Query(start, ignored, gitignore.glob(pattern), base.current().hidden)


def _find(space: workspace.Workspace, query: _Query, stop: worker_thread.Stop) -> str:
    walk = Walk(space, query.include_ignored, TIMEOUT_SECONDS, stop)
    count, newest = 0, list[tuple[float, int, str]]()
    for file in query.matching(walk):
        count += 1
        keep = heapq.heappush if len(newest) < MAX_FILES_SHOWN else heapq.heappushpop
        # The number orders files with the same modification time: the first one found comes first.
        keep(newest, (file.modified, -count, file.path.name))
    lines = [name for _, _, name in sorted(newest, reverse=True)]
    if count > MAX_FILES_SHOWN:
        lines.append(f"[… and {count - MAX_FILES_SHOWN:,} more, older files …]")
    if walk.incomplete:
        lines.append(f"[The search is incomplete: {walk.incomplete}.]")
    return "\n".join(lines) or "[No file matches.]"


# --- searching contents --------------------------------------------------------------------------------


class RegexTimeout(Exception):
    """A regular expression took too long for one block of a file."""


class LineMatcher:
    """Finds the lines that match a regular expression, in bounded time and without holding the interpreter lock."""

    timeout_seconds = 2.0
    """For one block of a file."""
    prefilter_seconds = 0.1

    def __init__(self, pattern: str, any_case: bool) -> None:
        flags = regex.IGNORECASE if any_case else 0
        try:
            self._line = regex.compile(pattern, flags)
            # Without these constructs an expression matches the same in a block as in each of its lines.
            local = regex.search(r"\(\?|\\[AGKRXZ]", pattern) is None
            self._block: Any = regex.compile(pattern, flags | regex.MULTILINE) if local else None
        except (regex.error, OverflowError, RecursionError) as error:
            raise errors.ToolFailed(f"Invalid regular expression: {error}.") from None

    def matching_lines(self, block: bytes) -> list[int]:
        """Return the numbers of the matching lines, from 0. Raise RegexTimeout if that takes too long."""
        text = block.decode("utf-8", "replace").replace("\r\n", "\n").removesuffix("\r")
        found = self._search_block(text) if self._block is not None else None
        return self._search_lines(text) if found is None else found

    def _search_block(self, text: str) -> list[int] | None:
        """Search the whole block at once, which is much faster; None if a match spans lines or it takes too long."""
        found, at, number = list[int](), 0, 0
        until = time.monotonic() + self.prefilter_seconds
        try:
            while match := self._block.search(text, at, concurrent=True, timeout=max(until - time.monotonic(), 0.001)):
                if "\n" in match[0]:
                    return None
                number += text.count("\n", at, match.start())
                found.append(number)
                at, number = text.find("\n", match.end()) + 1, number + 1
                if not at:
                    break
        except TimeoutError:
            return None
        return found

    def _search_lines(self, text: str) -> list[int]:
        found, until = list[int](), time.monotonic() + self.timeout_seconds
        try:
            for number, line in enumerate(text.split("\n")):
                left = max(until - time.monotonic(), 0.001)
                if self._line.search(line, concurrent=True, timeout=left) is not None:
                    found.append(number)
        except TimeoutError:
            raise RegexTimeout from None
        return found


class _Search:
    """A search in progress, and its results."""

    max_timeouts = 3
    """After so many files in which the expression took too long, the search ends."""

    def __init__(self, space: workspace.Workspace, walk: Walk, matcher: LineMatcher) -> None:
        self._space, self.walk, self._matcher = space, walk, matcher
        self._lines = list[str]()
        self._count = self._files = self._secret = self._timeouts = 0

    def search_file(self, file: WalkedFile) -> None:
        """Search one file. A file that cannot be read, or was deleted meanwhile, is skipped."""
        if sensitive_paths.secret(file.path.parts):
            self._secret += 1
            return
        before = self._count
        try:
            with self._space.open_in(file.folder, file.path.parts[-1], self.walk.own) as stream:
                for number, line in self._matches(stream):
                    self._add(file.path, number, line)
        except RegexTimeout:
            self._timeouts += 1
            if self._timeouts >= self.max_timeouts:
                self.walk.incomplete = "the expression takes too long; use a simpler one, or plain text"
        except errors.ToolFailed:
            pass
        self._files += self._count > before

    def _matches(self, stream: BinaryIO) -> Iterator[tuple[int, str]]:
        first = 1
        for block, line_ended in _read_blocks(stream):
            if self.walk.is_over():
                return
            numbers = self._matcher.matching_lines(block)
            lines = block.split(b"\n") if numbers else []
            yield from ((first + number, lines[number].decode("utf-8", "replace")) for number in numbers)
            first += block.count(b"\n") + line_ended

    def _add(self, path: workspace.WorkspacePath, number: int, line: str) -> None:
        self._count += 1
        if len(self._lines) < MAX_LINES_SHOWN:
            text = line.rstrip("\r")
            text = text if len(text) <= MAX_LINE_WIDTH else f"{text[:MAX_LINE_WIDTH]}[…]"
            self._lines.append(f"{path.name}:{number}: {text}")

    def report(self) -> str:
        lines = list(self._lines)
        if self._count > MAX_LINES_SHOWN:
            lines.append(f"[… and {self._count - MAX_LINES_SHOWN:,} more lines; {self._files:,} files match …]")
        if self._timeouts:
            lines.append(f"[The expression took too long in {self._timeouts} files, which were searched in part.]")
        if self._secret:
            lines.append(f"[{self._secret} files that may hold secrets were not searched.]")
        if self.walk.incomplete:
            lines.append(f"[The search is incomplete: {self.walk.incomplete}.]")
        return "\n".join(lines) if self._lines else "\n".join(["[No line matches.]", *lines])


def _read_blocks(stream: BinaryIO) -> Iterator[tuple[bytes, bool]]:
    """Yield a text file in blocks, and whether a line ends with the block. Stop where the file is binary."""
    rest = b""
    while block := stream.read(BLOCK_BYTES):
        if b"\0" in block:
            return
        cut = block.rfind(b"\n") + 1
        if not cut and len(rest) < BLOCK_BYTES:
            rest += block
            continue
        whole, rest = (rest + block[: cut - 1], block[cut:]) if cut else (rest + block, b"")
        yield whole, cut > 0
    if rest:
        yield rest, False


# --- the walk ------------------------------------------------------------------------------------------


class WalkedFile(msgspec.Struct, frozen=True):
    """A file, and the descriptor of its folder, which is closed when the next file is requested."""

    path: workspace.WorkspacePath
    folder: int
    modified: float


class Walk:
    """Visits the files of a workspace, bounded in number, depth and time. Links are not followed."""

    def __init__(
        self, space: workspace.Workspace, include_ignored: bool, timeout_seconds: float, stop: worker_thread.Stop
    ) -> None:
        self._space, self._include_ignored, self._stop = space, include_ignored, stop
        self._until = time.monotonic() + timeout_seconds
        self._visited = 0
        self.incomplete = ""
        """Why the walk ended early; empty if it did not."""
        self.own = space.own_files()

    def is_over(self) -> bool:
        """Return whether the walk was cancelled or ran out of time."""
        if not self.incomplete and (self._stop() or time.monotonic() > self._until):
            self.incomplete = "the time limit was reached"
        return bool(self.incomplete)

    def files(self, start: workspace.WorkspacePath) -> Iterator[WalkedFile]:
        """Yield the regular files below a folder."""
        with self._space.open_folder(start) as fd:
            # The rules of parent folders apply here, too.
            known = [self._read_rules_above(start, depth) for depth in range(len(start.parts))]
            yield from self._visit(start, fd, [rules for rules in known if rules.rules])

    def _read_rules_above(self, start: workspace.WorkspacePath, depth: int) -> gitignore.IgnoreRules:
        with self._space.open_folder(msgspec.structs.replace(start, parts=start.parts[:depth])) as fd:
            return self._read_rules(fd, depth)

    def _visit(
        self, here: workspace.WorkspacePath, fd: int, known: Sequence[gitignore.IgnoreRules]
    ) -> Iterator[WalkedFile]:
        rules = self._read_rules(fd, len(here.parts))
        known = [*known, rules] if rules.rules else known
        for entry in self._entries(fd):
            path = msgspec.structs.replace(here, parts=(*here.parts, entry.name))
            status = self._stat(entry, path, known)
            if status is None:
                continue
            if stat.S_ISREG(status.st_mode):
                yield WalkedFile(path, fd, status.st_mtime)
            elif len(path.parts) < MAX_DEPTH:
                yield from self._visit_folder(path, fd, known)
            else:
                self.incomplete = self.incomplete or f"folders are nested more than {MAX_DEPTH} levels deep"

    def _entries(self, fd: int) -> Iterator[os.DirEntry[str]]:
        with suppress(OSError), os.scandir(fd) as entries:
            for entry in entries:
                self._visited += 1
                if self._visited > MAX_FILES_VISITED:
                    self.incomplete = self.incomplete or f"there are more than {MAX_FILES_VISITED:,} files"
                if self.is_over():
                    return
                yield entry

    def _stat(
        self, entry: os.DirEntry[str], path: workspace.WorkspacePath, known: Sequence[gitignore.IgnoreRules]
    ) -> os.stat_result | None:
        """Return the status of a file or folder; None if it is neither, is ignored or is off limits."""
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            return None
        is_folder = stat.S_ISDIR(status.st_mode)
        if not is_folder and not stat.S_ISREG(status.st_mode):
            return None
        if (status.st_dev, status.st_ino) in self.own or self._space.is_off_limits(path.path):
            return None
        if self._include_ignored:
            return None if entry.name == ".git" else status
        return None if gitignore.is_ignored(path.parts, is_folder, known) else status

    def _visit_folder(
        self, path: workspace.WorkspacePath, fd: int, known: Sequence[gitignore.IgnoreRules]
    ) -> Iterator[WalkedFile]:
        try:
            below = os.open(path.parts[-1], workspace.FOLDER_FLAGS, dir_fd=fd)
        except OSError:
            return
        try:
            yield from self._visit(path, below, known)
        finally:
            os.close(below)

    def _read_rules(self, fd: int, depth: int) -> gitignore.IgnoreRules:
        rules = list[gitignore.IgnoreRule]()
        for name in () if self._include_ignored else gitignore.IGNORE_FILES:
            with suppress(errors.ToolFailed), self._space.open_in(fd, name, self.own) as file:
                rules += gitignore.parse(file.read(MAX_IGNORE_FILE_BYTES).decode("utf-8", "replace"), depth).rules
        return gitignore.IgnoreRules(depth, tuple(rules))
