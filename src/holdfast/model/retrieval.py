"""Which sentences of a conversation fit a question best. Pure, and of no language in particular.

Sentences are sets of stems; scripts without spaces are cut into pairs of characters. The ranking is bm25,
weighted by who spoke. What a message holds is found out once and kept with the message.
"""

from __future__ import annotations

import heapq
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from holdfast import parts, types
from holdfast.model import intent

_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_TERM = re.compile(rf"[{_UNSPACED}]+|[^\W_{_UNSPACED}]+")
_CJK = re.compile(f"[{_UNSPACED}]")
_SENTENCE = re.compile(r"(?<=[.!?\u061f])\s+|(?<=[\u3002\uff01\uff1f])|\n+")
_ENDINGS = ("ings", "ing", "edly", "ed", "ies", "es", "s", "ly")

COMMON = frozenset(
    """a about am an and any are as at be been but by can could did do does for from had has have he her him his how i
    if in into is it its just let like may me might more most my no not now of off on or our out over please remind
    said say says she should so some tell than that the their them then there these they this those to too up us very
    s t m re ve ll d was we were what when where which while who whom whose why will with would you your
    der die das dem den des und ist sind war ein eine einen einem einer mein meine meinem meinen dein deine ich du er es
    wir ihr sie wie was wann wo wer wen welche welcher welches warum von mit zu im in auf
    le la les de du des et est un une que qui quel quelle mon ma mes je tu il elle où quand comment
    el los las del y es una uno mi mis qué cuál quién dónde cuándo cómo""".split()  # noqa: SIM905 -- words read best as words
)
# What is asked for by one word and told by another.
_SAME = {"called": "name", "heisst": "name", "heisse": "name", "hiess": "name", "llama": "name", "appelle": "name"}

# Longer texts are looked at as far as this; a tool's result may be a whole file.
MOST_CHARACTERS = 200_000
MOST_SENTENCES = 2_000
_K1, _B = 1.2, 0.3
# So many words are a usual sentence; only beyond that does length count against it.
_USUAL = 12
# Scores this close count as one, so that the later of two statements of one fact is the one that holds.
_STEPS = 8
_LOOKED_AT = 50


class Sentence(msgspec.Struct, frozen=True):
    """One sentence, and what it is about."""

    text: str
    terms: frozenset[str]
    asks: bool
    size: int


class Found(msgspec.Struct, frozen=True):
    """A sentence that fits, where it stands, and which share of the question's words it has."""

    text: str
    role: str
    seq: int
    at: float
    share: float
    step: int


def stem(word: str) -> str:
    """A word without its ending, roughly: it only has to agree with itself."""
    word = _SAME.get(word, word)
    if len(word) > 4 and word.isascii():
        ending = next((end for end in _ENDINGS if word.endswith(end) and len(word) - len(end) >= 3), "")
        word = word[: len(word) - len(ending)]
    return word[:-1] if len(word) > 3 and word[-1] in "ey" else word


def terms(text: str) -> frozenset[str]:
    """What a text is about; with nothing but common words, those."""
    found = _TERM.findall(text.casefold())
    words = [word for word in found if word not in COMMON] or found
    return frozenset(itertools.chain.from_iterable(map(_pieces, words)))


def _pieces(word: str) -> Iterable[str]:
    if not _CJK.match(word):
        return (stem(word),)
    return (word,) if len(word) == 1 else (word[i : i + 2] for i in range(len(word) - 1))


def sentences(text: str) -> tuple[Sentence, ...]:
    """The sentences of a text that are about anything."""
    pieces = itertools.islice(_SENTENCE.split(text[:MOST_CHARACTERS]), MOST_SENTENCES)
    return tuple(
        Sentence(piece, about, intent.asks(piece), max(_USUAL, len(about)))
        for piece in map(str.strip, pieces)
        if (about := terms(piece))
    )


