"""Words: what of a message is searched, and what a question asks for. Pure.

Scripts written without spaces are cut into overlapping pairs of characters, so that any two characters
that stand together can be found; one character is found as the beginning of a pair. Everything else is
words, stemmed by the index. Common words of a question are dropped unless it has no others.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from holdfast import types

# Han, Kana, Hangul, Thai, Lao, Khmer, Burmese: scripts without spaces, or whose spaces part no words.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
)
_UNSPACED_RUN = re.compile(f"[{_UNSPACED}]+")
_PIECE = re.compile(rf'"([^"]*)"|([{_UNSPACED}]+)|([^\W_{_UNSPACED}]+)')
_PART = re.compile(rf"[{_UNSPACED}]+|[^\W{_UNSPACED}]+")
# Raised when texts are cut otherwise than before: an index of the old way is made again.
CUT = 3
_NEAR = 8
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


class Question(msgspec.Struct, frozen=True):
    """What is asked, as the index understands it, and the plain words for showing where.

    `own` asks for a message's own words only, which is quick; `match` minds its neighbours as well. Whatever
    `match` finds, `own` finds it too or one of its neighbours.
    """

    own: str
    match: str
    terms: tuple[str, ...]


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


def question(
    text: str, tags: Sequence[str] = (), shared: Sequence[str] = (), *, alone: bool = False
) -> Question | None:
    """What to ask the index; None when there is nothing to look for.

    A message must have the tags and the shared ones, which its neighbours have as well. `alone`: it is found by its
    own words only.
    """
    phrases, words = _pieces("".join(character if character.isprintable() else " " for character in text))
    kept = ([word for word in words if word.lower() not in COMMON] or words)[:MAX_TERMS]
    wanted = [_quoted(phrase) for phrase in phrases[:MAX_TERMS] if re.search(r"\w", phrase)]
    loose = [_term(word) for word in dict.fromkeys(kept)]
    if not wanted and not loose:
        return None
    near = [f"NEAR({a} {b}, {_NEAR})" for a, b in itertools.pairwise(loose) if "*" not in a + b]
    filters, common = ("".join(f' AND tags : "{each}"' for each in some) for some in ([*tags, *shared], shared))
    if wanted:
        # A phrase in quotes must be there; words only make it likelier.
        must, may = " AND ".join(wanted), " OR ".join(wanted + loose + near)
        own = match = f"{{text}} : (({must}) AND ({may})){filters}"
    else:
        own = f"{{text}} : ({' OR '.join(loose)}){common}"
        match = f"{{{'text' if alone else 'text around'}}} : ({' OR '.join(loose + near)}){filters}"
    terms = tuple(dict.fromkeys(word.lower() for word in [*phrases, *kept]))
    return Question(own, match, terms)


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
    *_, end = _PART.finditer(phrase)
    head, last = phrase[: end.start()], end[0]
    open_ended = _UNSPACED_RUN.fullmatch(last) is not None
    tail = pairs(last)[: max(1, len(last) - 1)] if open_ended else [last]
    quoted = " ".join([*indexed(head).split(), *tail])
    return f'"{quoted}" *' if open_ended and len(last) == 1 else f'"{quoted}"'


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
