"""Finding the one place a model means, and putting something else there. Pure.

What the model gives must stand in the file, once. Where it does not stand there letter by letter, differences that
models make without meaning them are looked past, least first: the ends of lines, spaces at their ends and typographic
quotes, then indentation and the width of spaces. Each time the place must be the only one. What is put there gets
the line ends and the indentation of the place, and everything else stays as it is.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Callable, Iterable, Sequence

import msgspec

from holdfast import errors

_QUOTES = str.maketrans("‘’‚‛“”„‟‐‑‒–—−\u00a0\u2002\u2003\u2009\u202f\u3000", "''''\"\"\"\"------      ")
_AROUND = 3
_MOST_SHOWN = 20
_LEADING = re.compile(r"[ \t]*")
_WORD = re.compile(r"\w+")
_WIDE = re.compile(r"[^\S\n ][^\S\n]*| [^\S\n]+")
# Looking back keeps it from beginning again within the same spaces: a million of them take one look.
_TRAILING = re.compile(r"[ \t\r\u00a0](?<![ \t\r\u00a0]{2})[ \t\r\u00a0]*+(?=\n|\Z)")
_ANCHORS = 8
_HITS = 500
_LONGEST = 2_000

Span = tuple[int, int]


class Edit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Instead of the old, the new: at one place, or at all."""

    old_text: str
    new_text: str
    replace_all: bool = False


def replaced(text: str, edit: Edit) -> str:
    """The text with the edit; ToolFailed, with what may help, where the place is not clear."""
    old, new = edit.old_text, edit.new_text
    if not old:
        raise errors.ToolFailed("`old_text` is empty. Give the text that is to be replaced.")
    if old == new:
        raise errors.ToolFailed("`old_text` and `new_text` are the same; nothing would change.")
    if _windows(text):
        old = old.replace("\r\n", "\n").replace("\n", "\r\n")
    if old in text:
        spans = _all(text, old) if edit.replace_all else [_only(text, _all_overlapping(text, old))]
        # The end of a line goes as a whole.
        torn = old.startswith("\n") and not new.startswith("\n")
        spans = [(start - (torn and text[start - 1 : start] == "\r"), end) for start, end in spans]
        return _put(text, spans, _ends_as_in(text, new) if "\n" in new else new)
    if edit.replace_all:
        spans = _within_lines(text, old, _without_return, once=False)
        if spans:
            return _put(text, spans, _ends_as_in(text, new))
        raise errors.ToolFailed(_not_found(text, old))
    return _tolerant(text, old, new)


def _tolerant(text: str, old: str, new: str) -> str:
    steps: list[Callable[[str], str]] = [_without_return]
    if old.strip():
        steps.append(_as_typed)
    for step in steps:
        if spans := _within_lines(text, old, step):
            span = _only(text, spans)
            return _put(text, [span], _ends_as_in(text[slice(*span)] if "\n" in old else text, new))
    if old.strip() and (spans := _whole_lines(text, old)):
        span = _only(text, spans)
        there = text[slice(*span)]
        # The last line of a file may have no end, whatever the old says.
        given = new.removesuffix("\n") if old.endswith("\n") and not there.endswith("\n") else new
        moved = _indented(old, given, there)
        if moved is not None:
            return _put(text, [span], _ends_as_in(text, moved))
    raise errors.ToolFailed(_not_found(text, old))


def _put(text: str, spans: Sequence[Span], new: str) -> str:
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
        f"`old_text` fits {count}, at lines {lines}{more}. Give more lines around it, or `replace_all`."
    )


# --- where it stands ----------------------------------------------------------------------------------


def _all(text: str, old: str) -> list[Span]:
    found, at = list[Span](), text.find(old)
    while at >= 0:
        found.append((at, at + len(old)))
        at = text.find(old, at + len(old))
    return found


def _all_overlapping(text: str, old: str, most: int = 20) -> list[Span]:
    """Places may overlap: which of two such is meant is not clear either."""
    found, at = list[Span](), text.find(old)
    while at >= 0 and len(found) < most:
        found.append((at, at + len(old)))
        at = text.find(old, at + 1)
    return found


def _without_return(text: str) -> str:
    return text.replace("\r\n", "\n").removesuffix("\r")


def _as_typed(text: str) -> str:
    return _plain(_TRAILING.sub("", text))


def _spaced(text: str) -> str:
    """Every line without spaces around it, and one space where it has several."""
    return _WIDE.sub(" ", _plain(text)).replace(" \n", "\n").replace("\n ", "\n").strip(" ")


def _plain(text: str) -> str:
    return text if text.isascii() else text.translate(_QUOTES)


def _within_lines(text: str, old: str, key: Callable[[str], str], once: bool = True) -> list[Span]:
    """Where the old stands if only the ends of lines may differ; columns are the same in both, then."""
    whole, sought = key(text), key(old)
    places = (_all_overlapping if once else _all)(whole, sought) if sought else []
    if not places:
        return []
    starts, begins = _starts(text.split("\n")), _starts(whole.split("\n"))
    # Spaces at the very end are looked past, but go with the rest where they are the same.
    spare = old.rpartition("\n")[2][len(sought.rpartition("\n")[2]) :].removesuffix("\r")

    def real(at: int) -> int:
        line = bisect.bisect_right(begins, at) - 1
        return starts[line] + at - begins[line]

    found = [(real(start), real(end)) for start, end in places]
    return [(start, end + len(spare) if spare and text.startswith(spare, end) else end) for start, end in found]


def _starts(lines: Sequence[str]) -> list[int]:
    return [0, *itertools.accumulate(len(line) + 1 for line in lines)][:-1]


