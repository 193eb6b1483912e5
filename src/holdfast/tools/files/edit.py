"""The tool edit_file: find the one occurrence of a text that a model means, and replace it."""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Callable, Sequence

import msgspec

from holdfast import errors, types
from holdfast.tools import base, worker_thread
from holdfast.tools.files import editor_buffers, workspace, write

MAX_EDITS = 50

_ONE = {
    "old_text": {"type": "string", "description": "Text of the file as it is now, long enough to occur once."},
    "new_text": {"type": "string", "description": "The text that replaces it."},
    "replace_all": {"type": "boolean", "description": "Replace all occurrences."},
}

_SPEC = types.ToolSpec(
    "edit_file",
    "Replace text in a file of the project. `old_text` must occur exactly once; leave out line numbers. Put several "
    "changes of one file into `edits`; they are applied in order, all or none.",
    {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "The file, relative to the project's folder or absolute."},
            **_ONE,
            "edits": {
                "type": "array",
                "description": "Several changes instead of one.",
                "items": {"type": "object", "properties": _ONE, "required": ["old_text", "new_text"]},
            },
        },
        "required": ["path"],
    },
)


def edit_file(space: workspace.Workspace, editor: editor_buffers.EditorBuffers | None = None) -> base.Tool:
    """Build the tool that changes parts of files."""

    async def run(arguments: base.Arguments) -> base.Plan:
        path, edits = space.resolve(arguments["path"]), parse_edits(arguments)

        def apply_all(old: write.FileText | None, stop: worker_thread.Stop) -> write.FileText:
            if old is None:
                raise errors.ToolFailed("The file does not exist. Use write_file to create it.")
            text = old.text
            for number, edit in enumerate(edits, 1):
                write.check_cancelled(stop)
                try:
                    text = apply_edit(text, edit)
                except errors.ToolFailed as error:
                    message = f"Edit {number}: {error} No edit was applied." if len(edits) > 1 else str(error)
                    raise errors.ToolFailed(message) from None
            return write.FileText(text, old.has_bom)

        return await write.plan_change(space, "edit_file", path, apply_all, editor)

    return base.Tool(_SPEC, run)


def parse_edits(arguments: base.Arguments) -> list[TextEdit]:
    """Return the edits of a call: its single edit or its list."""
    single = {name: arguments[name] for name in _ONE if name in arguments}
    listed = arguments.get("edits") or []
    if bool(single) == bool(listed):
        raise errors.ToolFailed("Give either `old_text` and `new_text`, or `edits`.")
    if len(listed) > MAX_EDITS:
        raise errors.ToolFailed(f"A call has at most {MAX_EDITS} edits.")
    try:
        return msgspec.convert(listed or [single], list[TextEdit])
    except msgspec.ValidationError as error:
        raise errors.ToolFailed(f"Invalid edits: {error}.") from None


# --- one edit ------------------------------------------------------------------------------------------

_QUOTES = str.maketrans("‘’‚‛“”„‟‐‑‒–—−\u00a0\u2002\u2003\u2009\u202f\u3000", "''''\"\"\"\"------      ")
_CONTEXT_LINES = 3
_MAX_LINES_SHOWN = 20
_LEADING = re.compile(r"[ \t]*")
_WORD = re.compile(r"\w+")
_WIDE = re.compile(r"[^\S\n ][^\S\n]*| [^\S\n]+")
# The lookbehind prevents a match from starting inside a run of spaces: a million of them take linear time.
_TRAILING = re.compile(r"[ \t\r\u00a0](?<![ \t\r\u00a0]{2})[ \t\r\u00a0]*+(?=\n|\Z)")
_MAX_LINES_COMPARED = 5_000
_MAX_LINE = 500

Span = tuple[int, int]


