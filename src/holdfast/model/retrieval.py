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
MIN_STATEMENTS = 10
PREFIX = 5
"""How many letters of a word count."""

_NO_SPACES = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_WORD = re.compile(rf"[{_NO_SPACES}]+|[^\W_{_NO_SPACES}]+")
_SENTENCE_END = re.compile(r"(?<=[.!?\u061f])\s+|(?<=[\u3002\uff01\uff1f])|\n+")
_SEARCH_HEAD = re.compile(
    r"(?m)^\[message (\d{1,15}), (user|assistant|tool|system), (\d{4}-\d\d-\d\d \d\d:\d\d) UTC\]$"
)
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


class Statement(msgspec.Struct, frozen=True):
    """A sentence that is not a question, and the message that it comes from; seq 0 is the summary."""

    text: str
    words: frozenset[str]
    role: str = "tool"
    seq: int = 0
    at: float = 0.0


class RankedStatement(msgspec.Struct, frozen=True):
    """A statement that may answer a question, and the share of the question's words in it."""

    statement: Statement
    share: float

    @property
    def score(self) -> int:
        """The share, rounded so that the later of two similar statements comes first. Users are quoted first."""
        return round(self.share * (16 if self.statement.role == "user" else 10))


def words_of(text: str) -> frozenset[str]:
    """Return the words of a text without common ones, unless there are no others."""
    found = _WORD.findall(text.casefold())
    return frozenset(itertools.chain.from_iterable(map(_cut, [word for word in found if word not in COMMON] or found)))


def _cut(word: str) -> Iterable[str]:
    if not re.match(f"[{_NO_SPACES}]", word):
        return (word.removesuffix("s")[:PREFIX] if len(word) > 3 else word,)
    return (word,) if len(word) == 1 else (word[i : i + 2] for i in range(len(word) - 1))


def split(text: str, role: str = "tool", seq: int = 0, at: float = 0.0) -> Iterator[Statement]:
    """Yield the statements of a text."""
    for piece in _SENTENCE_END.split(text[:MAX_CHARACTERS]):
        line = piece.strip()
        if not intent.is_question(line) and (words := words_of(line)):
            yield Statement(line, words, role, seq, at)


def split_messages(messages: Sequence[types.Message], search_tool: str = "") -> list[Statement]:
    """Return the statements of all messages. Quotations in search results name the quoted message."""
    called = (call for message in messages if message.role == "assistant" for call in message.tool_calls)
    searches = {call.id for call in called if call.name == search_tool}
    found: list[Statement] = []
    for message in messages:
        # Cached in the message, because a long conversation is searched again and again.
        if "statements" not in message.__dict__:
            is_search_result = message.role == "tool" and message.tool_call_id in searches
            message.__dict__["statements"] = tuple(_split_message(message, is_search_result))
        found += message.__dict__["statements"]
    return found


def is_summary(message: types.Message) -> bool:
    """Whether the message is the summary of earlier messages."""
    return message.uid.startswith("summary:")


def _split_message(message: types.Message, is_search_result: bool) -> Iterator[Statement]:
    text = content_parts.text(message.content)[:MAX_CHARACTERS]
    if is_summary(message):
        # A line may quote a message: > #12 user: text
        yield from split(re.sub(r"(?m)^> (?:#\d+ )?(?:\w+: )?", "", text), "system")
    elif not is_search_result:
        yield from split(text, message.role, message.seq, message.at)
    else:
        _, *pieces = _SEARCH_HEAD.split(text)
        for seq, role, when, quoted in zip(pieces[::4], pieces[1::4], pieces[2::4], pieces[3::4], strict=True):
            whole, *cut_off = _GAP.split(quoted, maxsplit=1)
            statements = list(split(whole, role, int(seq), calendar.timegm(time.strptime(when, "%Y-%m-%d %H:%M"))))
            # The last sentence before a gap may be incomplete, and the author of the text after it is unknown.
            yield from statements[: -1 if cut_off else None]


def rank(question: str, statements: Sequence[Statement]) -> list[RankedStatement]:
    """Return the statements that share words with the question, best first; of equal ones, the latest first."""
    wanted = sorted(words_of(question))
    hits = [(frozenset(wanted) & statement.words, statement) for statement in statements]
    counts = Counter(word for hit, _ in hits for word in hit)
    # In a short conversation every word is frequent, so more statements are assumed.
    size = max(len(hits), MIN_STATEMENTS)
    worth = {word: math.log(1 + (size - counts[word] + 0.5) / (counts[word] + 0.5)) for word in wanted}
    total = sum(worth.values())
    found: dict[str, RankedStatement] = {}
    # The earliest comes first, so that of equal texts the latest is kept.
    for hit, statement in sorted(hits, key=lambda pair: (pair[1].role == "user", pair[1].seq)):
        if hit:
            # Summed in one order: sets have none, and sums of floats depend on it.
            share = sum(worth[word] for word in wanted if word in hit) / total
            found[statement.text.casefold()] = RankedStatement(statement, share)
    return sorted(found.values(), key=lambda each: (-each.score, -each.statement.seq))
