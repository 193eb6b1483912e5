"""Which sentences of a conversation fit a question best. Pure, and of no language in particular.

Sentences are sets of stems; scripts without spaces are cut into pairs of characters. A word of a question is met by
itself, or for less by one that may stand for it. The ranking is bm25, weighted by who spoke and by whether a sentence
has what is asked for: a time, a number, a name. What a message holds is found out once and kept with the message.
"""

from __future__ import annotations

import calendar
import heapq
import itertools
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from holdfast import content_parts, types
from holdfast.model import expected, intent, synonyms

_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_TERM = re.compile(rf"[{_UNSPACED}]+|[^\W_{_UNSPACED}]+")
_CJK = re.compile(f"[{_UNSPACED}]")
_SENTENCE = re.compile(r"(?<=[.!?\u061f])\s+|(?<=[\u3002\uff01\uff1f])|\n+")
_ENDINGS = ("ings", "ing", "edly", "ed", "ies", "es", "s", "ly")
# These make another word of a word: only of one that is long enough to be known by what is left.
_LONG_ENDINGS = ("ations", "ation", "ments", "ment", "ances", "ance", "ions", "ion", "ers", "er", "als", "al")
# A line of a summary names the message it quotes, and who said it; so does what a search brings.
_SUMMARY = "summary:"
_SPEAKER = "user|assistant|tool|system"
_QUOTED = re.compile(rf"> #(\d{{1,15}}) (?:({_SPEAKER}): )?(.*)")
_BROUGHT = re.compile(rf"(?m)^\[message (\d{{1,15}}), ({_SPEAKER}), (\d{{4}}-\d\d-\d\d \d\d:\d\d) UTC\]$")
# Where a long result is shown in part: nobody knows who said what comes after it, until the next head.
_GAP = re.compile(r"(?m)^\[… [\d,]+ characters left out[^\n]*…\]$")

COMMON = frozenset(
    """a about after again all also am an and any are as at be because been before being but by can could d did do does
    for from had has have he her him his how i if in into is it its just let like ll m may me might more most my
    no not now of off on or our out over please re remind s said say says she should so some t tell than that
    the their them then there these they this those to too up us ve very was we were what when where which while
    who whom whose why will with would you your
    der die das dem den des und ist sind war ein eine einen einem einer mein meine meinem meinen dein deine ich du er es
    wir ihr sie wie was wann wo wer wen welche welcher welches warum von mit zu im in auf
    le la les de du des et est un une que qui quel quelle mon ma mes je tu il elle où quand comment
    el los las del y es una uno mi mis qué cuál quién dónde cuándo cómo""".split()  # noqa: SIM905 -- words read best as words
)
# What is asked for by one word and told by another.
_SAME = synonyms.forms()
_PHRASES = synonyms.phrases()
_PHRASE = re.compile(rf"\b(?:{'|'.join(sorted(_PHRASES, reverse=True))})\b")

# Longer texts are looked at as far as this; a tool's result may be a whole file.
MOST_CHARACTERS = 200_000
MOST_SENTENCES = 2_000
_K1, _B = 1.2, 0.3
# So many words are a usual sentence; only beyond that does length count against it.
_USUAL = 8
# Scores this close count as one, so that the later of two statements of one fact is the one that holds.
_STEPS = 16
_LOOKED_AT = 50
# What it counts that another word stands for the one that was asked for, and that what is expected is there.
_STANDS, _IS_ONE, _EXPECTED = 0.7, 0.6, 0.3


class Sentence(msgspec.Struct, frozen=True):
    """One sentence, and what it is about; where it is only quoted, which message it is from and who said it."""

    text: str
    terms: frozenset[str]
    asks: bool
    size: int
    seq: int | None = None
    role: str = ""
    at: float = 0.0


class Found(msgspec.Struct, frozen=True):
    """A sentence that fits, where it stands, and which share of the question's words it has."""

    text: str
    role: str
    seq: int
    """0: in a summary that does not say where it is from."""
    at: float
    share: float
    step: int


class _Meant(msgspec.Struct, frozen=True):
    """What a question is about: for each of its words, the stems that meet it, and how well."""

    words: dict[str, dict[str, float]]
    known: frozenset[str]


def stem(word: str) -> str:
    """A word without its ending, roughly: it only has to agree with itself, and to begin as the word does."""
    word = _SAME.get(word, word)
    if len(word) > 4 and word.isascii():
        word = _without(word, _ENDINGS, 3)
        word = _without(word, _LONG_ENDINGS, 5)
        if len(word) > 3 and word[-1] == word[-2] and word[-1] in "bdgmnprt":
            word = word[:-1]
    return word[:-1] if len(word) > 3 and word[-1] in "ey" else word


def _without(word: str, endings: Sequence[str], least: int) -> str:
    ending = next((end for end in endings if word.endswith(end) and len(word) - len(end) >= least), "")
    return word[: len(word) - len(ending)]


def terms(text: str) -> frozenset[str]:
    """What a text is about; with nothing but common words, those."""
    return frozenset(itertools.chain.from_iterable(map(_pieces, _telling(text))))


