"""Unified diffs for approval, with everything visible and in bounded time.

Characters that a terminal would not show, or would interpret, are escaped. Where the shortest diff would take too
long to compute, a longer one is shown.
"""

from __future__ import annotations

import difflib
import itertools
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
    # If only one of the texts ends with a line end, the diff shows the difference as an empty last line.
    same_end = not old or not new or old.endswith("\n") == new.endswith("\n")
    before, after = (_lines(old), _lines(new)) if same_end else (old.split("\n"), new.split("\n"))
    blocks = _compare(before, after)
    added = sum(b2 - b1 for tag, _, _, b1, b2 in blocks if tag != "equal")
    removed = sum(a2 - a1 for tag, a1, a2, _, _ in blocks if tag != "equal")
    lines = [line for group in _group(blocks) for line in _format_hunk(group, before, after)]
    ends = itertools.accumulate(len(line) + 1 for line in lines)
    shown = min(sum(end <= MAX_LENGTH for end in ends), MAX_LINES)
    if shown < len(lines):
        lines[shown:] = [f"[… {len(lines) - shown:,} more lines of changes are not shown …]"]
    return "\n".join(lines), added, removed


def _lines(text: str) -> list[str]:
    """Split into lines: an empty text has none, and a final line end starts no other."""
    return text.removesuffix("\n").split("\n") if text else []


def format_line(line: str) -> str:
    """Return a line with hidden characters escaped, cut if it is long."""
    whole = escape_hidden(line)
    cut = len(whole) - MAX_LINE_LENGTH
    return f"{whole[:MAX_LINE_LENGTH]}[… {cut:,} more characters …]" if cut > 0 else whole


def escape_hidden(text: str) -> str:
    """Escape invisible and control characters, except tabs and line ends."""
    return _HIDDEN.sub(lambda found: ascii(found[0])[1:-1], text)


def is_cut(line: str) -> bool:
    """Return whether `format_line` has cut a line."""
    return _CUT.search(line) is not None


def _compare(before: Sequence[str], after: Sequence[str]) -> list[Block]:
    """Compare two texts, like difflib's opcodes. The common beginning and end are found first, which is fast."""
    shortest = min(len(before), len(after))
    low = next((n for n in range(shortest) if before[n] != after[n]), shortest)
    high = next((n for n in range(shortest - low) if before[-1 - n] != after[-1 - n]), shortest - low)
    a, b = before[low : len(before) - high], after[low : len(after) - high]
    ours, theirs = Counter(a), Counter(b)
    effort = len(a) + len(b) + sum(count * theirs[line] for line, count in ours.items())
    middle = [("replace", 0, len(a), 0, len(b))]
    if effort <= _MAX_EFFORT:
        middle = list(difflib.SequenceMatcher(None, a, b).get_opcodes())
    moved = [(tag, i1 + low, i2 + low, j1 + low, j2 + low) for tag, i1, i2, j1, j2 in middle]
    ends = (len(before) - high, len(before), len(after) - high, len(after))
    return [("equal", 0, low, 0, low), *moved, ("equal", *ends)]


def _group(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    """Group changes that are close to each other, with context lines. The first and the last block are equal."""
    group = list[Block]()
    for number, (tag, a1, a2, b1, b2) in enumerate(blocks):
        if tag != "equal":
            group.append((tag, a1, a2, b1, b2))
            continue
        first, last = number == 0, number == len(blocks) - 1
        if not first and not last and a2 - a1 <= 2 * CONTEXT_LINES:
            group.append((tag, a1, a2, b1, b2))
            continue
        keep = min(CONTEXT_LINES, a2 - a1)
        if len(group) > 1:
            yield [*group, (tag, a1, a1 + keep, b1, b1 + keep)]
        group = [(tag, a2 - keep, a2, b2 - keep, b2)]


def _format_hunk(group: Sequence[Block], before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    (_, a1, _, b1, _), (_, _, a2, _, b2) = group[0], group[-1]
    yield f"@@ -{a1 + 1},{a2 - a1} +{b1 + 1},{b2 - b1} @@"
    for tag, i1, i2, j1, j2 in group:
        if tag == "equal":
            yield from (f" {format_line(line)}" for line in before[i1:i2])
            continue
        yield from (f"-{format_line(line)}" for line in before[i1:i2])
        yield from (f"+{format_line(line)}" for line in after[j1:j2])