def _whole_lines(text: str, old: str) -> list[Span]:
    """Where the old stands as whole lines, if spaces may differ."""
    wanted = _spaced(old).split("\n")
    with_end = len(wanted) > 1 and not wanted[-1]
    wanted = wanted[:-1] if with_end else wanted
    joined = "\n" + _spaced(text) + "\n"
    places = _all_overlapping(joined, "\n" + "\n".join(wanted) + "\n")
    starts = [*_starts(text.split("\n")), len(text) + 1] if places else []
    found = list[Span]()
    for at, _ in places:
        first = joined.count("\n", 0, at)
        end = starts[first + len(wanted)] - 1
        if not with_end and text[end - 1 : end] == "\r":
            end -= 1
        found.append((starts[first], min(end + with_end, len(text))))
    return found


# --- what is put there --------------------------------------------------------------------------------


def _ends_as_in(place: str, new: str) -> str:
    """New lines end as those around them do, where those all end as on Windows."""
    if _windows(place):
        return new.replace("\r\n", "\n").replace("\n", "\r\n")
    return new if "\r\n" in place or "\n" not in place else new.replace("\r\n", "\n")


def _windows(text: str) -> bool:
    """Whether there are line ends, and all of them are as on Windows."""
    ends = text.count("\r\n")
    return ends > 0 and ends == text.count("\n")


def _indented(old: str, new: str, there: str) -> str | None:
    """The new with the indentation of the place; None where it cannot be told what that is."""
    moves = dict[str, str]()
    for given, real in zip(old.split("\n"), there.split("\n"), strict=False):
        if given.strip() and moves.setdefault(_indent(given), _indent(real)) != _indent(real):
            return None
    lines = list[str]()
    for line in new.split("\n"):
        indent = _moved(_indent(line), moves) if line.strip() else ""
        if indent is None:
            return None
        lines.append(indent + line.lstrip(" \t") if line.strip() else line)
    return "\n".join(lines)


def _indent(line: str) -> str:
    found = _LEADING.match(line)
    return found[0] if found else ""


def _moved(indent: str, moves: dict[str, str]) -> str | None:
    """An indentation as the place has it: one that is known, or one that goes on from one that is."""
    if indent in moves:
        return moves[indent]
    known = [given for given in moves if indent.startswith(given)]
    if known:
        longest = max(known, key=len)
        deeper, step = indent[len(longest) :], moves[longest]
        return step + _in_kind(deeper, moves)
    # Less than any: what all of them were moved by is what it is moved by.
    for given, real in moves.items():
        if real.endswith(given):
            return real[: len(real) - len(given)] + indent
        if given.startswith(indent) and given.endswith(real) and len(given) - len(real) <= len(indent):
            return indent[len(given) - len(real) :]
    return None


def _in_kind(deeper: str, moves: dict[str, str]) -> str:
    """Further indentation in the characters of the place: tabs for spaces, spaces for tabs."""
    for given, real in moves.items():
        if set(real) == {"\t"} and set(given) == {" "}:
            width = max(1, len(given) // len(real))
            return "\t" * (len(deeper) // width) + " " * (len(deeper) % width) if "\t" not in deeper else deeper
        if set(real) == {" "} and set(given) == {"\t"}:
            return deeper.replace("\t", " " * max(1, len(real) // len(given)))
    return deeper


# --- what may help ------------------------------------------------------------------------------------


def _not_found(text: str, old: str) -> str:
    """That it is not there, and what is there that comes nearest."""
    wanted = _spaced(old).split("\n")
    at = _nearest(text, wanted)
    told = "`old_text` is not in the file."
    if at is None:
        return f"{told} Nothing there is like it; read the file again."
    lines, first = text.split("\n"), max(0, at - _AROUND)
    last = min(len(lines), first + min(len(wanted) + 2 * _AROUND, _MOST_SHOWN))
    shown = "\n".join(f"{number}\t{line[:500]}" for number, line in enumerate(lines[first:last], first + 1))
    return f"{told} The lines that come nearest, by their numbers:\n{shown}"


def _nearest(text: str, wanted: Sequence[str]) -> int | None:
    """Where most of the words of the first line that says something stand, the lines after it deciding."""
    offset = next((number for number, line in enumerate(wanted) if line), None)
    if offset is None:
        return None
    words = set(_WORD.findall(wanted[offset]))
    told = {line for line in wanted if line}
    best, score = None, 0.0
    for start in _candidates(text, [*_rarest(wanted[offset]), *_rarest("\n".join(wanted[offset + 1 :]))] or told):
        line = text[start : start + _LONGEST].partition("\n")[0]
        found = set(_WORD.findall(line))
        alike = len(words & found) / (len(words | found) or 1) + (_spaced(line) in told)
        if alike > score:
            best, score = start, alike
    return None if best is None or score < 0.2 else max(0, text.count("\n", 0, best) - offset)


def _rarest(text: str) -> list[str]:
    """Words that likely stand in few places: the longest."""
    return sorted(set(_WORD.findall(text)), key=lambda word: (-len(word), word))[:_ANCHORS]


def _candidates(text: str, anchors: Iterable[str]) -> list[int]:
    """Where lines begin that hold one of these; the first of each only, as a file may have millions."""
    found = set[int]()
    for anchor in itertools.islice(anchors, 2 * _ANCHORS):
        at = text.find(anchor)
        for _ in range(_HITS):
            if at < 0:
                break
            found.add(text.rfind("\n", 0, at) + 1)
            end = text.find("\n", at)
            at = text.find(anchor, end) if end >= 0 else -1
    return sorted(found)
