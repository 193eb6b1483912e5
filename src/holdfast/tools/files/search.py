"""Finding files by their names, and searching what is in them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import BinaryIO

import msgspec

from holdfast import errors, types
from holdfast.tools import base, worker_thread
from holdfast.tools.files import globs, text_search, workspace
from holdfast.tools.files import walk as files_walk
from holdfast.tools.permissions import sensitive_paths

FILES = 100
LINES = 100
SECONDS = 20.0
PIECE = 1 << 20
WIDTH = 300
LONGEST = 1_000

_WHERE = {
    "folder": {"type": "string", "description": "Where to look; the whole project when left out."},
    "include_ignored": {"type": "boolean", "description": "Also what .gitignore leaves out; false when left out."},
}

_FIND = types.ToolSpec(
    "find_files",
    "Find files of the project by name, newest first. What .gitignore leaves out is not looked at.",
    {
        "type": "object",
        "properties": {
            "pattern": {
                "type": "string",
                "description": "Such as *.py (at any depth), src/**/*.{js,ts} or **/test_*; * for all.",
            },
            **_WHERE,
        },
        "required": ["pattern"],
    },
)

_SEARCH = types.ToolSpec(
    "search_files",
    "Search what is in the files of the project, line by line. Answers are path:line: text. What .gitignore leaves "
    "out, binary files and files that hold secrets are not looked at.",
    {
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "What to look for, as it stands there."},
            "regex": {"type": "boolean", "description": "It is a regular expression (Python's); false when left out."},
            "any_case": {"type": "boolean", "description": "Case makes no difference; false when left out."},
            "files": {"type": "string", "description": "Only files that fit this pattern, such as *.py."},
            **_WHERE,
        },
        "required": ["text"],
    },
)


class _Asked(msgspec.Struct, frozen=True):
    start: workspace.Place
    everything: bool
    fits: Callable[[tuple[str, ...]], bool]
    """Whether a file is wanted, by its parts below the start."""
    hidden: Callable[[str], bool]

    def wanted(self, walk: files_walk.Walk) -> Iterator[files_walk.Found]:
        depth = len(self.start.parts)
        fitting = (found for found in walk.files(self.start) if self.fits(found.place.parts[depth:]))
        return (found for found in fitting if not self.hidden(found.place.path))


def _asked(where: workspace.Workspace, arguments: base.Arguments, pattern: str) -> _Asked:
    everything = arguments.get("include_ignored", False)
    return _Asked(where.place(arguments.get("folder") or "."), everything, _fitting(pattern), base.current().hidden)


def _fitting(pattern: str) -> Callable[[tuple[str, ...]], bool]:
    """A pattern without a slash is one for names, wherever they are."""
    if len(pattern) > LONGEST:
        raise errors.ToolFailed(f"A pattern has at most {LONGEST:,} characters.")
    given = [each.removeprefix("./") for each in globs.alternatives(pattern)]
    wanted = [globs.compiled(each if "/" in each.rstrip("/") else f"**/{each}") for each in given]
    return lambda parts: any(globs.fits(each, parts) for each in wanted)


def find_files(where: workspace.Workspace) -> base.Tool:
    """A tool that finds files by name."""

    async def run(arguments: base.Arguments) -> types.Content:
        asked = _asked(where, arguments, arguments["pattern"])
        return await worker_thread.stoppable(lambda stop: _found(where, asked, stop))

    return base.Tool(_FIND, run, parallel=True)


def _found(where: workspace.Workspace, asked: _Asked, stop: worker_thread.Stop) -> str:
    walk = files_walk.Walk(where, asked.everything, SECONDS, stop)
    count, newest = 0, list[tuple[float, int, str]]()
    for found in asked.wanted(walk):
        count += 1
        keep = heapq.heappush if len(newest) < FILES else heapq.heappushpop
        # The number keeps apart what was changed at one moment: the first comes first.
        keep(newest, (found.changed, -count, found.place.name))
    lines = [name for _, _, name in sorted(newest, reverse=True)]
    if count > FILES:
        lines.append(f"[… and {count - FILES:,} more, older ones …]")
    if walk.cut:
        lines.append(f"[Not everything was looked at: {walk.cut}.]")
    return "\n".join(lines) or "[No file fits.]"


def search_files(where: workspace.Workspace) -> base.Tool:
    """A tool that searches what is in files."""

    async def run(arguments: base.Arguments) -> types.Content:
        text = arguments["text"]
        if not text or len(text) > LONGEST or "\n" in text:
            raise errors.ToolFailed(f"`text` is one line of 1 to {LONGEST:,} characters: lines are looked at singly.")
        asked = _asked(where, arguments, arguments.get("files") or "*")
        return await worker_thread.stoppable(lambda stop: _searched(where, asked, arguments, stop))

    return base.Tool(_SEARCH, run, parallel=True)


def _searched(where: workspace.Workspace, asked: _Asked, arguments: base.Arguments, stop: worker_thread.Stop) -> str:
    text, any_case = arguments["text"], arguments.get("any_case", False)
    look: text_search.Plain | text_search.Expression
    if arguments.get("regex", False):
        look = text_search.Expression(text, any_case, stop)
    else:
        look = text_search.Plain(text, any_case)
    search = _Search(where, files_walk.Walk(where, asked.everything, SECONDS, stop), look)
    try:
        for found in asked.wanted(search.walk):
            search.file(found)
    finally:
        look.close()
    return search.told()


class _Search:
    """A search under way, and what it has found."""

    def __init__(
        self, where: workspace.Workspace, walk: files_walk.Walk, look: text_search.Plain | text_search.Expression
    ) -> None:
        self._where, self.walk, self._look = where, walk, look
        self._lines = list[str]()
        self._count = self._files = self._secret = self._slow = 0

    def file(self, found: files_walk.Found) -> None:
        """Look into one file. One that cannot be read, or is gone meanwhile, is passed over."""
        if sensitive_paths.secret(found.place.parts):
            self._secret += 1
            return
        before = self._count
        try:
            with self._where.opened(found.folder, found.place.parts[-1], self.walk.own) as file:
                for number, line in self._fitting(file):
                    self._note(found.place, number, line)
        except text_search.Slow:
            self._slow += 1
        except text_search.Hopeless:
            self.walk.cut = "the expression takes too long; use a simpler one, or plain text"
        except errors.ToolFailed:
            pass
        self._files += self._count > before

    def _fitting(self, file: BinaryIO) -> Iterator[tuple[int, str]]:
        first = 1
        for piece, ended in _pieces(file):
            if self.walk.over():
                return
            numbers = self._look.lines(piece)
            lines = piece.split(b"\n") if numbers else []
            yield from ((first + number, lines[number].decode("utf-8", "replace")) for number in numbers)
            first += piece.count(b"\n") + ended

    def _note(self, place: workspace.Place, number: int, line: str) -> None:
        self._count += 1
        if len(self._lines) < LINES:
            shown = line.rstrip("\r")
            shown = shown if len(shown) <= WIDTH else f"{shown[:WIDTH]}[…]"
            self._lines.append(f"{place.name}:{number}: {shown}")

    def told(self) -> str:
        lines = list(self._lines)
        if self._count > LINES:
            lines.append(f"[… and {self._count - LINES:,} more lines, in {self._files:,} files in all …]")
        if self._slow:
            lines.append(f"[The expression took too long in {self._slow} files; the rest of them was left out.]")
        if self._secret:
            lines.append(f"[{self._secret} files that may hold secrets were not searched.]")
        if self.walk.cut:
            lines.append(f"[Not everything was looked at: {self.walk.cut}.]")
        return "\n".join(lines) if self._lines else "\n".join(["[No line fits.]", *lines])


def _pieces(file: BinaryIO) -> Iterator[tuple[bytes, bool]]:
    """A text file in pieces, and whether a line ends where the piece does; nothing from where it is no text."""
    rest = b""
    while block := file.read(PIECE):
        if b"\0" in block:
            return
        cut = block.rfind(b"\n") + 1
        if not cut and len(rest) < PIECE:
            rest += block
            continue
        whole, rest = (rest + block[: cut - 1], block[cut:]) if cut else (rest + block, b"")
        yield whole, cut > 0
    if rest:
        yield rest, False
