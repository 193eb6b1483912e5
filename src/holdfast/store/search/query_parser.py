"""Parse search queries, and prepare the text of messages for FTS5 (for PostgreSQL: tokens.py). Pure.

Text in scripts without spaces is split into overlapping pairs of characters, so that any two adjacent characters can be
found; a single character is found as the prefix of a pair. Stop words of a query are dropped unless it has no others.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
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
NEAR = 8
MAX_TERMS = 64
SNIPPET = 160

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


class Query(msgspec.Struct, frozen=True):
    """A parsed query: as FTS5 expressions, and in parts.

    `own` matches by a message's own words, which is fast; `match` by its neighbours' words as well. For every message
    that `match` finds, `own` finds the message or one of its neighbours.
    """

    own: str
    match: str
    terms: tuple[str, ...]
    phrases: tuple[str, ...]
    loose: tuple[str, ...]
    tags: tuple[str, ...]
    shared: tuple[str, ...]


def text_of(body: types.Body) -> str:
    """Return the text of a message, including its tool calls."""
    parts = [text_of_content(body.content)]
    parts += [f"{call.name} {_plain(call.arguments)}" for call in body.tool_calls]
    return "\n".join(part for part in parts if part)


def text_of_content(content: types.Content) -> str:
    """Return the text of a content, without attachments and notes to the model."""
    if isinstance(content, str):
        return content
    said = (part for part in content if part.get("type") != "note")
    return "\n".join(str(part["text"]) for part in said if isinstance(part.get("text"), str))


def _plain(arguments: str | dict[str, Any]) -> str:
    return arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()


def index_text(text: str) -> str:
    """Return the text for the index: runs of unspaced scripts are split into pairs."""
    return _UNSPACED_RUN.sub(lambda run: f" {' '.join(pairs(run[0]))} ", text)


def pairs(run: str) -> list[str]:
    """Return overlapping pairs of characters, and the last character alone, which may be a prefix."""
    return [run[i : i + 2] for i in range(len(run))]


def tag(kind: str, value: str) -> str:
    """Return one word of letters and digits for a role, an owner or a tool."""
    return kind + blake2b(value.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def index_rows(key: int, documents: Sequence[Document[str]], _known: int) -> Iterator[dict[str, Any]]:
    """Return the parameters of `index_put`, for all messages: FTS5 replaces those it has already."""
    for each in documents:
        tags = " ".join([*each.tags, each.owner])
        yield {"conversation": key, "seq": each.seq, "text": each.text, "around": " ".join(each.around), "tags": tags}


def search_parameters(_tx: object, query: Query) -> Parameters | None:
    """Return the parameters of `index_find` and of `index_find_at`."""
    return {"match": query.own}, {"match": query.match}


def parse(text: str, tags: Sequence[str] = (), shared: Sequence[str] = ()) -> Query | None:
    """Parse a query; None if it has no words.

    A message must have `tags` and `shared`; its neighbours have the shared tags as well.
    """
    phrases, words = _pieces("".join(character if character.isprintable() else " " for character in text))
    kept = ([word for word in words if word.lower() not in STOP_WORDS] or words)[:MAX_TERMS]
    spoken = tuple(phrase for phrase in phrases[:MAX_TERMS] if re.search(r"\w", phrase))
    plain = tuple(dict.fromkeys(kept))
    wanted, loose = [_quoted(phrase) for phrase in spoken], [_term(word) for word in plain]
    if not wanted and not loose:
        return None
    near = [f"NEAR({a} {b}, {NEAR})" for a, b in itertools.pairwise(loose) if "*" not in a + b]
    filters, common = ("".join(f' AND tags : "{each}"' for each in some) for some in ([*tags, *shared], shared))
    if wanted:
        # A phrase in quotes is required; words only raise the score.
        must, may = " AND ".join(wanted), " OR ".join(wanted + loose + near)
        own = match = f"{{text}} : (({must}) AND ({may})){filters}"
    else:
        own = f"{{text}} : ({' OR '.join(loose)}){common}"
        match = f"{{text around}} : ({' OR '.join(loose + near)}){filters}"
    terms = tuple(dict.fromkeys(word.lower() for word in [*phrases, *kept]))
    return Query(own, match, terms, spoken, plain, tuple(tags), tuple(shared))


def _pieces(text: str) -> tuple[list[str], list[str]]:
    phrases: list[str] = []
    words: list[str] = []
    for quoted, unspaced, word in _PIECE.findall(text):
        if quoted.strip():
            phrases.append(quoted.strip())
        elif unspaced or word:
            words.append(unspaced or word)
    return phrases, words


def _term(word: str) -> str:
    return _quoted(word) if _UNSPACED_RUN.fullmatch(word) else f'"{word}"'


def _quoted(phrase: str) -> str:
    """Return a phrase as an FTS5 expression, with unspaced runs as the pairs they were indexed as.

    A run at the end may continue in the message, so its last character is not required to be the last.
    """
    head, last = split_last_word(phrase)
    tail = prefix_pairs(last) if is_unspaced(last) else [last]
    quoted = " ".join([*index_text(head).split(), *tail])
    return f'"{quoted}" *' if is_unspaced(last) and len(last) == 1 else f'"{quoted}"'


def split_last_word(phrase: str) -> tuple[str, str]:
    """Return the text before the last run or word, and that run or word."""
    *_, end = _PART.finditer(phrase)
    return phrase[: end.start()], end[0]


def is_unspaced(run: str) -> bool:
    return _UNSPACED_RUN.fullmatch(run) is not None


def prefix_pairs(run: str) -> list[str]:
    """Return the pairs of a run that may continue; a single character is the prefix of a pair."""
    return pairs(run)[: max(1, len(run) - 1)]


def snippet(text: str, terms: Sequence[str], width: int = SNIPPET) -> str:
    """Return the part of a text with most of the terms, cut at words, as one line."""
    line = " ".join(text.split())
    if len(line) <= width:
        return line
    folded = line.lower()
    if len(folded) != len(line):  # positions would differ
        folded = line
    places = sorted(place for term in terms for place in _places(folded, _stem(term)))
    start = _densest(places, width) if places else 0
    return _cut(line, start, width)


def _stem(term: str) -> str:
    return term[: max(4, len(term) - 3)] if term.isascii() else term


def _places(text: str, stem: str) -> list[int]:
    found: list[int] = []
    at = text.find(stem)
    while at >= 0 and len(found) < 20:
        found.append(at)
        at = text.find(stem, at + 1)
    return found


def _densest(places: Sequence[int], width: int) -> int:
    counts = [sum(place <= other < place + width for other in places) for place in places]
    return places[counts.index(max(counts))]


def _cut(line: str, start: int, width: int) -> str:
    begin = max(0, min(start - width // 4, len(line) - width))
    end = min(len(line), begin + width)
    if begin and " " in line[begin:start]:
        begin = line.index(" ", begin) + 1
    if end < len(line) and " " in line[start:end]:
        end = line.rindex(" ", start, end)
    return ("…" if begin else "") + line[begin:end] + ("…" if end < len(line) else "")
