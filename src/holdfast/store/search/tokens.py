"""Words for an index that neither cuts nor stems: what it is told of messages, and what it is asked. Pure.

Words are cut and stemmed as SQLite's index does it, so that both find the same. How a place of a word is packed into
a number, and messages into blocks, is told in sql/postgres_search/schema.sql.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from holdfast.store.driver import Tx
from holdfast.store.search import query_parser
from holdfast.store.sqlite import tokenizer

BLOCK = 256
# What does not fit is as good as the most that does.
_MOST_TIMES = 15
_LAST_PLACE = 2**19 - 1
# Longer ones are no words; their beginning is enough to tell them apart.
_LONGEST = 100

_RUN = re.compile(rf"([{query_parser.UNSPACED}]+)|([^{query_parser.UNSPACED}]+)")
_END = "\U0010ffff"

Cut = list[str]
# The first and the last word, in the order of code points.
Range = tuple[str, str]


def indexed(text: str) -> Cut:
    """Return the words a text is found by, in order."""
    words: Cut = []
    for unspaced, other in _RUN.findall(text):
        found = query_parser.pairs(unspaced) if unspaced else tokenizer.tokenize(other)
        words += [word[:_LONGEST] for word in found]
    return words


def rows(key: int, documents: Sequence[query_parser.Document[Cut]], known: int) -> Iterator[dict[str, Any]]:
    """What the index is told of messages, block by block; of those up to `known` it has the words already."""
    for block, some in itertools.groupby(documents, lambda each: each.seq // BLOCK):
        together = list(some)
        places: dict[str, list[int]] = {}
        messages: dict[str, int] = {}
        for document in together:
            if document.seq > known:
                for word, found in _places(document).items():
                    places.setdefault(word, []).extend(found)
                    messages[word] = messages.get(word, 0) + 1
        # In one order, whoever writes: it is the order of the index. As texts, since lists cost more than all the rest.
        ordered = sorted(places.items())
        yield {
            "conversation": key,
            "block": block,
            "owner": together[0].owner,
            "first": together[0].seq % BLOCK,
            "lengths": _listed(len(each.text) + sum(map(len, each.around)) for each in together),
            "words": " ".join(word for word, _ in ordered),
            "messages": _listed(messages[word] for word, _ in ordered),
            "places": " ".join(_listed(each) for _, each in ordered),
        }


def _listed(numbers: Iterable[int]) -> str:
    return f"{{{','.join(map(str, numbers))}}}"


def _places(document: query_parser.Document[Cut]) -> dict[str, list[int]]:
    within = (document.seq % BLOCK) << 23
    at: dict[str, list[int]] = {f"#{tag}": [within] for tag in document.tags}
    for place, word in enumerate(document.text):
        at.setdefault(word, []).append(within | min(place, _LAST_PLACE))
    for found in at.values():
        found[0] |= min(len(found), _MOST_TIMES) << 19
    return at


def asks(tx: Tx, question: query_parser.Question) -> query_parser.Asks | None:
    """Look up the words of a question and return the parameters of `index_find` and of `index_find_at`.

    None when the index has none of its words, or not all of a phrase in quotes.
    """
    phrases = [phrase for phrase in map(_phrase, question.phrases) if phrase]
    loose = [range_ for word in question.loose for range_ in _phrase(word)]
    ranges = list(dict.fromkeys([*loose, *itertools.chain.from_iterable(phrases)]))
    rows = tx.all("index_weights", firsts=[first for first, _ in ranges], lasts=[last for _, last in ranges])
    words: dict[Range, list[str]] = {}
    scored: dict[str, tuple[int, float]] = {}
    for number, word, rarity, _ in sorted(rows):
        words.setdefault(ranges[number - 1], []).append(word)
        scored.setdefault(word, (number, rarity))
    if not scored or any(range_ not in words for phrase in phrases for range_ in phrase):
        return None
    common = {
        "words": list(scored),
        "terms": _listed(number for number, _ in scored.values()),
        "rarities": [rarity for _, rarity in scored.values()],
        "share": rows[0][3],
        # Only single words of the question score by standing close to the next one.
        "together": _listed(n for n, pair in enumerate(itertools.pairwise(ranges), 1) if _are_words(pair, loose)),
        "apart": query_parser.NEAR + 1,
        "owner": question.shared[0] if question.shared else None,
    }
    own = [[words[range_] for range_ in phrase] for phrase in phrases]
    tags = [[[f"#{tag}"]] for tag in question.tags]
    return {**common, **_needed(own)}, {**common, **_needed(own + tags)}


def _are_words(pair: tuple[Range, Range], loose: list[Range]) -> bool:
    return all(first == last and (first, last) in loose for first, last in pair)


def _phrase(text: str) -> list[Range]:
    """Return the words of a phrase in order, each as a range; unspaced text at the end may continue in the message."""
    head, tail = query_parser.parted(text)
    found = [(word, word) for word in indexed(head)]
    if query_parser.is_unspaced(tail):
        *before, last = query_parser.begun(tail)
        return [*found, *((pair, pair) for pair in before), (last, last + _END if len(last) == 1 else last)]
    return found + [(word, word) for word in indexed(tail)]


def _needed(phrases: list[list[list[str]]]) -> dict[str, Any]:
    """Return the parameters for phrases: each step of a phrase is one of some words."""
    steps = [
        (number, step, len(phrase), word)
        for number, phrase in enumerate(phrases)
        for step, words in enumerate(phrase)
        for word in words
    ]
    return {
        "phrases": len(phrases),
        "phrase": _listed(each[0] for each in steps),
        "step": _listed(each[1] for each in steps),
        "steps": _listed(each[2] for each in steps),
        "needed": [each[3] for each in steps],
    }
