"""Find the sentences of a conversation that answer a question, for the offline model. Pure.

A sentence is a set of words, cut to their first letters so that inflected forms are equal. It is scored by the share of
the question's words in it, where rare words count more. Words that mean the same do not match.
"""

from __future__ import annotations

import calendar
import itertools
import math
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from holdfast import content_parts, types
from holdfast.model import intent

MAX_CHARACTERS = 200_000
MAX_SENTENCES = 2_000
MIN_SENTENCES = 10
PREFIX = 5
"""How many letters of a word count."""
RANK_STEPS = 16
"""Scores are rounded, so that the later of two similar statements comes first."""
_ROLE_WEIGHTS = {"user": 1.0, "system": 0.8, "tool": 0.7, "assistant": 0.5}

_NO_SPACES = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_WORD = re.compile(rf"[{_NO_SPACES}]+|[^\W_{_NO_SPACES}]+")
_SENTENCE_END = re.compile(r"(?<=[.!?\u061f])\s+|(?<=[\u3002\uff01\uff1f])|\n+")
_ROLES = "user|assistant|tool|system"
# The lines of a summary and of a search result name the message that they quote.
_SUMMARY_LINE = re.compile(rf"> #(\d{{1,15}}) (?:({_ROLES}): )?(.*)")
_SEARCH_HEAD = re.compile(rf"(?m)^\[message (\d{{1,15}}), ({_ROLES}), (\d{{4}}-\d\d-\d\d \d\d:\d\d) UTC\]$")
_GAP = re.compile(r"(?m)^\[… [\d,]+ characters left out[^\n]*…\]$")
COMMON = frozenset(
    """a about after again all also am an and any are as at be because been before being but by can could d did do does
    for from had has have he her him his how i if in into is it its just let like ll m may me might more most my no not
    now of off on or our out over please re remind s said say says she should so some t tell than that the their them
    then there these they this those to too up us ve very was we were what when where which while who whom whose why
    will with would you your der die das dem den des und ist sind war ein eine einen mein meine dein ich du er es wir
    ihr sie wie was wann wo wer wen welche warum von mit zu im auf le la les de du et est un une que qui quel quelle mon
    ma je tu il elle où quand el los las y es mi qué cuál quién dónde cuándo""".split()  # noqa: SIM905 -- a word list
)


class Sentence(msgspec.Struct, frozen=True):
    """One sentence, and the message that it comes from; seq 0 is a summary that does not name the message."""

    text: str
    words: frozenset[str]
    role: str = "tool"
    seq: int = 0
    at: float = 0.0


class Match(msgspec.Struct, frozen=True):
    """A sentence that fits a question, the share of the question's words in it, and its rounded score."""

    sentence: Sentence
    share: float
    score: int


def words_of(text: str) -> frozenset[str]:
    """Return the words of a text without common ones, unless there are no others."""
    found = _WORD.findall(text.casefold())
    return frozenset(itertools.chain.from_iterable(map(_cut, [word for word in found if word not in COMMON] or found)))


def _cut(word: str) -> Iterable[str]:
    if not re.match(f"[{_NO_SPACES}]", word):
        return (word.removesuffix("s")[:PREFIX] if len(word) > 3 else word,)
    return (word,) if len(word) == 1 else (word[i : i + 2] for i in range(len(word) - 1))


def split(text: str, role: str = "tool", seq: int = 0, at: float = 0.0) -> Iterator[Sentence]:
    """Yield the sentences of a text, without questions."""
    for piece in itertools.islice(_SENTENCE_END.split(text[:MAX_CHARACTERS]), MAX_SENTENCES):
        line = piece.strip()
        if not intent.is_question(line) and (words := words_of(line)):
            yield Sentence(line, words, role, seq, at)


def split_messages(messages: Sequence[types.Message], search_tool: str = "") -> list[Sentence]:
    """Return the sentences of all messages. Quotations in summaries and search results name the quoted message."""
    called = (call for message in messages if message.role == "assistant" for call in message.tool_calls)
    searches = {call.id for call in called if call.name == search_tool}
    return [
        sentence
        for message in messages
        for sentence in _split_once(message, message.role == "tool" and message.tool_call_id in searches)
    ]


def _split_once(message: types.Message, is_search_result: bool) -> tuple[Sentence, ...]:
    """Return the sentences of a message, cached in the message."""
    kept: tuple[Sentence, ...] | None = message.__dict__.get("sentences")
    if kept is None:
        text = content_parts.text(message.content)
        if is_summary(message):
            found = _split_summary(text)
        elif is_search_result:
            found = _split_search_result(text)
        else:
            found = split(text, message.role, message.seq, message.at)
        kept = message.__dict__["sentences"] = tuple(found)
    return kept


def is_summary(message: types.Message) -> bool:
    """Whether the message is the summary of earlier messages."""
    return message.uid.startswith("summary:")


def _split_summary(text: str) -> Iterator[Sentence]:
    for line in text[:MAX_CHARACTERS].splitlines()[:MAX_SENTENCES]:
        match = _SUMMARY_LINE.fullmatch(line)
        seq, role, quoted = match.groups() if match else (0, None, line.lstrip("> "))
        yield from split(quoted, role or "system", int(seq))


def _split_search_result(text: str) -> Iterator[Sentence]:
    _, *pieces = _SEARCH_HEAD.split(text[:MAX_CHARACTERS])
    for seq, role, when, said in zip(pieces[::4], pieces[1::4], pieces[2::4], pieces[3::4], strict=True):
        whole, *cut_off = _GAP.split(said, maxsplit=1)
        found = list(split(whole, role, int(seq), _parse_time(when)))
        # The last sentence before a gap may be incomplete, and the author of the text after it is unknown.
        yield from found[: -1 if cut_off else None]


def _parse_time(when: str) -> float:
    try:
        return float(calendar.timegm(time.strptime(when, "%Y-%m-%d %H:%M")))
    except ValueError:
        return 0.0


def rank(question: str, sentences: Sequence[Sentence]) -> list[Match]:
    """Return the sentences that share words with the question, best first; of equal ones, the latest first."""
    wanted = sorted(words_of(question))
    hits = [(frozenset(wanted) & sentence.words, sentence) for sentence in sentences]
    counts = Counter(word for hit, _ in hits for word in hit)
    # In a short conversation every word is frequent, so more sentences are assumed.
    size = max(len(hits), MIN_SENTENCES)
    worth = {word: math.log(1 + (size - counts[word] + 0.5) / (counts[word] + 0.5)) for word in wanted}
    total = sum(worth.values())
    found: dict[str, Match] = {}
    for hit, sentence in hits:
        if hit:
            # Summed in one order: sets have none, and sums of floats depend on it.
            share = sum(worth[word] for word in wanted if word in hit) / total
            match = Match(sentence, share, round(RANK_STEPS * share * _ROLE_WEIGHTS[sentence.role]))
            known = found.get(key := sentence.text.casefold())
            if known is None or (match.score, sentence.seq) > (known.score, known.sentence.seq):
                found[key] = match
    return sorted(found.values(), key=lambda match: (-match.score, -match.sentence.seq))
