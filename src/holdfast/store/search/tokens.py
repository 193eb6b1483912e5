"""Words for an index that neither cuts nor stems: what it is told of messages, and what it is asked. Pure.

Words are cut and stemmed as SQLite's index does it, so that both find the same. How a place of a word is packed into
a number, and messages into blocks, is told in sql/postgres_search/schema.sql.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

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


def asks(question: query_parser.Question) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the index is asked: by messages' own words, and with those of their neighbours."""
    phrases = [phrase for phrase in map(_phrase, question.phrases) if phrase]
    loose = [range_ for word in question.loose for range_ in _phrase(word)]
    ranges = list(dict.fromkeys([*loose, *itertools.chain.from_iterable(phrases)]))
    exact = [first for first, last in ranges if first == last]
    scored = {
        "words": exact,
        "begins": [first for first, last in ranges if first != last],
        "ends": [last for first, last in ranges if first != last],
        "together": [n for n in range(1, len(exact)) if (exact[n], exact[n]) in loose],
        "apart": query_parser.NEAR + 1,
        "owner": question.shared[0] if question.shared else None,
    }
    tags = [[(f"#{tag}", f"#{tag}")] for tag in question.tags]
    return {**scored, **_needed(phrases)}, {**scored, **_needed(phrases + tags)}


Range = tuple[str, str]


def _phrase(text: str) -> list[Range]:
    """Its words one after the other, each from where to where; a run at the end may go on in the text."""
    head, tail = query_parser.parted(text)
    found = [(word, word) for word in indexed(head)]
    if query_parser.is_unspaced(tail):
        *before, last = query_parser.begun(tail)
        return [*found, *((pair, pair) for pair in before), (last, last + _END if len(last) == 1 else last)]
    return found + [(word, word) for word in indexed(tail)]


def _needed(phrases: list[list[Range]]) -> dict[str, Any]:
    steps = [(n, step, *each) for n, phrase in enumerate(phrases) for step, each in enumerate(phrase)]
    return {
        "phrases": len(phrases),
        "phrase": [each[0] for each in steps],
        "step": [each[1] for each in steps],
        "from": [each[2] for each in steps],
        "till": [each[3] for each in steps],
    }