def _telling(text: str) -> list[str]:
    found = _TERM.findall(_PHRASE.sub(lambda said: _PHRASES[said[0]], text.casefold()))
    return [word for word in found if word not in COMMON] or found


def _pieces(word: str) -> Iterable[str]:
    if not _CJK.match(word):
        return (stem(word),)
    return (word,) if len(word) == 1 else (word[i : i + 2] for i in range(len(word) - 1))


def widened(asked: str) -> list[str]:
    """Words that may stand for those of a question, for whoever searches by words alone: some for each, in turns."""
    words = list(dict.fromkeys(_telling(asked)))
    here = set(map(stem, words))
    turns = itertools.chain.from_iterable(itertools.zip_longest(*(sorted(_stand_ins(word)) for word in words)))
    return [word for word in dict.fromkeys(filter(None, turns)) if stem(word) not in here]


def _stand_ins(word: str) -> dict[str, float]:
    """What may stand for a word: for itself where the thesaurus has it, else for another form of it."""
    known = _thesaurus()
    return known.get(word) or known.get(f"{stem(word)}-", {})


@lru_cache(maxsize=1)
def _thesaurus() -> dict[str, dict[str, float]]:
    """For each word, and for each stem (with a hyphen): the words that meet it, and how well."""
    found: dict[str, dict[str, float]] = {}
    kinds = [(asked, told, _IS_ONE) for asked, told in synonyms.kinds()]
    for asked, told, weight in [*kinds, *((group, group, _STANDS) for group in synonyms.groups())]:
        for word in asked:
            for name in (word, f"{stem(word)}-"):
                found.setdefault(name, {}).update(dict.fromkeys(told, weight))
    return found


def _meant(asked: str) -> _Meant:
    words: dict[str, dict[str, float]] = {}
    for word in _telling(asked):
        for term in _pieces(word):
            met = {stem(other): weight for other, weight in _stand_ins(word).items()}
            words.setdefault(term, {}).update(met | {term: 1.0})
    return _Meant(words, frozenset(itertools.chain.from_iterable(words.values())))


def sentences(text: str) -> tuple[Sentence, ...]:
    """The sentences of a text that are about anything."""
    pieces = itertools.islice(_SENTENCE.split(text[:MOST_CHARACTERS]), MOST_SENTENCES)
    return tuple(
        Sentence(piece, about, intent.asks(piece), max(_USUAL, len(about)))
        for piece in map(str.strip, pieces)
        if (about := terms(piece))
    )


def of(message: types.Message, brought: bool = False) -> tuple[Sentence, ...]:
    """The sentences of a message; those a summary quotes, or a search brought, are of the messages they name."""
    kept: tuple[Sentence, ...] | None = message.__dict__.get("sentences")
    if kept is None:
        text = content_parts.text(message.content)
        quoted = _summed_up(text) if is_summary(message) else _brought(text) if brought else sentences(text)
        kept = message.__dict__["sentences"] = tuple(quoted)
    return kept


def is_summary(message: types.Message) -> bool:
    """Whether it stands for messages that are not in view."""
    return message.uid.startswith(_SUMMARY)


def _summed_up(text: str) -> Iterator[Sentence]:
    for line in text[:MOST_CHARACTERS].splitlines()[:MOST_SENTENCES]:
        quoted = _QUOTED.fullmatch(line)
        seq, role, said = quoted.groups() if quoted else (0, None, line.lstrip("> "))
        for sentence in sentences(said):
            yield msgspec.structs.replace(sentence, seq=int(seq), role=role or "system")


def _brought(text: str) -> Iterator[Sentence]:
    _, *pieces = _BROUGHT.split(text[:MOST_CHARACTERS])
    for seq, role, when, said in zip(pieces[::4], pieces[1::4], pieces[2::4], pieces[3::4], strict=True):
        whole, *cut_off = _GAP.split(said, maxsplit=1)
        # The last sentence before a gap may be half of one.
        for sentence in sentences(whole)[: -1 if cut_off else None]:
            yield msgspec.structs.replace(sentence, seq=int(seq), role=role, at=_time(when))


def _time(when: str) -> float:
    try:
        return float(calendar.timegm(time.strptime(when, "%Y-%m-%d %H:%M")))
    except ValueError:
        return 0.0


Own = Callable[[str], bool]
"""Whether a sentence is one a model says of itself, not of what it was asked."""

_WEIGHT = {"user": 1.0, "system": 0.8, "tool": 0.7, "assistant": 0.5}


class _Fit(msgspec.Struct, frozen=True):
    """A sentence that has any of the words meant, and which; where it stands, and who said it."""

    hit: frozenset[str]
    sentence: Sentence
    seq: int
    role: str
    at: float


