"""Find what a summary must contain verbatim: open requests, files, addresses, numbers and names. Pure.

A request is open until the assistant answers it. A request for later ("remind me to …") and one that was put off ("I'll
get back to you") stay open until a sentence says that they are done.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, Literal

import msgspec

from holdfast import types
from holdfast.compaction import sentences, summary_format
from holdfast.model import tokens

MAX_REQUESTS = 40
MAX_ARGUMENT = 2_000
"""How many characters of a tool argument are searched for files: an argument may be the content of a file."""
MAX_MISFITS = 20
"""After this many texts that do not fit, no further ones are tried."""
# Each further fact of a kind counts less, so that a table of numbers does not crowd out every name.
CROWDING = 0.97
# The user's own words are the least likely to be found elsewhere.
_ROLE_WEIGHTS = {"user": 2.0, "": 1.5, "assistant": 0.7, "system": 0.3, "tool": 0.15}
_CUE_WEIGHTS = {"decision": 0.8, "keep": 0.6, "limit": 0.5}


def select(messages: Sequence[types.Message], previous: str | None, budget: int) -> tuple[str, ...]:
    """Return open requests, then the most important facts, verbatim, as many as fit into `budget` tokens."""
    earlier = summary_format.parse(previous)
    spoken = sentences.split_messages(sentences.drop_summaries(messages))
    requests = [each.text for each in reversed(find_open_requests(spoken, earlier))]
    facts = _rank_facts([*earlier, *sentences.select_informative(spoken)])
    kept = _take_fitting(requests, budget // 2)
    left = budget - sum(tokens.estimate(text) + 1 for text in kept)
    new = [fact for fact in facts if not any(fact in text for text in kept)]
    return (*kept, *_take_fitting(new, left))


def _take_fitting(texts: Iterable[str], budget: int) -> list[str]:
    kept, misfits = [], 0
    for text in texts:
        size = tokens.estimate(text) + 1
        if size <= budget:
            kept.append(text)
            budget -= size
        elif (misfits := misfits + 1) > MAX_MISFITS:
            break
    return kept


def _rank_facts(spoken: Sequence[sentences.Sentence]) -> list[str]:
    """Return the facts of the sentences, the most important first."""
    best: dict[Fact, float] = {}
    count: Counter[Fact] = Counter()
    for index, sentence in enumerate(spoken):
        weight = _weigh(sentence) + 0.3 * index / len(spoken)
        for fact in find_facts(sentence.text):
            count[fact] += 1
            best[fact] = max(best.get(fact, 0.0), fact.weight * weight)
    worth = {fact: value + 0.3 * math.log(count[fact]) for fact, value in best.items()}
    seen: Counter[str] = Counter()
    for fact in sorted(worth, key=lambda fact: (-worth[fact], fact.text)):
        worth[fact] *= CROWDING ** seen[fact.kind]
        seen[fact.kind] += 1
    return [fact.text for fact in sorted(worth, key=lambda fact: (-worth[fact], fact.text))]


def _weigh(sentence: sentences.Sentence) -> float:
    """Return how much a sentence counts, by its author and its cues."""
    # A fact that an earlier summary kept without its sentence says little.
    is_bare = not sentence.seq and len(sentence.words) < 4
    says_little = "question" in sentence.cues or sentence.section in summary_format.LISTS or is_bare
    weight = _ROLE_WEIGHTS[sentence.role] * (0.5 if says_little else 1.0)
    return weight + sum(each for cue, each in _CUE_WEIGHTS.items() if cue in sentence.cues and sentence.role != "tool")


# --- open requests ---------------------------------------------------------------------------------------

_PUT_OFF = re.compile(
    r"\b(?:I['’]ll (?:do|look|get|check|send|write|remind|tell|come)|on (?:my|the) list|get back to you|not yet"
    r"|can(?:no|['’])t yet|once (?:it|that|the|you)|werde ich|vorgemerkt|je vais|lo haré)\b|会的|稍后|後で|나중에",
    re.IGNORECASE,
)


def find_open_requests(
    spoken: Sequence[sentences.Sentence], earlier: Sequence[sentences.Sentence]
) -> list[sentences.Sentence]:
    """Return the requests that are open after all sentences, oldest first; `earlier` is the summary so far."""
    known = [each for each in earlier if each.section == summary_format.ASKS]
    lasting = [each for each in known if "ask" in each.cues]
    # Requests that were unanswered when they left the context are closed by the next answer.
    unanswered = [each for each in known if "ask" not in each.cues]
    # A request may lack the words of a request, so the last unanswered message of the user counts as one.
    last: list[sentences.Sentence] = []
    for (_, role), group in groupby(spoken, key=lambda each: (each.seq, each.role)):
        lines = list(group)
        if role not in ("user", "assistant"):
            continue
        for line in lines:
            lasting = [request for request in lasting if not _closes(line, request)]
        if role == "user":
            lasting += [line for line in lines if {"ask", "later"} <= line.cues and len(line.words) > 3]
            unanswered += [line for line in lines if line.cues & {"ask", "question"}]
            last = [] if unanswered or "done" in lines[0].cues else lines[:1]
        else:
            is_done = any("done" in line.cues for line in lines)
            if not is_done and any(_PUT_OFF.search(line.text) for line in lines):
                lasting += [request for request in unanswered if "ask" in request.cues]
            unanswered, last = [], []
        lasting = lasting[-MAX_REQUESTS:]
    by_text = {each.text: each for each in [*lasting, *unanswered, *last]}
    found = sorted(by_text.values(), key=lambda each: each.seq)[-MAX_REQUESTS:]
    return [msgspec.structs.replace(each, section=summary_format.ASKS) for each in found]


def _closes(line: sentences.Sentence, request: sentences.Sentence) -> bool:
    """Whether the line says that the request is done: it shares at least half of the request's content words."""
    if "done" not in line.cues or line.cues & {"ask", "question"}:
        return False
    words = {word for word in request.words if len(word) > 3 and not sentences.find_cues(word, frozenset({word}))}
    return bool(words) and 2 * len(words & line.words) >= len(words)


