"""What a call did to files, as an editor shows it: the difference, and where to look. Pure.

It is told from what the log keeps: what the call was given, and the words that came back. So an old conversation shows
the same when it is opened again as it did when it was had.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from acp import schema

from holdfast.acp import conversion
from holdfast.tools.files import diff

Content = schema.ContentToolCallContent | schema.FileEditToolCallContent | schema.TerminalToolCallContent

PLACES = 20
"""An editor is told of so many places at most: it may go to each."""

_HUNK = re.compile(r"@@ -(\d{1,9}),(\d{1,9}) \+(\d{1,9}),(\d{1,9}) @@")
# How a line end of Windows is spelled where nothing is to be hidden.
_WINDOWS = "\\r"
_HIT = re.compile(r"(?P<path>[^\n]{1,1000}?):(?P<line>\d{1,9}): ")


class Shown(NamedTuple):
    """What an editor is shown of a call. Where there is no content, the words themselves are it."""

    content: list[Content]
    locations: list[schema.ToolCallLocation]


def terminal(terminal_id: str) -> schema.TerminalToolCallContent:
    """A terminal, to be shown where the call is."""
    return schema.TerminalToolCallContent(type="terminal", terminal_id=terminal_id)


def content(tool: str, arguments: dict[str, Any] | str, words: str | None, cwd: str | os.PathLike[str]) -> Shown:
    """What to show of a call. `words`: what its question says it would change, or its result; None: neither is there.

    Paths are as the model gave them, from the folder of the session; an editor wants them absolute.
    """
    given = conversion.arguments(arguments)
    path = _path(given.get("path"), cwd)
    match tool:
        case "read_file" if path:
            return Shown([], [_location(path, given.get("from_line"))])
        case "edit_file" | "write_file" if path:
            return _changed(tool, path, given, words)
        case "search_files":
            return Shown([], list(_hits(words or "", cwd)))
    return Shown([], [_location(path)] if path else [])


def _path(given: object, cwd: str | os.PathLike[str]) -> str:
    if not isinstance(given, str) or not given or "\0" in given:
        return ""
    return os.path.normpath(os.path.join(cwd, os.path.expanduser(given)))


def _location(path: str, line: object = None) -> schema.ToolCallLocation:
    known = line if isinstance(line, int) and not isinstance(line, bool) and 1 <= line < 2**31 else None
    return schema.ToolCallLocation(path=path, line=known)


# --- changes -------------------------------------------------------------------------------------------


class _Hunk(NamedTuple):
    line: int
    old: str
    new: str


def _changed(tool: str, path: str, given: dict[str, Any], words: str | None) -> Shown:
    """The difference as it was found, where it is there and whole; otherwise as it was asked for."""
    done = (words or "").startswith(("Written: ", "Changed: "))
    # What is asked for is shown with nothing left out: what does not begin as a difference is more than one.
    hunks = _hunks(words or "") if done or (words or "").startswith("@@ ") else []
    if hunks:
        found: list[Content] = [_diff(path, each.old, each.new) for each in hunks]
        if all(not each.old for each in hunks) and isinstance(given.get("content"), str):
            # A new file: as it is when it is there, and before that with nothing hidden.
            found = [_diff(path, None, given["content"] if done else "\n".join(each.new for each in hunks))]
        return Shown(found, [_location(path, each.line) for each in hunks[:PLACES]])
    if words is not None and not words.startswith("Written: " if tool == "write_file" else "Changed: "):
        return Shown([], [_location(path)])  # It came to nothing, or to more than can be told: the words say it.
    return Shown(_asked(tool, path, given), [_location(path)])


def _asked(tool: str, path: str, given: dict[str, Any]) -> list[Content]:
    if tool == "write_file":
        text = given.get("content")
        return [_diff(path, None, text)] if isinstance(text, str) else []
    listed = given.get("edits")
    edits = listed if isinstance(listed, list) and listed else [given]
    pairs = [(each.get("old_text"), each.get("new_text")) for each in edits if isinstance(each, dict)]
    return [_diff(path, old, new) for old, new in pairs if isinstance(old, str) and isinstance(new, str)]


def _diff(path: str, old: str | None, new: str) -> schema.FileEditToolCallContent:
    return schema.FileEditToolCallContent(type="diff", path=path, old_text=old, new_text=new)


def _hunks(words: str) -> list[_Hunk]:
    """The pieces of a difference; nothing where it is not whole, as one that was cut shows what is not so."""
    lines = words.split("\n")
    at = next((number for number, line in enumerate(lines) if _HUNK.fullmatch(line)), len(lines))
    found = list[_Hunk]()
    while at < len(lines):
        head = _HUNK.fullmatch(lines[at])
        if head is None:
            return []
        gone, come = int(head[2]), int(head[4])
        body = list(_body(lines, at + 1, gone, come))
        at += 1 + len(body)
        if all(line.endswith(_WINDOWS) for line in body):
            body = [line.removesuffix(_WINDOWS) for line in body]
        old, new = [line[1:] for line in body if line[0] in " -"], [line[1:] for line in body if line[0] in " +"]
        if (len(old), len(new)) != (gone, come) or any(map(diff.is_cut, body)):
            return []
        same = next((number for number, line in enumerate(body) if line[0] != " "), 0)
        found.append(_Hunk(int(head[3]) + same, "\n".join(old), "\n".join(new)))
    return found


def _body(lines: list[str], at: int, gone: int, come: int) -> Iterator[str]:
    """The lines of one piece: as many as its head says, and no more."""
    while at < len(lines) and (gone or come) and lines[at][:1] in (" ", "+", "-"):
        gone -= lines[at][0] in " -"
        come -= lines[at][0] in " +"
        yield lines[at]
        at += 1


# --- finds ---------------------------------------------------------------------------------------------


def _hits(words: str, cwd: str | os.PathLike[str]) -> Iterator[schema.ToolCallLocation]:
    """The first places a search found, as `path:line: text`."""
    heads = (_HIT.match(line) for line in words.split("\n", PLACES)[:PLACES])
    places = ((_path(head["path"], cwd), int(head["line"])) for head in heads if head)
    return (_location(path, line) for path, line in places if path)