def best(
    asked: str, messages: Sequence[types.Message], most: int = 3, *, searches: str = "", own: Own | None = None
) -> list[Found]:
    """The sentences that fit best, the best first; of equals, the latest. Questions answer nothing.

    Results of the tool named by `searches` are quotes of other messages. What is the model's `own` is left out.
    """
    meant = _meant(asked)
    fitting = _fitting(meant, messages, _calls(messages, searches)) if meant.words else []
    fitting = [fit for fit in fitting if not (own and fit.role == "assistant" and own(fit.sentence.text))]
    if not fitting:
        return []
    worth = _worth(meant, Counter(fit.hit for fit in fitting), max(len(messages), len(fitting)))
    met = lru_cache(maxsize=None)(lambda hit: _met(hit, meant, worth))
    looked_for = expected.of(asked)
    scores = [_WEIGHT[fit.role] * _score(met(fit.hit), fit.sentence, looked_for) for fit in fitting]
    step = max(scores) / _STEPS
    ranks = [(round(score / step), fit.seq) for score, fit in zip(scores, fitting, strict=True)]
    first = heapq.nlargest(_LOOKED_AT, range(len(ranks)), key=ranks.__getitem__)
    whole = sum(worth[word] for word in sorted(worth))
    found = ((fitting[place], ranks[place][0]) for place in first)
    return _distinct(
        (Found(fit.sentence.text, fit.role, fit.seq, fit.at, met(fit.hit) / whole, rank) for fit, rank in found), most
    )


def best_lines(asked: str, text: str, most: int = 3, least: float = 0.0) -> list[str]:
    """The sentences of one text that fit best, in the order they stand there; the question itself is none.

    They have at least that share of what the question's words tell.
    """
    meant = _meant(asked)
    same = asked.strip().casefold()
    held = [sentence for sentence in sentences(text) if not (sentence.asks and same in sentence.text.casefold())]
    hits = [(meant.known & sentence.terms, place) for place, sentence in enumerate(held)]
    worth = _worth(meant, Counter(hit for hit, _ in hits), len(held))
    enough = least * sum(worth.values())
    looked_for = expected.of(asked)
    weighed = [(_met(hit, meant, worth), place) for hit, place in hits if hit]
    scored = [(_score(met, held[place], looked_for), -place) for met, place in weighed if met >= enough]
    chosen = heapq.nlargest(most, scored)
    floor = chosen[0][0] / 2 if chosen else 0.0
    return [held[-place].text for score, place in sorted(chosen, key=lambda one: -one[1]) if score >= floor]


def _calls(messages: Sequence[types.Message], tool: str) -> set[str]:
    """Which calls were of a tool."""
    called = (call for message in messages if message.role == "assistant" for call in message.tool_calls)
    return {call.id for call in called if call.name == tool}


def _fitting(meant: _Meant, messages: Sequence[types.Message], searched: Container[str | None]) -> list[_Fit]:
    """What has any of the words, and which of them."""
    # A stem is the beginning of its word: a body without it has no such word, and need not be taken apart.
    told = {word for word, same in (_SAME | _PHRASES).items() if stem(same) in meant.known}
    roots = re.compile("|".join(map(re.escape, sorted(meant.known | told))) + r"|\\u")
    return [
        _fit(meant.known & sentence.terms, sentence, message)
        for message in messages
        if "sentences" in message.__dict__ or roots.search(message.body.casefold())
        for sentence in of(message, message.role == "tool" and message.tool_call_id in searched)
        if not meant.known.isdisjoint(sentence.terms) and not sentence.asks
    ]


def _fit(hit: frozenset[str], sentence: Sentence, message: types.Message) -> _Fit:
    if sentence.seq is None:
        return _Fit(hit, sentence, message.seq, message.role, message.at)
    return _Fit(hit, sentence, sentence.seq, sentence.role, sentence.at)


def _worth(meant: _Meant, hits: Mapping[frozenset[str], int], among: int) -> dict[str, float]:
    """How much each word tells: the rarer it and what stands for it, the more."""
    counts = dict.fromkeys(meant.words, 0.0)
    for hit, count in hits.items():
        for word, met in meant.words.items():
            counts[word] += count * max((met[stem] for stem in hit if stem in met), default=0.0)
    return {word: math.log(1 + (among - count + 0.5) / (count + 0.5)) for word, count in counts.items()}


def _met(hit: frozenset[str], meant: _Meant, worth: Mapping[str, float]) -> float:
    """How much of what the question's words tell is met."""
    # In one order always: sets have none, and sums of fractions depend on it.
    return sum(
        worth[word] * max((met[stem] for stem in hit if stem in met), default=0.0)
        for word, met in sorted(meant.words.items())
    )


def _score(met: float, sentence: Sentence, looked_for: re.Pattern[str] | None) -> float:
    there = 1 + _EXPECTED if looked_for and looked_for.search(sentence.text) else 1.0
    return there * met * (_K1 + 1) / (1 + _K1 * (1 - _B + _B * sentence.size / _USUAL))


def _distinct(found: Iterable[Found], most: int) -> list[Found]:
    kept: dict[Any, Found] = {}
    for one in found:
        kept.setdefault(one.text.casefold(), one)
        if len(kept) == most:
            break
    return list(kept.values())