def of(message: types.Message) -> tuple[Sentence, ...]:
    """The sentences of a message."""
    kept: tuple[Sentence, ...] | None = message.__dict__.get("sentences")
    if kept is None:
        kept = message.__dict__["sentences"] = sentences(parts.text(message.content))
    return kept


_WEIGHT = {"user": 1.0, "system": 0.8, "tool": 0.7, "assistant": 0.5}


def best(asked: str, messages: Sequence[types.Message], most: int = 3) -> list[Found]:
    """The sentences that fit best, the best first; of equals, the latest. Questions answer nothing."""
    wanted = terms(asked)
    fitting = _fitting(wanted, messages) if wanted else []
    if not fitting:
        return []
    worth = _worth(wanted, Counter(hit for hit, _, _ in fitting), max(len(messages), len(fitting)))
    weigh = lru_cache(maxsize=None)(lambda hit, role, size: _WEIGHT[role] * _score(hit, size, worth))
    scores = [weigh(hit, m.role, s.size) for hit, m, s in fitting]
    step = max(scores) / _STEPS
    ranks = [(round(score / step), fit[1].seq) for score, fit in zip(scores, fitting, strict=True)]
    first = heapq.nlargest(_LOOKED_AT, range(len(ranks)), key=ranks.__getitem__)
    whole = _sum(wanted, worth)
    found = ((*fitting[place], ranks[place][0]) for place in first)
    return _distinct(
        (Found(s.text, m.role, m.seq, m.at, _sum(hit, worth) / whole, rank) for hit, m, s, rank in found), most
    )


def best_lines(asked: str, text: str, most: int = 3) -> list[str]:
    """The sentences of one text that fit best, in the order they stand there; the question itself is none."""
    wanted = terms(asked)
    same = asked.strip().casefold()
    held = [sentence for sentence in sentences(text) if not (sentence.asks and same in sentence.text.casefold())]
    hits = [(wanted & sentence.terms, place) for place, sentence in enumerate(held)]
    worth = _worth(wanted, Counter(hit for hit, _ in hits), len(held))
    scored = [(_score(hit, held[place].size, worth), -place) for hit, place in hits if hit]
    chosen = heapq.nlargest(most, scored)
    least = chosen[0][0] / 2 if chosen else 0.0
    return [held[-place].text for score, place in sorted(chosen, key=lambda one: -one[1]) if score >= least]


def _fitting(
    wanted: frozenset[str], messages: Sequence[types.Message]
) -> list[tuple[frozenset[str], types.Message, Sentence]]:
    """What has any of the words, and which of them."""
    # A stem is the beginning of its word: a body without it has no such word, and need not be taken apart.
    told = {word for word, same in _SAME.items() if stem(same) in wanted}
    roots = re.compile("|".join(map(re.escape, sorted(wanted | told))) + r"|\\u")
    return [
        (wanted & sentence.terms, message, sentence)
        for message in messages
        if "sentences" in message.__dict__ or roots.search(message.body.casefold())
        for sentence in of(message)
        if not wanted.isdisjoint(sentence.terms) and not sentence.asks
    ]


def _worth(wanted: frozenset[str], hits: Mapping[frozenset[str], int], among: int) -> dict[str, float]:
    """How much each word tells: the rarer, the more."""
    counts = {term: sum(count for hit, count in hits.items() if term in hit) for term in wanted}
    return {term: math.log(1 + (among - count + 0.5) / (count + 0.5)) for term, count in counts.items()}


def _sum(hit: frozenset[str], worth: dict[str, float]) -> float:
    # In one order always: sets have none, and sums of fractions depend on it.
    return sum(worth[term] for term in sorted(hit))


def _score(hit: frozenset[str], size: int, worth: dict[str, float]) -> float:
    return _sum(hit, worth) * (_K1 + 1) / (1 + _K1 * (1 - _B + _B * size / _USUAL))


def _distinct(found: Iterable[Found], most: int) -> list[Found]:
    kept: dict[Any, Found] = {}
    for one in found:
        kept.setdefault(one.text.casefold(), one)
        if len(kept) == most:
            break
    return list(kept.values())
