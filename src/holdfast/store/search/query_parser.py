"""Parse search queries, prepare the text of messages for the index, and cut snippets.

Text in scripts without spaces is split into overlapping pairs of characters, so that any two adjacent characters can be
found; a single character is found as the prefix of a pair. Stop words of a query are dropped unless it has no others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Generic, TypeVar

import msgspec

from holdfast import types

# Han, Kana, Hangul, Thai, Lao, Khmer, Burmese: scripts whose words are not separated by spaces.
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
)
_UNSPACED_RUN = re.compile(f"[{UNSPACED}]+")
_PIECE = re.compile(rf'"([^"]*)"|([{UNSPACED}]+)|([^\W_{UNSPACED}]+)')
_PART = re.compile(rf"[{UNSPACED}]+|[^\W{UNSPACED}]+")
# Raise this whenever texts are tokenized or stored differently: an index of another version is rebuilt.
INDEX_VERSION = 4
# Two words are close to each other with at most this many words between them.
MAX_WORD_DISTANCE = 8
MAX_TERMS = 64
SNIPPET_CHARACTERS = 160

STOP_WORDS = frozenset(
    """a about after again all also am an and any are as at be because been before being but by can could did do does
    doing don during each for from get got had has have having he her here hers him his how i if in into is it its just
    let like me might more most my no nor not now of off on once only or other our ours out over own re s same she
    should so some such t than that the their them then there these they this those through to too under until up us
    very was we were what when where which while who whom whose why will with would you your yours
    der die das und ist ein eine wie was wann wo wer le la les et est un une que qui el los las y es una""".split()  # noqa: SIM905 -- a list of words reads best as words
)


T = TypeVar("T")
# The parameters of `index_find` and of `index_find_at`.
Parameters = tuple[dict[str, Any], dict[str, Any]]


class Document(msgspec.Struct, Generic[T], frozen=True):
    """A message as it is indexed: its text and its neighbours' as `index_text` returned them, and its tags."""

    seq: int
    text: T
    around: list[T]
    tags: list[str]
    owner: str


class ParsedQuery(msgspec.Struct, frozen=True):
    """The parts of a query. A message must have `tags` and `shared`; its neighbours have the shared tags as well."""

    terms: tuple[str, ...]
    phrases: tuple[str, ...]
    words: tuple[str, ...]
    tags: tuple[str, ...]
    shared: tuple[str, ...]


def message_text(body: types.Body) -> str:
    """Return the text of a message, including its tool calls."""
    parts = [content_text(body.content)]
    for call in body.tool_calls:
        is_text = isinstance(call.arguments, str)
        parts.append(f"{call.name} {call.arguments if is_text else msgspec.json.encode(call.arguments).decode()}")
    return "\n".join(part for part in parts if part)


def content_text(content: types.Content) -> str:
    """Return the text of a content, without attachments and notes to the model."""
    if isinstance(content, str):
        return content
    said = (part for part in content if part.get("type") != "note")
    return "\n".join(str(part["text"]) for part in said if isinstance(part.get("text"), str))


def index_text(text: str) -> str:
    """Return the text for the index: runs of unspaced scripts are split into pairs."""
    return _UNSPACED_RUN.sub(lambda run: f" {' '.join(pairs(run[0]))} ", text)


def pairs(run: str) -> list[str]:
    """Return overlapping pairs of characters, and the last character alone, which may be a prefix."""
    return [run[i : i + 2] for i in range(len(run))]


def tag(kind: str, value: str) -> str:
    """Return one word of letters and digits for a role, an owner or a tool."""
    return kind + blake2b(value.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def parse(text: str, tags: Sequence[str] = (), shared: Sequence[str] = ()) -> ParsedQuery | None:
    """Parse a query; None if it has no words."""
    phrases, words = _split_query("".join(character if character.isprintable() else " " for character in text))
    kept = ([word for word in words if word.lower() not in STOP_WORDS] or words)[:MAX_TERMS]
    quoted = tuple(phrase for phrase in phrases[:MAX_TERMS] if re.search(r"\w", phrase))
    if not quoted and not kept:
        return None
    terms = tuple(dict.fromkeys(word.lower() for word in [*phrases, *kept]))
    return ParsedQuery(terms, quoted, tuple(dict.fromkeys(kept)), tuple(tags), tuple(shared))


def _split_query(text: str) -> tuple[list[str], list[str]]:
    phrases: list[str] = []
    words: list[str] = []
    for quoted, unspaced, word in _PIECE.findall(text):
        if quoted.strip():
            phrases.append(quoted.strip())
        elif unspaced or word:
            words.append(unspaced or word)
    return phrases, words


def split_last_word(phrase: str) -> tuple[str, str]:
    """Return the text before the last run or word, and that run or word."""
    *_, end = _PART.finditer(phrase)
    return phrase[: end.start()], end[0]


def is_unspaced(run: str) -> bool:
    return _UNSPACED_RUN.fullmatch(run) is not None


def prefix_pairs(run: str) -> list[str]:
    """Return the pairs of a run that may continue; a single character is the prefix of a pair."""
    return pairs(run)[: max(1, len(run) - 1)]


def snippet(text: str, terms: Sequence[str], width: int = SNIPPET_CHARACTERS) -> str:
    """Return the part of a text with most of the terms, cut at words, as one line."""
    line = " ".join(text.split())
    if len(line) <= width:
        return line
    folded = line.lower()
    if len(folded) != len(line):  # positions would differ
        folded = line
    stems = (term[: max(4, len(term) - 3)] if term.isascii() else term for term in terms)
    places = sorted(place for stem in stems for place in _places(folded, stem)) or [0]
    counts = [sum(place <= other < place + width for other in places) for place in places]
    return _cut(line, places[counts.index(max(counts))], width)


def _places(text: str, stem: str) -> list[int]:
    found: list[int] = []
    at = text.find(stem)
    while at >= 0 and len(found) < 20:
        found.append(at)
        at = text.find(stem, at + 1)
    return found


def _cut(line: str, start: int, width: int) -> str:
    begin = max(0, min(start - width // 4, len(line) - width))
    end = min(len(line), begin + width)
    if begin and " " in line[begin:start]:
        begin = line.index(" ", begin) + 1
    if end < len(line) and " " in line[start:end]:
        end = line.rindex(" ", start, end)
    return ("…" if begin else "") + line[begin:end] + ("…" if end < len(line) else "")