# --- facts -----------------------------------------------------------------------------------------------

Kind = Literal["url", "file", "id", "number", "name"]

_ENDINGS = (
    "py|pyi|md|rst|txt|toml|ya?ml|json|jsonl|csv|tsv|sql|sh|js|ts|tsx|jsx|css|html?|xml|rs|go|java|kt|c|h|cc|cpp|hpp"
    "|rb|php|swift|lock|cfg|ini|conf|env|log|db|sqlite|pdf|docx?|xlsx?|pptx?|odt|png|jpe?g|svg|gif|zip|tar|gz|tex|ipynb"
)
_FILE = (
    r"(?<![\w/:])(?:~|\.{1,2})?/[\w.@+\-]{1,60}(?:/[\w.@+\-]{1,60}){0,20}/?|\b[A-Za-z]:\\[\w\\.\-]{2,120}"
    rf"|(?<![\w/:])(?:[\w.@+\-]{{1,60}}/){{1,20}}[\w.@+\-]{{1,60}}|\b[\w\-]{{1,60}}\.(?:{_ENDINGS})\b"
)
_FILE_HINT = re.compile(r"[/\\]|\w\.[a-z]")
# Repetitions are bounded, so that a long line of slashes or digits takes no quadratic time.
_FACT = re.compile(
    r"(?P<url>\bhttps?://[^\s<>\"')\]]{3,200}|\b[\w.+\-]{1,60}@[\w\-]{1,60}\.[\w.\-]{2,40})"
    rf"|(?P<file>{_FILE})"
    r"|(?P<id>\b[A-Z][A-Z0-9]{1,9}-\d{1,8}\b|\bv\d{1,4}(?:\.\d{1,5}){1,3}\b|\b\d{1,4}\.\d{1,4}\.\d{1,5}(?:\.\d{1,4})?\b"
    r"|\b(?:[A-Z]\w{1,40})?(?:Error|Exception)\b|\bE[A-Z]{3,12}\b|\bERR_\w{2,40}|\b[a-z]{1,30}(?:_[a-z0-9]{1,30}){1,6}\b"
    r"|\b(?=[\w\-]{0,40}\d)(?=[\w\-]{0,40}[A-Za-z])\w[\w\-]{3,40}\b|\+\d[\d \-]{6,18}\d|(?<!\w)[#@]\w{2,40})"
    r"|(?P<number>[€$£¥]\s?\d[\d.,]{0,15}\b(?:\s?[kKmM]\b)?"
    r"|\b\d{1,15}(?:[.,:/\-]\d{1,9}){0,4}(?:\s?(?:%|°[CF]?|[€$£¥]|[^\W\d_]{1,14}))?)"
    r"|(?P<name>(?<=[a-z,;:(] )[A-Z][\w'’\-]{1,30}(?:\s[A-Z][\w'’\-]{1,30}){0,3})"
)
_ENDING = re.compile(r"\.[A-Za-z]\w{0,7}$")
_NOT_NAMES_TEXT = """
I I'm I'll I've I'd OK Yes No The This That It January February March April May June July August September October
November December Monday Tuesday Wednesday Thursday Friday Saturday Sunday
"""
_NOT_NAMES = frozenset(_NOT_NAMES_TEXT.split())
# Words next to a number that are neither its unit nor its label.
_FUNCTION_WORDS = """
a an and as at but by came each else every for from had has have if in into is it its more no not now of off on or out
over per plus so than that the then there they this till to under until up was we were when which while who will with
without you about after all along around been before between both i me my only our st nd rd th und oder der die das
mit für von bis et ou de la le les y o el los en com para
"""
_NO_UNITS = frozenset(_FUNCTION_WORDS.split())
_ORDINAL = re.compile(r"\d+(?:st|nd|rd|th)")
_DIGITS = re.compile(r"[\d.,:/\-]*\d")
_LABEL = re.compile(r"([^\W\d_][\w\-]{1,20})\s?[:=]?\s$")
_KIND_WEIGHTS = {"url": 1.0, "file": 0.9, "id": 1.0, "number": 0.8, "name": 0.6}


