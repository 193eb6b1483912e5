"""What was said, as sentences: the ground the ledger and the extract stand on. Pure.

A sentence is one line: white space is folded, signs that steer a terminal, a reader or a model are dropped, and
secrets are gone. So whatever stands in a message, quoted it can be neither a heading nor an instruction of ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from holdfast import content_parts, redaction, types
from holdfast.compaction import cue_words, speaker, time_slices

# Of one message at most so much is read: of a long paste or output the beginning and the end say most.
LONGEST = {"user": (6_000, 2_000), "assistant": (4_000, 2_000), "tool": (1_000, 1_000), "system": (1_000, 0)}
_SHORTEST, _LONG = 3, 320
# A long text is searched for secrets by stretches; around a cut so far, which is longer than a key is.
STRETCH, REACH = 16_384, 4_096
LONGEST_BLOCK = 65_536
# So many sentences are weighed in detail; of more, those that say least are left.
MOST = 1_500

_BREAK = re.compile(r"(?<=[.!?…][\s\"')\]])|(?<=[。！？])|[\r\n\v\f\x85\u2028\u2029]+|(?<=;)\s")
# Control and direction signs, and those that have no width; a zero-width joiner is part of scripts and emoji.
_STEERING = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
_SPACE = re.compile(r"\s+")
# What holds data together where a model is asked for a summary.
_TAGS = re.compile(r"(?i)<(\s{0,9}/?\s{0,9}(?:record|messages|keep)\s{0,9})>")
_WORD = re.compile(r"\w+")
_WIDE = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3\uf900-\ufaff]+")


class Sentence(msgspec.Struct, frozen=True):
    """One thing said, where and by whom. `words` are cut to their beginnings, so that forms of a word are one."""

    seq: int
    role: str
    text: str
    words: frozenset[str]
    cues: frozenset[str] = frozenset()
    section: str = ""
    """Where an earlier summary had it; nothing: it is new."""


def folded(text: str) -> str:
    """One line, without steering signs; what a model could take for the marks of a conversation is broken up."""
    line = _SPACE.sub(" ", text)
    bare = _STEERING.sub("", line)
    # What stood between spaces may be gone. Folding a line again changes nothing.
    line = line if bare == line else _SPACE.sub(" ", bare)
    return harmless(line).replace("<|", "< |").strip()


def harmless(text: str) -> str:
    """Text that cannot end the data it stands in."""
    return _TAGS.sub(r"(\1)", text)


def said(message: types.Message) -> str:
    """The text of a message, bounded, without secrets: cut first, a key would lose what tells it is one."""
    head, tail = LONGEST[speaker.of(message)]
    text = redacted(_bounded(content_parts.text(message.content), head, tail))
    return f"{text[:head]}\n{text[len(text) - tail :]}" if len(text) > head + tail else text


def redacted(text: str) -> str:
    """The text without secrets, however long it is: a stretch at a time, so that others are let in."""
    pieces, begin = [], 0
    while len(text) - begin > STRETCH:
        end = _whole(text, begin + STRETCH, REACH)
        pieces.append(redaction.redact(text[begin:end]))
        time_slices.breathe()
        begin = end
    return "".join([*pieces, redaction.redact(text[begin:])])


def _bounded(text: str, head: int, tail: int) -> str:
    """Of a very long text both ends, with at least so many characters."""
    if len(text) <= STRETCH:
        return text
    first, last = _whole(text, head, REACH), _whole(text, len(text) - tail, -REACH)
    return f"{text[:first]}\n{text[last:]}" if first < last else text


def _whole(text: str, place: int, step: int) -> int:
    """This place, or the next one by that step, where a cut goes through no secret."""
    while 0 < place < len(text):
        around = text[max(0, place - REACH) : place + REACH]
        if not _within_key(text, place) and redaction.redact(around) == around:
            break
        time_slices.breathe()
        place += step
    return min(max(0, place), len(text))


def _within_key(text: str, place: int) -> bool:
    """Whether a block like that of a private key is open here, which may be long."""
    begin = text.rfind("-----BEGIN ", max(0, place - LONGEST_BLOCK), place)
    return begin >= 0 and text.find("-----END ", begin, place) < 0


def real(messages: Iterable[types.Message]) -> list[types.Message]:
    """Without the summary that stands among them, and without what was redacted."""
    return [message for message in messages if not speaker.is_summary(message) and not message.redacted]


def sentences(messages: Sequence[types.Message]) -> list[Sentence]:
    """Everything said, in order."""
    return [sentence(each.seq, speaker.of(each), line) for each in messages for line in lines(said(each))]


def telling(found: list[Sentence]) -> list[Sentence]:
    """Those that may matter, in order; all, unless there are more than are worth weighing."""
    if len(found) <= MOST:
        return found
    ranked = sorted(range(len(found)), key=lambda index: (-_promise(found[index]), -index))
    return [found[index] for index in sorted(ranked[:MOST])]


def sentence(seq: int, role: str, text: str, section: str = "") -> Sentence:
    """One line as a sentence."""
    time_slices.breathe()
    words = terms(text)
    return Sentence(seq, role, text, words, cue_words.found(text, words), section)


def terms(text: str) -> frozenset[str]:
    """The words of a text by their first letters; in scripts without spaces, its pairs of signs."""
    lowered = text.casefold()
    found = {word[:6] for word in _WORD.findall(lowered)}
    if not lowered.isascii():
        for run in _WIDE.findall(lowered):
            found.update(run[index : index + 2] for index in range(max(1, len(run) - 1)))
    return frozenset(found)


def pieces(text: str) -> Iterator[str]:
    """A line as it is, or the parts of one that is too long to be quoted as a whole."""
    line = folded(text)
    while len(line) > _LONG:
        piece = clipped(line)
        yield piece
        line = line[len(piece) :].lstrip()
    if len(line) >= _SHORTEST and any(map(str.isalnum, line)):
        yield line


def lines(text: str) -> Iterator[str]:
    """The sentences of a text, each on a line of its own."""
    for piece in _BREAK.split(text):
        yield from pieces(piece)


def clipped(text: str, most: int = _LONG) -> str:
    """The beginning of a line, ended between words where it has any."""
    if len(text) <= most:
        return text
    end = text.rfind(" ", most // 2, most)
    return text[: end if end > 0 else most].rstrip()


_SPEAKERS = {"user": 2.0, "assistant": 1.0, "tool": 0.2, "system": 0.3}


def _promise(given: Sentence) -> float:
    """What can be told of a sentence at a glance."""
    time_slices.breathe()
    words = len(given.words)
    fit = 1.0 if 4 <= words <= 40 else 0.4
    return fit * _SPEAKERS[given.role] + len(given.cues) + (0.8 if any(map(str.isdigit, given.text)) else 0.0)
