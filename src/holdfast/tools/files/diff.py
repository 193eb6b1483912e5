"""What would change in a file, line by line, for people to judge. Pure.

It is the difference of what is really there and what would really be there, and it hides nothing: characters that
a terminal would not show, or would obey, are spelled out. Finding the shortest difference can take forever; where it
might, a longer one is shown.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Sequence

AROUND = 3
LINES = 2_000
LENGTH = 60_000
LONGEST = 1_000
_EFFORT = 300_000

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
    "|[\ud800-\udfff]|[\U000e0000-\U000e007f]"
)

_CUT = re.compile(r"\[… [\d,]+ more characters …\]\Z")

Block = tuple[str, int, int, int, int]


def unified(old: str, new: str) -> tuple[str, int, int]:
    """The difference as text, how many lines are new in it, and how many gone."""
    before, after = (_lines(old), _lines(new)) if not old or not new else (old.split("\n"), new.split("\n"))
    blocks = _blocks(before, after)
    added = sum(b2 - b1 for tag, _, _, b1, b2 in blocks if tag != "equal")
    gone = sum(a2 - a1 for tag, a1, a2, _, _ in blocks if tag != "equal")
    lines = [line for group in _grouped(blocks) for line in _hunk(group, before, after)]
    return _bounded(lines), added, gone


def _lines(text: str) -> list[str]:
    """As people count them: nothing has none, and the end of the last begins no other."""
    return text.removesuffix("\n").split("\n") if text else []


def shown(line: str) -> str:
    """A line that does what it shows."""
    whole = clear(line)
    return whole if len(whole) <= LONGEST else f"{whole[:LONGEST]}[… {len(whole) - LONGEST:,} more characters …]"


def clear(text: str) -> str:
    """Text in which nothing is hidden: what would not be seen, or obeyed, is spelled out. Lines and tabs stay."""
    return _HIDDEN.sub(lambda found: ascii(found[0])[1:-1], text)


def is_cut(line: str) -> bool:
    """Whether a line of a difference ends as one does that was too long."""
    return _CUT.search(line) is not None


def _grouped(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    """Changes that stand near each other, with what is equal around them."""
    group = list[Block]()
    for number, (tag, a1, a2, b1, b2) in enumerate(blocks):
        if tag != "equal":
            group.append((tag, a1, a2, b1, b2))
            continue
        length, first, last = a2 - a1, number == 0, number == len(blocks) - 1
        if group and (last or length > 2 * AROUND):
            keep = min(AROUND, length)
            yield [*group, (tag, a1, a1 + keep, b1, b1 + keep)]
            group = []
        if not last:
            skip = max(0, length - AROUND) if first or length > 2 * AROUND else 0
            group.append((tag, a1 + skip, a2, b1 + skip, b2))
    if group:
        yield group


def _hunk(group: Sequence[Block], before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    (_, a1, _, b1, _), (_, _, a2, _, b2) = group[0], group[-1]
    yield f"@@ -{a1 + 1},{a2 - a1} +{b1 + 1},{b2 - b1} @@"
    for tag, i1, i2, j1, j2 in group:
        if tag == "equal":
            yield from (f" {shown(line)}" for line in before[i1:i2])
            continue
        yield from (f"-{shown(line)}" for line in before[i1:i2])
        yield from (f"+{shown(line)}" for line in after[j1:j2])


def _bounded(lines: Sequence[str]) -> str:
    kept, length = list[str](), 0
    for line in lines[:LINES]:
        length += len(line) + 1
        if length > LENGTH:
            break
        kept.append(line)
    left = len(lines) - len(kept)
    return "\n".join([*kept, f"[… {left:,} more lines of changes are not shown …]"] if left else kept)


def _blocks(before: Sequence[str], after: Sequence[str]) -> list[Block]:
    """What is equal and what is not, from the first line to the last."""
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
    if _effort(a, b) <= _EFFORT:
        return list(difflib.SequenceMatcher(None, a, b).get_opcodes())
    if len(a) == len(b):
        return _line_by_line(a, b)
    return [("replace" if a and b else "delete" if a else "insert", 0, len(a), 0, len(b))]


def _effort(a: Sequence[str], b: Sequence[str]) -> int:
    """How many pairs of lines would have to be looked at."""
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