class TextEdit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Replace `old_text` by `new_text`, at its only occurrence or at all."""

    old_text: str
    new_text: str
    replace_all: bool = False


def apply_edit(text: str, edit: TextEdit) -> str:
    """Return the edited text. Raise ToolFailed, with a hint, if the occurrence is not clear.

    If `old_text` is not found literally, differences that models make by accident are tolerated, smallest first: line
    ends, trailing spaces and typographic quotes, then indentation and the width of spaces. Each time the occurrence
    must be the only one. The new text gets the line ends and the indentation of the occurrence.
    """
    old, new = edit.old_text, edit.new_text
    if not old:
        raise errors.ToolFailed("`old_text` is empty. Give the text to replace.")
    if old == new:
        raise errors.ToolFailed("`old_text` and `new_text` are the same; nothing would change.")
    if _is_crlf(text):
        old = old.replace("\r\n", "\n").replace("\n", "\r\n")
    if old in text:
        spans = _find_all(text, old) if edit.replace_all else [_only(text, _find_overlapping(text, old))]
        # Replace a CRLF as a whole.
        torn = old.startswith("\n") and not new.startswith("\n")
        spans = [(start - (torn and text[start - 1 : start] == "\r"), end) for start, end in spans]
        return _splice(text, spans, _with_line_ends_of(text, new) if "\n" in new else new)
    if edit.replace_all:
        spans = _within_lines(text, old, _normalize_line_ends, once=False)
        if spans:
            return _splice(text, spans, _with_line_ends_of(text, new))
        raise errors.ToolFailed(_not_found_message(text, old))
    return _replace_tolerantly(text, old, new)


def _replace_tolerantly(text: str, old: str, new: str) -> str:
    steps: list[Callable[[str], str]] = [_normalize_line_ends]
    if old.strip():
        steps.append(_normalize_typography)
    for step in steps:
        if spans := _within_lines(text, old, step):
            span = _only(text, spans)
            return _splice(text, [span], _with_line_ends_of(text[slice(*span)] if "\n" in old else text, new))
    if old.strip() and (spans := _whole_lines(text, old)):
        span = _only(text, spans)
        there = text[slice(*span)]
        # The last line of a file may have no line end, unlike `old_text`.
        given = new.removesuffix("\n") if old.endswith("\n") and not there.endswith("\n") else new
        moved = _reindent(old, given, there)
        if moved is not None:
            return _splice(text, [span], _with_line_ends_of(text, moved))
    raise errors.ToolFailed(_not_found_message(text, old))


def _splice(text: str, spans: Sequence[Span], new: str) -> str:
    pieces, at = list[str](), 0
    for start, end in spans:
        pieces += [text[at:start], new]
        at = end
    return "".join([*pieces, text[at:]])


def _only(text: str, spans: Sequence[Span]) -> Span:
    if len(spans) == 1:
        return spans[0]
    lines = ", ".join(str(text.count("\n", 0, start) + 1) for start, _ in spans[:5])
    more = " and more" if len(spans) > 5 else ""
    count = f"{len(spans)} places" if len(spans) < 20 else "many places"
    raise errors.ToolFailed(
        f"`old_text` occurs in {count}, at lines {lines}{more}. Include more lines around it, or set `replace_all`."
    )


# --- occurrences --------------------------------------------------------------------------------------


def _find_all(text: str, old: str) -> list[Span]:
    found, at = list[Span](), text.find(old)
    while at >= 0:
        found.append((at, at + len(old)))
        at = text.find(old, at + len(old))
    return found


def _find_overlapping(text: str, old: str, most: int = 20) -> list[Span]:
    """Return occurrences that may overlap: which of two overlapping ones is meant is not clear either."""
    found, at = list[Span](), text.find(old)
    while at >= 0 and len(found) < most:
        found.append((at, at + len(old)))
        at = text.find(old, at + 1)
    return found


def _normalize_line_ends(text: str) -> str:
    return text.replace("\r\n", "\n").removesuffix("\r")


def _normalize_typography(text: str) -> str:
    return _straighten_quotes(_TRAILING.sub("", text))


def _collapse_spaces(text: str) -> str:
    """Strip every line, and collapse runs of spaces."""
    return _WIDE.sub(" ", _straighten_quotes(text)).replace(" \n", "\n").replace("\n ", "\n").strip(" ")


def _straighten_quotes(text: str) -> str:
    return text if text.isascii() else text.translate(_QUOTES)


def _within_lines(text: str, old: str, key: Callable[[str], str], once: bool = True) -> list[Span]:
    """Find occurrences if only line ends may differ, so that columns are the same in both."""
    whole, sought = key(text), key(old)
    places = (_find_overlapping if once else _find_all)(whole, sought) if sought else []
    if not places:
        return []
    starts, begins = _starts(text.split("\n")), _starts(whole.split("\n"))
    # Trailing spaces are ignored in the comparison, but replaced too if they are the same.
    spare = old.rpartition("\n")[2][len(sought.rpartition("\n")[2]) :].removesuffix("\r")

    def real(at: int) -> int:
        line = bisect.bisect_right(begins, at) - 1
        return starts[line] + at - begins[line]

    found = [(real(start), real(end)) for start, end in places]
    return [(start, end + len(spare) if spare and text.startswith(spare, end) else end) for start, end in found]


def _starts(lines: Sequence[str]) -> list[int]:
    return [0, *itertools.accumulate(len(line) + 1 for line in lines)][:-1]


def _whole_lines(text: str, old: str) -> list[Span]:
    """Find occurrences as whole lines if spaces may differ."""
    wanted = _collapse_spaces(old).split("\n")
    with_end = len(wanted) > 1 and not wanted[-1]
    wanted = wanted[:-1] if with_end else wanted
    joined = "\n" + _collapse_spaces(text) + "\n"
    places = _find_overlapping(joined, "\n" + "\n".join(wanted) + "\n")
    starts = [*_starts(text.split("\n")), len(text) + 1] if places else []
    found = list[Span]()
    for at, _ in places:
        first = joined.count("\n", 0, at)
        end = starts[first + len(wanted)] - 1
        if not with_end and text[end - 1 : end] == "\r":
            end -= 1
        found.append((starts[first], min(end + with_end, len(text))))
    return found


# --- replacement --------------------------------------------------------------------------------------


def _with_line_ends_of(place: str, new: str) -> str:
    """Return the new text with the line ends of its surroundings, if those are consistent."""
    if _is_crlf(place):
        return new.replace("\r\n", "\n").replace("\n", "\r\n")
    return new if "\r\n" in place or "\n" not in place else new.replace("\r\n", "\n")


def _is_crlf(text: str) -> bool:
    """Return whether all line ends are CRLF, and there is one."""
    ends = text.count("\r\n")
    return ends > 0 and ends == text.count("\n")


def _reindent(old: str, new: str, there: str) -> str | None:
    """Return the new text with the indentation of the occurrence; None if that is ambiguous."""
    moves = dict[str, str]()
    for given, real in zip(old.split("\n"), there.split("\n"), strict=False):
        if given.strip() and moves.setdefault(_indent(given), _indent(real)) != _indent(real):
            return None
    lines = list[str]()
    for line in new.split("\n"):
        indent = _map_indent(_indent(line), moves) if line.strip() else ""
        if indent is None:
            return None
        lines.append(indent + line.lstrip(" \t") if line.strip() else line)
    return "\n".join(lines)


def _indent(line: str) -> str:
    found = _LEADING.match(line)
    return found[0] if found else ""


def _map_indent(indent: str, moves: dict[str, str]) -> str | None:
    """Map an indentation to that of the file: a known one, or the extension of a known one."""
    if indent in moves:
        return moves[indent]
    known = [given for given in moves if indent.startswith(given)]
    if known:
        longest = max(known, key=len)
        deeper, step = indent[len(longest) :], moves[longest]
        return step + _convert_indent(deeper, moves)
    # Less than any known one: shift it by the same amount.
    for given, real in moves.items():
        if real.endswith(given):
            return real[: len(real) - len(given)] + indent
        if given.startswith(indent) and given.endswith(real) and len(given) - len(real) <= len(indent):
            return indent[len(given) - len(real) :]
    return None


def _convert_indent(deeper: str, moves: dict[str, str]) -> str:
    """Convert further indentation to the characters of the file: tabs or spaces."""
    for given, real in moves.items():
        if set(real) == {"\t"} and set(given) == {" "}:
            width = max(1, len(given) // len(real))
            return "\t" * (len(deeper) // width) + " " * (len(deeper) % width) if "\t" not in deeper else deeper
        if set(real) == {" "} and set(given) == {"\t"}:
            return deeper.replace("\t", " " * max(1, len(real) // len(given)))
    return deeper


# --- hints --------------------------------------------------------------------------------------------


def _not_found_message(text: str, old: str) -> str:
    """Return the error message with the most similar lines."""
    wanted = _collapse_spaces(old).split("\n")
    at = _nearest(text, wanted)
    reason = "`old_text` is not in the file."
    if at is None:
        return f"{reason} No line is similar; read the file again."
    lines, first = text.split("\n"), max(0, at - _CONTEXT_LINES)
    last = min(len(lines), first + min(len(wanted) + 2 * _CONTEXT_LINES, _MAX_LINES_SHOWN))
    shown = "\n".join(f"{number}\t{line[:500]}" for number, line in enumerate(lines[first:last], first + 1))
    return f"{reason} The most similar lines:\n{shown}"


def _nearest(text: str, wanted: Sequence[str]) -> int | None:
    """Return the line that shares most words with the first non-empty wanted line; later lines break ties."""
    offset = next((number for number, line in enumerate(wanted) if line), None)
    if offset is None:
        return None
    words, others = set(_WORD.findall(wanted[offset])), set(wanted) - {""}
    best, score = None, 0.2
    for number, line in enumerate(_collapse_spaces(text).split("\n", _MAX_LINES_COMPARED)[:_MAX_LINES_COMPARED]):
        found = set(_WORD.findall(line, 0, _MAX_LINE))
        alike = len(words & found) / len(words | found or {""}) + (line in others)
        if alike > score:
            best, score = number, alike
    return None if best is None else max(0, best - offset)
