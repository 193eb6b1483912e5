"""How a summary is laid out, written and read back. Pure.

Every line under a heading is quoted, so that what people, tools and pages said stays data: no line of theirs can be
a heading. A line names the message it came from, which recall brings back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from holdfast.compaction import sentences

GOAL, LIMITS, DECISIONS, DONE, DOING = "Goal", "Constraints", "Decisions", "Done", "In progress"
ASKS, FILES, COMMANDS, ERRORS, FACTS = "Open asks", "Files", "Commands", "Errors", "Facts"
NAMES = (GOAL, LIMITS, DECISIONS, DONE, DOING, ASKS, FILES, COMMANDS, ERRORS, FACTS)
LISTS = (FILES, COMMANDS)

_BY_NAME = {name.casefold(): name for name in NAMES} | {"facts to keep": FACTS, "open questions": ASKS}
_HEADING = re.compile(r"(?:#{1,4} ?|\*\*)?([A-Za-z ]{4,20}?):?(?:\*\*)?:?")
_ITEM = re.compile(r"(?:> ?|[-*•] |\d{1,3}[.)] )*(?:#(\d{1,15}) )?(?:(user|assistant|tool|system): )?(.*)", re.DOTALL)


def heading(name: str) -> str:
    return f"## {name}"


def line(given: sentences.Sentence) -> str:
    """A sentence as the summary quotes it. Lists have neither message nor speaker."""
    if given.section in LISTS or not given.seq:
        return f"> {given.text}"
    return f"> #{given.seq} {given.role}: {given.text}" if given.role else f"> #{given.seq} {given.text}"


def written(chosen: Sequence[sentences.Sentence]) -> str:
    """A summary: sections in their order, each in the order things were said."""
    blocks = []
    for name in NAMES:
        under = sorted((each for each in chosen if each.section == name), key=lambda each: each.seq)
        if under:
            blocks.append("\n".join([heading(name), *map(line, under)]))
    return "\n".join(blocks)


def quoted(text: str) -> str:
    """Whatever was written as a summary, as one: a line that is no heading of ours is quoted, and harmless."""
    found = []
    for raw in text.splitlines():
        told = sentences.folded(raw)
        indent = " " * min(8, len(raw) - len(raw.lstrip(" ")))
        if told:
            found.append(told if _named(told) or told.startswith(">") else f"> {indent}{told}")
    return "\n".join(found)


def parsed(text: str | None) -> list[sentences.Sentence]:
    """What an earlier summary says, whoever wrote it; what stands under no heading of ours is facts."""
    section, found = FACTS, list[sentences.Sentence]()
    for raw in (text or "").splitlines():
        named = _named(raw)
        if named:
            section = named
        else:
            found += _items(raw, section)
    return found


def _named(raw: str) -> str | None:
    match = _HEADING.fullmatch(raw.strip())
    return _BY_NAME.get(match[1].strip().casefold()) if match else None


def _items(raw: str, section: str) -> Iterator[sentences.Sentence]:
    match = _ITEM.fullmatch(raw.strip())
    seq, role, text = match.groups() if match else (None, None, raw)
    for piece in sentences.pieces(text):
        yield sentences.sentence(int(seq or 0), role or "", piece, section)
