"""File changes of a tool call as an editor shows them: diffs and locations. Pure.

They are built from the arguments of the call and the text of its result, which are both in the log, so a replayed
conversation looks like it did at first.
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

MAX_LOCATIONS = 20
"""Locations of one call: an editor may open each of them."""

_HUNK = re.compile(r"@@ -(\d{1,9}),(\d{1,9}) \+(\d{1,9}),(\d{1,9}) @@")
# A carriage return as `diff.escape_hidden` spells it.
_CARRIAGE_RETURN = "\\r"
_HIT = re.compile(r"(?P<path>[^\n]{1,1000}?):(?P<line>\d{1,9}): ")


class CallView(NamedTuple):
    """Content and locations of a call. Without content, the editor is shown the text of the result."""

    content: list[Content]
    locations: list[schema.ToolCallLocation]


class _Hunk(NamedTuple):
    line: int
    old: str
    new: str


def terminal_content(terminal_id: str) -> schema.TerminalToolCallContent:
    return schema.TerminalToolCallContent(type="terminal", terminal_id=terminal_id)


def view_call(tool: str, arguments: dict[str, Any] | str, text: str | None, cwd: str | os.PathLike[str]) -> CallView:
    """Return what to show of a call.

    `text` is the detail of its approval request or its result, or None if there is neither. The model gives paths
    relative to `cwd`; editors expect absolute ones.
    """
    given = conversion.parse_arguments(arguments)
    path = _absolute(given.get("path"), cwd)
    match tool:
        case "read_file" if path:
            return CallView([], [_location(path, given.get("from_line"))])
        case "edit_file" | "write_file" if path:
            return _view_change(tool, path, given, text)
        case "search_files":
            return CallView([], list(_hits(text or "", cwd)))
    return CallView([], [_location(path)] if path else [])


def _absolute(path: object, cwd: str | os.PathLike[str]) -> str:
    if not isinstance(path, str) or not path or "\0" in path:
        return ""
    return os.path.normpath(os.path.join(cwd, os.path.expanduser(path)))


def _location(path: str, line: object = None) -> schema.ToolCallLocation:
    known = line if isinstance(line, int) and not isinstance(line, bool) and 1 <= line < 2**31 else None
    return schema.ToolCallLocation(path=path, line=known)


def _view_change(tool: str, path: str, given: dict[str, Any], text: str | None) -> CallView:
    """Return the diff in the text if it is complete, otherwise the change as the arguments request it."""
    is_done = (text or "").startswith(("Written: ", "Changed: "))
    # The detail of an approval request is only parsed if it consists of a diff and nothing else.
    hunks = _parse_hunks(text or "") if is_done or (text or "").startswith("@@ ") else []
    if hunks:
        found: list[Content] = [_diff(path, each.old, each.new) for each in hunks]
        if all(not each.old for each in hunks) and isinstance(given.get("content"), str):
            # A new file. Before it is written, the diff is shown, in which control characters are visible.
            found = [_diff(path, None, given["content"] if is_done else "\n".join(each.new for each in hunks))]
        return CallView(found, [_location(path, each.line) for each in hunks[:MAX_LOCATIONS]])
    if text is not None and not text.startswith("Written: " if tool == "write_file" else "Changed: "):
        return CallView([], [_location(path)])  # It failed, or the diff was cut: the text says so.
    return CallView(_requested_change(tool, path, given), [_location(path)])


def _requested_change(tool: str, path: str, given: dict[str, Any]) -> list[Content]:
    if tool == "write_file":
        text = given.get("content")
        return [_diff(path, None, text)] if isinstance(text, str) else []
    listed = given.get("edits")
    edits = listed if isinstance(listed, list) and listed else [given]
    pairs = [(each.get("old_text"), each.get("new_text")) for each in edits if isinstance(each, dict)]
    return [_diff(path, old, new) for old, new in pairs if isinstance(old, str) and isinstance(new, str)]


def _diff(path: str, old: str | None, new: str) -> schema.FileEditToolCallContent:
    return schema.FileEditToolCallContent(type="diff", path=path, old_text=old, new_text=new)


def _parse_hunks(text: str) -> list[_Hunk]:
    """Parse the hunks of a diff; [] if it was cut, as it would show a change that was not made."""
    lines = text.split("\n")
    at = next((number for number, line in enumerate(lines) if _HUNK.fullmatch(line)), len(lines))
    found = list[_Hunk]()
    while at < len(lines):
        head = _HUNK.fullmatch(lines[at])
        if head is None:
            return []
        removed, added = int(head[2]), int(head[4])
        body = list(_hunk_body(lines, at + 1, removed, added))
        at += 1 + len(body)
        if all(line.endswith(_CARRIAGE_RETURN) for line in body):
            body = [line.removesuffix(_CARRIAGE_RETURN) for line in body]
        old, new = [line[1:] for line in body if line[0] in " -"], [line[1:] for line in body if line[0] in " +"]
        if (len(old), len(new)) != (removed, added) or any(map(diff.is_cut, body)):
            return []
        unchanged = next((number for number, line in enumerate(body) if line[0] != " "), 0)
        found.append(_Hunk(int(head[3]) + unchanged, "\n".join(old), "\n".join(new)))
    return found


def _hunk_body(lines: list[str], at: int, removed: int, added: int) -> Iterator[str]:
    """Yield as many lines as the head of the hunk announces."""
    while at < len(lines) and (removed or added) and lines[at][:1] in (" ", "+", "-"):
        removed -= lines[at][0] in " -"
        added -= lines[at][0] in " +"
        yield lines[at]
        at += 1


def _hits(text: str, cwd: str | os.PathLike[str]) -> Iterator[schema.ToolCallLocation]:
    """Yield the first locations of a search result, whose lines are `path:line: text`."""
    heads = (_HIT.match(line) for line in text.split("\n", MAX_LOCATIONS)[:MAX_LOCATIONS])
    places = ((_absolute(head["path"], cwd), int(head["line"])) for head in heads if head)
    return (_location(path, line) for path, line in places if path)