class Fact(msgspec.Struct, frozen=True, gc=False):
    """A part of a sentence that must be quoted exactly."""

    kind: Kind
    text: str

    @property
    def weight(self) -> float:
        """How much the fact adds to the worth of a sentence."""
        return _KIND_WEIGHTS[self.kind]


def find_facts(text: str) -> tuple[Fact, ...]:
    """Return the facts of one line, in order, without duplicates."""
    facts = (_build_fact(match, text) for match in _FACT.finditer(text))
    return tuple(dict.fromkeys(fact for fact in facts if fact is not None))


def find_files(text: str) -> list[str]:
    """Return the files that one line names."""
    return [fact.text for fact in find_facts(text) if fact.kind == "file"] if _FILE_HINT.search(text) else []


def find_named_files(messages: Sequence[types.Message], spoken: Sequence[sentences.Sentence]) -> list[str]:
    """Return the files that the sentences and tool calls of these messages name, the last named one at the end."""
    last: dict[str, int] = {}
    for sentence in spoken:
        last.update(dict.fromkeys(find_files(sentence.text), sentence.seq))
    for message in messages:
        for call in message.tool_calls:
            for text in text_arguments(call).values():
                last.update(dict.fromkeys(find_files(text[:MAX_ARGUMENT]), message.seq))
    return sorted(last, key=last.__getitem__)


def text_arguments(call: types.ToolCall) -> dict[str, str]:
    """Return the arguments of a tool call that are text."""
    arguments: Any = call.arguments
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments)
        except (msgspec.DecodeError, RecursionError):
            arguments = {"": arguments}
    if not isinstance(arguments, dict):
        return {}
    return {str(name): value for name, value in arguments.items() if isinstance(value, str)}


def _build_fact(match: re.Match[str], line: str) -> Fact | None:
    kind, text = match.lastgroup, match[0].rstrip(".,:;/-")
    if kind == "name":
        return None if text in _NOT_NAMES else Fact("name", text)
    if kind == "number":
        return _build_number(text, line[max(0, match.start() - 24) : match.start()])
    if kind == "file":
        return Fact("file", text) if _is_file(text) else None
    if _ORDINAL.fullmatch(text) or len(text) < 2:
        return None
    return Fact("url" if kind == "url" else "id", text)


def _build_number(text: str, before: str) -> Fact | None:
    """Return a number with its unit, else with the word before it, else alone if it has at least three digits."""
    number = _DIGITS.match(text)
    unit = text[number.end() :].strip() if number else text
    if unit and unit.casefold() not in _NO_UNITS:
        return Fact("number", text)
    digits = number[0] if number else text
    label = _LABEL.search(before)
    if label and label[1].casefold() not in _NO_UNITS:
        return Fact("number", before[label.start() :] + digits)
    return Fact("number", digits) if len(digits) > 2 else None


def _is_file(text: str) -> bool:
    """Whether the text is a path, and not a fraction, a date or two words with a slash."""
    if not any(map(str.isalpha, text)) or len(text) < 3:
        return False
    return text[0] in "~/." or text.count("/") > 1 or "\\" in text or bool(_ENDING.search(text))
