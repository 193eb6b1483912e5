"""Patterns for names and paths, as git and shells have them. Pure.

Written here and not bought, because a pattern may come from a stranger's project: whatever it is, matching it takes
no longer than pattern times path. `*` and `?` stay within a name, `**` stands for any folders, `[…]` is one of some
characters, a backslash takes what follows as it is.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence

_CLASSES = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "blank": r" \t",
    "digit": "0-9",
    "lower": "a-z",
    "space": r"\s",
    "upper": "A-Z",
    "xdigit": "0-9a-fA-F",
}
_CLASS = re.compile(r"\[([!^]?+)(\]?+(?:\\.|\[:[a-z]+:\]|[^\]\\])*)\]", re.DOTALL)
_MEMBER = re.compile(r"\[:([a-z]+):\]|\\(.)|(.)", re.DOTALL)
_ALTERNATIVES = re.compile(r"\{([^{}]*,[^{}]*)\}")
_MOST = 64

Part = Callable[[str], object] | None
"""Whether a name fits; None stands for any number of folders."""


def fits(pattern: Sequence[Part], path: Sequence[str]) -> bool:
    """Whether a path, by its parts, fits a pattern: where it has gone wrong, only the last `**` is tried anew."""
    at = there = 0
    star, tried = -1, 0
    while there < len(path):
        part = pattern[at] if at < len(pattern) else _never
        if part is None:
            star, tried, at = at, there, at + 1
        elif part(path[there]):
            at, there = at + 1, there + 1
        elif star >= 0:
            tried += 1
            at, there = star + 1, tried
        else:
            return False
    return all(part is None for part in pattern[at:])


def _never(_: str) -> bool:
    return False


def compiled(pattern: str) -> tuple[Part, ...]:
    """A pattern of names, divided by slashes. A `**` at its end needs something below."""
    parts = [part for part in pattern.split("/") if part]
    if parts and parts[-1] == "**":
        parts.append("*")
    return tuple(None if part == "**" else name(part) for part in parts)


@functools.lru_cache(maxsize=4096)
def name(pattern: str) -> Callable[[str], object]:
    """Whether one name fits; a pattern that makes no sense fits nothing."""
    pieces, at = [""], 0
    while at < len(pattern):
        if pattern[at] == "*":
            pieces.append("")
            at += 1
            continue
        found = _CLASS.match(pattern, at)
        if found is None and (pattern[at] == "[" or pattern[at:] == "\\"):
            return _never
        expression, at = _one(pattern, at, found)
        pieces[-1] += expression
    try:
        return re.compile(_joined(pieces), re.DOTALL).fullmatch
    except re.error:
        return _never


def _one(pattern: str, at: int, found: re.Match[str] | None) -> tuple[str, int]:
    if pattern[at] == "?":
        return ".", at + 1
    if pattern[at] == "\\":
        return re.escape(pattern[at + 1]), at + 2
    if found is not None:
        return _members(found[1], found[2]), found.end()
    return re.escape(pattern[at]), at + 1


def _members(negated: str, inner: str) -> str:
    members, tokens, at = "", _MEMBER.findall(inner), 0
    while at < len(tokens):
        known, *_ = tokens[at]
        if known:
            members += _CLASSES.get(known, "")
        elif at + 2 < len(tokens) and tokens[at + 1][2] == "-" and not tokens[at + 2][0]:
            low, high = "".join(tokens[at][1:]), "".join(tokens[at + 2][1:])
            members += f"{re.escape(low)}-{re.escape(high)}" if low <= high else ""
            at += 2
        else:
            members += re.escape("".join(tokens[at][1:]))
        at += 1
    if not members:
        return "." if negated else "(?!)"
    return f"[{'^' if negated else ''}{members}]"


def _joined(pieces: Sequence[str]) -> str:
    """Between two stars, the first place that fits is as good as any: nothing is ever tried twice."""
    if len(pieces) == 1:
        return pieces[0]
    first, *middle, last = pieces
    return first + "".join(f"(?>.*?{piece})" for piece in middle if piece) + ".*" + last


def alternatives(pattern: str) -> list[str]:
    """A pattern with braces, `*.{js,ts}`, as the patterns it stands for; not more than a few."""
    found, done = [pattern], list[str]()
    while found and len(found) + len(done) <= _MOST:
        one = found.pop()
        braces = _ALTERNATIVES.search(one)
        if braces is None:
            done.append(one)
        else:
            found += [one[: braces.start()] + each + one[braces.end() :] for each in braces[1].split(",")]
    return done
