"""What a person asked for and has not got yet, in the person's own words. Pure.

An ask is open until somebody answers it. One for later ("remind me to …", "don't forget …") or one that was put off
("I'll get back to you") stays open until somebody says that it is done.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

import msgspec

from holdfast.compaction import cue_words, sentences, summary_format, time_slices

MOST = 40

_PUT_OFF = re.compile(
    r"\b(?:I['’]ll (?:do|look|get|check|send|write|remind|tell|come)|on (?:my|the) list|get back to you|not yet"
    r"|can(?:no|['’])t yet|once (?:it|that|the|you)|werde ich|vorgemerkt|je vais|lo haré)\b|会的|稍后|後で|나중에",
    re.IGNORECASE,
)


def still_open(spoken: Sequence[sentences.Sentence], before: Sequence[sentences.Sentence]) -> list[sentences.Sentence]:
    """The asks that are open after all that was spoken, oldest first; `before` is the summary so far."""
    known = [each for each in before if each.section == summary_format.ASKS]
    standing = [ask for ask in known if "ask" in ask.cues]
    # Nobody had answered these when they left the context; the next answer is theirs.
    unanswered = [ask for ask in known if "ask" not in ask.cues]
    # A request may have none of the words that tell one: what was said last, to nobody's answer, counts too.
    last: list[sentences.Sentence] = []
    for (_, role), said in groupby(spoken, key=lambda each: (each.seq, each.role)):
        time_slices.breathe()
        lines = list(said)
        if role not in ("user", "assistant"):
            continue
        for line in lines:
            standing = [ask for ask in standing if not _closes(line, ask)]
        if role == "user":
            standing += [line for line in lines if _for_later(line)]
            unanswered += [line for line in lines if line.cues & {"ask", "question"}]
            last = [] if unanswered or "done" in lines[0].cues else lines[:1]
        else:
            standing += [ask for ask in unanswered if "ask" in ask.cues] if _puts_off(lines) else []
            unanswered, last = [], []
        standing = standing[-MOST:]
    by_text = {each.text: each for each in [*standing, *unanswered, *last]}
    found = sorted(by_text.values(), key=lambda each: each.seq)[-MOST:]
    return [msgspec.structs.replace(each, section=summary_format.ASKS) for each in found]


def _for_later(line: sentences.Sentence) -> bool:
    """Whether an answer now does not settle it."""
    return {"ask", "later"} <= line.cues and len(line.words) > 3


def _puts_off(lines: Sequence[sentences.Sentence]) -> bool:
    return any(_PUT_OFF.search(line.text) for line in lines) and not any("done" in line.cues for line in lines)


def _closes(line: sentences.Sentence, ask: sentences.Sentence) -> bool:
    """Whether this says that the ask is done: it says so of most of what was asked."""
    if "done" not in line.cues or line.cues & {"ask", "question"}:
        return False
    meant = {word for word in ask.words if len(word) > 3 and not cue_words.found(word, frozenset({word}))}
    return bool(meant) and 2 * len(meant & line.words) >= len(meant)
