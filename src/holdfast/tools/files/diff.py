"""Unified diffs for approval, with everything visible and in bounded time.

Characters that a terminal would not show, or would interpret, are escaped. Where the shortest diff would take too
long to compute, a longer one is shown.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Sequence

CONTEXT_LINES = 3
MAX_LINES = 2_000
MAX_LENGTH = 60_000
MAX_LINE_LENGTH = 1_000
_MAX_EFFORT = 300_000

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
    "|[\ud800-\udfff]|[\U000e0000-\U000e007f]"
)

_CUT = re.compile(r"\[… [\d,]+ more characters …\]\Z")

Block = tuple[str, int, int, int, int]


def unified(old: str, new: str) -> tuple[str, int, int]:
    """Return the diff, the number of added lines and the number of removed lines."""
    before, after = (_lines(old), _lines(new)) if not old or not new else (old.split("\n"), new.split("\n"))
    blocks = _blocks(before, after)
    added = sum(b2 - b1 for tag, _, _, b1, b2 in blocks if tag != "equal")
    gone = sum(a2 - a1 for tag, a1, a2, _, _ in blocks if tag != "equal")
    lines = [line for group in _grouped(blocks) for line in _hunk(group, before, after)]
    return _bounded(lines), added, gone


def _lines(text: str) -> list[str]:
    """Split into lines: an empty text has none, and a final line end starts no other."""
    return text.removesuffix("\n").split("\n") if text else []


def format_line(line: str) -> str:
    """Return a line with hidden characters escaped, cut if it is long."""
    whole = escape_hidden(line)
    return (
        whole
        if len(whole) <= MAX_LINE_LENGTH
        else f"{whole[:MAX_LINE_LENGTH]}[… {len(whole) - MAX_LINE_LENGTH:,} more characters …]"
    )


def escape_hidden(text: str) -> str:
    """Escape invisible and control characters, except tabs and line ends."""
    return _HIDDEN.sub(lambda found: ascii(found[0])[1:-1], text)


def is_cut(line: str) -> bool:
    """Return whether `format_line` has cut a line."""
    return _CUT.search(line) is not None


def _grouped(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    """Group changes that are close to each other, with context lines."""
    group = list[Block]()
    for number, (tag, a1, a2, b1, b2) in enumerate(blocks):
        if tag != "equal":
            group.append((tag, a1, a2, b1, b2))
            continue
        length, first, last = a2 - a1, number == 0, number == len(blocks) - 1
        if group and (last or length > 2 * CONTEXT_LINES):
            keep = min(CONTEXT_LINES, length)
            yield [*group, (tag, a1, a1 + keep, b1, b1 + keep)]
            group = []
        if not last:
            skip = max(0, length - CONTEXT_LINES) if first or length > 2 * CONTEXT_LINES else 0
            group.append((tag, a1 + skip, a2, b1 + skip, b2))
    if group:
        yield group


def _hunk(group: Sequence[Block], before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    (_, a1, _, b1, _), (_, _, a2, _, b2) = group[0], group[-1]
    yield f"@@ -{a1 + 1},{a2 - a1} +{b1 + 1},{b2 - b1} @@"
    for tag, i1, i2, j1, j2 in group:
        if tag == "equal":
            yield from (f" {format_line(line)}" for line in before[i1:i2])
            continue
        yield from (f"-{format_line(line)}" for line in before[i1:i2])
        yield from (f"+{format_line(line)}" for line in after[j1:j2])


def _bounded(lines: Sequence[str]) -> str:
    kept, length = list[str](), 0
    for line in lines[:MAX_LINES]:
        length += len(line) + 1
        if length > MAX_LENGTH:
            break
        kept.append(line)
    left = len(lines) - len(kept)
    return "\n".join([*kept, f"[… {left:,} more lines of changes are not shown …]"] if left else kept)


def _blocks(before: Sequence[str], after: Sequence[str]) -> list[Block]:
    """Compare two texts, like difflib's opcodes."""
    low = 0
    while low < min(len(before), len(after)) and before[low] == after[low]:
        low += 1
    high = 0
    while high < min(len(before), len(after)) - low and before[-1 - high] == after[-1 - high]:
        high += 1
    a, b = before[low : len(before) - high], after[low : len(after) - high]
    middle = [(tag, i1 + low, i2 + low, j1 + low, j2 + low) for tag, i1, i2, j1, j2 in _middle(a, b)]
    first: list[Block] = [("equal", 0, low, 0, low)] if low else []
    ends = (len(before) - high, len(before), len(after) - high, len(after))
    return first + middle + ([("equal", *ends)] if high else [])


def _middle(a: Sequence[str], b: Sequence[str]) -> list[Block]:
    if not a and not b:
        return []
    if _effort(a, b) <= _MAX_EFFORT:
        return list(difflib.SequenceMatcher(None, a, b).get_opcodes())
    if len(a) == len(b):
        return _line_by_line(a, b)
    return [("replace" if a and b else "delete" if a else "insert", 0, len(a), 0, len(b))]


def _effort(a: Sequence[str], b: Sequence[str]) -> int:
    """Estimate the number of line pairs to compare."""
    ours, theirs = Counter(a), Counter(b)
    return len(a) + len(b) + sum(count * theirs[line] for line, count in ours.items())


def _line_by_line(a: Sequence[str], b: Sequence[str]) -> list[Block]:
    blocks = list[Block]()
    for at, (one, other) in enumerate(zip(a, b, strict=True)):
        tag = "equal" if one == other else "replace"
        if blocks and blocks[-1][0] == tag:
            _, start, *_ = blocks.pop()
            blocks.append((tag, start, at + 1, start, at + 1))
        else:
            blocks.append((tag, at, at + 1, at, at + 1))
    return blocks
