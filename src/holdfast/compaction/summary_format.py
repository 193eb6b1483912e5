"""The text format of a summary: sections with quoted lines. Pure.

Every line under a heading is quoted, so no text of a user, a tool or a web page can become a heading. A line names the
message that it comes from, which recall can fetch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from holdfast.compaction import sentences

GOAL, LIMITS, DECISIONS, DONE, DOING = "Goal", "Constraints", "Decisions", "Done", "In progress"
ASKS, FILES, COMMANDS, ERRORS, FACTS = "Open asks", "Files", "Commands", "Errors", "Facts"
SECTIONS = (GOAL, LIMITS, DECISIONS, DONE, DOING, ASKS, FILES, COMMANDS, ERRORS, FACTS)
LISTS = (FILES, COMMANDS)

_BY_NAME = {name.casefold(): name for name in SECTIONS} | {"facts to keep": FACTS, "open questions": ASKS}
_HEADING = re.compile(r"(?:#{1,4} ?|\*\*)?([A-Za-z ]{4,20}?):?(?:\*\*)?:?")
_ITEM = re.compile(r"(?:> ?|[-*•] |\d{1,3}[.)] )*(?:#(\d{1,15}) )?(?:(user|assistant|tool|system): )?(.*)", re.DOTALL)


def render_heading(section: str) -> str:
    """Return the heading line of a section."""
    return f"## {section}"


def render_line(sentence: sentences.Sentence) -> str:
    """Return a sentence as a quoted line. Entries of lists name neither message nor author."""
    if sentence.section in LISTS or not sentence.seq:
        return f"> {sentence.text}"
    author = f"{sentence.role}: " if sentence.role else ""
    return f"> #{sentence.seq} {author}{sentence.text}"


def render(chosen: Sequence[sentences.Sentence]) -> str:
    """Return a summary with these sentences: sections in their order, sentences in the order of the log."""
    blocks = []
    for section in SECTIONS:
        lines = sorted((each for each in chosen if each.section == section), key=lambda each: each.seq)
        if lines:
            blocks.append("\n".join([render_heading(section), *map(render_line, lines)]))
    return "\n".join(blocks)


def quote(text: str) -> str:
    """Bring the summary of a model into the format: every line that is not a known heading is quoted."""
    lines = []
    for raw in text.splitlines():
        line = sentences.fold(raw)
        indent = " " * min(8, len(raw) - len(raw.lstrip(" ")))
        if line:
            lines.append(line if _find_section(line) or line.startswith(">") else f"> {indent}{line}")
    return "\n".join(lines)


def parse(text: str | None) -> list[sentences.Sentence]:
    """Return the sentences of an earlier summary; lines without a known heading are facts."""
    section, found = FACTS, list[sentences.Sentence]()
    for raw in (text or "").splitlines():
        heading = _find_section(raw)
        if heading:
            section = heading
        else:
            found += _parse_line(raw, section)
    return found


def _find_section(raw: str) -> str | None:
    match = _HEADING.fullmatch(raw.strip())
    return _BY_NAME.get(match[1].strip().casefold()) if match else None


def _parse_line(raw: str, section: str) -> Iterator[sentences.Sentence]:
    match = _ITEM.fullmatch(raw.strip())
    seq, role, text = match.groups() if match else (None, None, raw)
    for part in sentences.split_long_line(text):
        yield sentences.build_sentence(int(seq or 0), role or "", part, section)
