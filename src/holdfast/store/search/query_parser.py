"""Words: what of a message is searched, and what a question asks for. Pure.

Scripts written without spaces are cut into overlapping pairs of characters, so that any two characters
that stand together can be found; one character is found as the beginning of a pair. Everything else is
words, stemmed by the index (one that does not is served by postings.py). Common words of a question are
dropped unless it has no others.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any, Generic, TypeVar

import msgspec

from holdfast import types

# Han, Kana, Hangul, Thai, Lao, Khmer, Burmese: scripts without spaces, or whose spaces part no words.
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
)
_UNSPACED_RUN = re.compile(f"[{UNSPACED}]+")
_PIECE = re.compile(rf'"([^"]*)"|([{UNSPACED}]+)|([^\W_{UNSPACED}]+)')
_PART = re.compile(rf"[{UNSPACED}]+|[^\W{UNSPACED}]+")
# Raised when texts are cut otherwise than before: an index of the old way is made again.
CUT = 4
# How many words may stand between two that stand together.
NEAR = 8
MAX_TERMS = 64
SNIPPET = 160

COMMON = frozenset(
    """a about after again all also am an and any are as at be because been before being but by can could did do does
    doing don during each for from get got had has have having he her here hers him his how i if in into is it its just
    let like me might more most my no nor not now of off on once only or other our ours out over own re s same she
    should so some such t than that the their them then there these they this those through to too under until up us
    very was we were what when where which while who whom whose why will with would you your yours
    der die das und ist ein eine wie was wann wo wer le la les et est un une que qui el los las y es una""".split()  # noqa: SIM905 -- a list of words reads best as words
)


T = TypeVar("T")
# The parameters for messages' own words, and for those with their neighbours'.
Asks = tuple[dict[str, Any], dict[str, Any]]


class Document(msgspec.Struct, Generic[T], frozen=True):
    """A message as it is indexed: its text and its neighbours', as the index is given them, and its tags."""

    seq: int
    text: T
    around: list[T]
    tags: list[str]
    owner: str


class Question(msgspec.Struct, frozen=True):
    """What is asked, as SQLite understands it, and the plain words for showing where.

    `own` asks for a message's own words only, which is quick; `match` minds its neighbours as well. Whatever
    `match` finds, `own` finds it too or one of its neighbours. The rest is the same in parts.
    """

    own: str
    match: str
    terms: tuple[str, ...]
    phrases: tuple[str, ...]
    loose: tuple[str, ...]
    tags: tuple[str, ...]
    shared: tuple[str, ...]


def text_of(body: types.Body) -> str:
    """Everything a person or a tool said in a message, as one text."""
    parts = [text_of_content(body.content)]
    parts += [f"{call.name} {_plain(call.arguments)}" for call in body.tool_calls]
    return "\n".join(part for part in parts if part)


def text_of_content(content: types.Content) -> str:
    """What was said, without what was attached and what only a model was told."""
    if isinstance(content, str):
        return content
    said = (part for part in content if part.get("type") != "note")
    return "\n".join(str(part["text"]) for part in said if isinstance(part.get("text"), str))


def _plain(arguments: str | dict[str, Any]) -> str:
    return arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()


def indexed(text: str) -> str:
    """The text as the index is given it: runs of unspaced scripts cut into pairs."""
    return _UNSPACED_RUN.sub(lambda run: f" {' '.join(pairs(run[0]))} ", text)


def pairs(run: str) -> list[str]:
    """Overlapping pairs; the last character stands alone too, so that it can begin something."""
    return [run[i : i + 2] for i in range(len(run))]


def tag(kind: str, value: str) -> str:
    """One word for a role, an owner or a tool: made of letters and digits only, whatever the value is."""
    return kind + blake2b(value.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def rows(key: int, documents: Sequence[Document[str]], _known: int) -> Iterator[dict[str, Any]]:
    """What the index is told of messages: all of them, also those that it has already."""
    for each in documents:
        tags = " ".join([*each.tags, each.owner])
        yield {"conversation": key, "seq": each.seq, "text": each.text, "around": " ".join(each.around), "tags": tags}


def asks(_tx: object, question: Question) -> Asks | None:
    """Return the parameters of `index_find` and of `index_find_at`."""
    return {"match": question.own}, {"match": question.match}


def question(text: str, tags: Sequence[str] = (), shared: Sequence[str] = ()) -> Question | None:
    """What to ask the index; None when there is nothing to look for.

    A message must have the tags and the shared ones, which its neighbours have as well.
    """
    phrases, words = _pieces("".join(character if character.isprintable() else " " for character in text))
    kept = ([word for word in words if word.lower() not in COMMON] or words)[:MAX_TERMS]
    spoken = tuple(phrase for phrase in phrases[:MAX_TERMS] if re.search(r"\w", phrase))
    plain = tuple(dict.fromkeys(kept))
    wanted, loose = [_quoted(phrase) for phrase in spoken], [_term(word) for word in plain]
    if not wanted and not loose:
        return None
    near = [f"NEAR({a} {b}, {NEAR})" for a, b in itertools.pairwise(loose) if "*" not in a + b]
    filters, common = ("".join(f' AND tags : "{each}"' for each in some) for some in ([*tags, *shared], shared))
    if wanted:
        # A phrase in quotes must be there; words only make it likelier.
        must, may = " AND ".join(wanted), " OR ".join(wanted + loose + near)
        own = match = f"{{text}} : (({must}) AND ({may})){filters}"
    else:
        own = f"{{text}} : ({' OR '.join(loose)}){common}"
        match = f"{{text around}} : ({' OR '.join(loose + near)}){filters}"
    terms = tuple(dict.fromkeys(word.lower() for word in [*phrases, *kept]))
    return Question(own, match, terms, spoken, plain, tuple(tags), tuple(shared))


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
    """A phrase of the index: unspaced runs become the pairs they were indexed as.

    A run at the end may go on in the text: its last character is not asked for alone, and one that has no
    other is the beginning of a pair.
    """
    head, last = parted(phrase)
    tail = begun(last) if is_unspaced(last) else [last]
    quoted = " ".join([*indexed(head).split(), *tail])
    return f'"{quoted}" *' if is_unspaced(last) and len(last) == 1 else f'"{quoted}"'


def parted(phrase: str) -> tuple[str, str]:
    """What stands before its last run or word, and that."""
    *_, end = _PART.finditer(phrase)
    return phrase[: end.start()], end[0]


def is_unspaced(run: str) -> bool:
    return _UNSPACED_RUN.fullmatch(run) is not None


def begun(run: str) -> list[str]:
    """The pairs of a run that may go on; one that has no other character is the beginning of a pair."""
    return pairs(run)[: max(1, len(run) - 1)]


def snippet(text: str, terms: Sequence[str], width: int = SNIPPET) -> str:
    """The stretch of a text that has most of the terms, cut at words, in one line."""
    line = " ".join(text.split())
    if len(line) <= width:
        return line
    folded = line.lower()
    if len(folded) != len(line):  # lower case of another length: places would not agree
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
