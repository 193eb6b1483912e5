"""The words of messages and queries for the search index on PostgreSQL.

Words are tokenized and stemmed as SQLite's index does it, so that both find the same messages. The format of blocks and
positions is described in sql/postgres_search/schema.sql.
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
# The largest count and position that fit into the format; larger ones are stored as these.
_MAX_COUNT = 15
_MAX_POSITION = 2**19 - 1
# Longer words are cut, in characters: PostgreSQL limits the size of an index entry.
_MAX_LENGTH = 100

_RUN = re.compile(rf"([{query_parser.UNSPACED}]+)|([^{query_parser.UNSPACED}]+)")
_END = "\U0010ffff"

Words = list[str]
# The first and the last word of a range, in the order of code points.
Range = tuple[str, str]


def index_text(text: str) -> Words:
    """Return the words a text is found by, in order."""
    words: Words = []
    for unspaced, other in _RUN.findall(text):
        found = query_parser.pairs(unspaced) if unspaced else tokenizer.tokenize(other)
        words += [word[:_MAX_LENGTH] for word in found]
    return words


def index_rows(key: int, documents: Sequence[query_parser.Document[Words]], known: int) -> Iterator[dict[str, Any]]:
    """Return the parameters of `index_put`, block by block. The words of messages up to `known` are indexed already."""
    for block, some in itertools.groupby(documents, lambda each: each.seq // BLOCK):
        group = list(some)
        places: dict[str, list[int]] = {}
        messages: dict[str, int] = {}
        for document in group:
            if document.seq > known:
                for word, found in _places(document).items():
                    places.setdefault(word, []).extend(found)
                    messages[word] = messages.get(word, 0) + 1
        # Sorted in the order of the index. As text, since psycopg takes longer to adapt lists than all the rest.
        ordered = sorted(places.items())
        yield {
            "conversation": key,
            "block": block,
            "owner": group[0].owner,
            "first": group[0].seq % BLOCK,
            "lengths": _array(len(each.text) + sum(map(len, each.around)) for each in group),
            "words": " ".join(word for word, _ in ordered),
            "messages": _array(messages[word] for word, _ in ordered),
            "places": " ".join(_array(each) for _, each in ordered),
        }


def _array(numbers: Iterable[int]) -> str:
    return f"{{{','.join(map(str, numbers))}}}"


def _places(document: query_parser.Document[Words]) -> dict[str, list[int]]:
    within = (document.seq % BLOCK) << 23
    at: dict[str, list[int]] = {f"#{tag}": [within] for tag in document.tags}
    for place, word in enumerate(document.text):
        at.setdefault(word, []).append(within | min(place, _MAX_POSITION))
    for found in at.values():
        found[0] |= min(len(found), _MAX_COUNT) << 19
    return at


def search_parameters(tx: Tx, query: query_parser.Query) -> query_parser.Parameters | None:
    """Look up the words of a query and return the parameters of `index_find` and of `index_find_at`.

    None when the index has none of its words, or not all of a phrase in quotes.
    """
    phrases = [phrase for phrase in map(_phrase, query.phrases) if phrase]
    loose = [range_ for word in query.loose for range_ in _phrase(word)]
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
        "terms": _array(number for number, _ in scored.values()),
        "rarities": [rarity for _, rarity in scored.values()],
        "share": rows[0][3],
        # Only single words of the query score higher close to the next one.
        "together": _array(n for n, pair in enumerate(itertools.pairwise(ranges), 1) if _are_words(pair, loose)),
        "apart": query_parser.NEAR + 1,
        "owner": query.shared[0] if query.shared else None,
    }
    own = [[words[range_] for range_ in phrase] for phrase in phrases]
    tags = [[[f"#{tag}"]] for tag in query.tags]
    return {**common, **_phrase_parameters(own)}, {**common, **_phrase_parameters(own + tags)}


def _are_words(pair: tuple[Range, Range], loose: list[Range]) -> bool:
    return all(first == last and (first, last) in loose for first, last in pair)


def _phrase(text: str) -> list[Range]:
    """Return the words of a phrase in order, each as a range; unspaced text at the end may continue in the message."""
    head, tail = query_parser.split_last_word(text)
    found = [(word, word) for word in index_text(head)]
    if query_parser.is_unspaced(tail):
        *before, last = query_parser.prefix_pairs(tail)
        return [*found, *((pair, pair) for pair in before), (last, last + _END if len(last) == 1 else last)]
    return found + [(word, word) for word in index_text(tail)]


def _phrase_parameters(phrases: list[list[list[str]]]) -> dict[str, Any]:
    """Return the parameters for phrases: each step of a phrase is one of some words."""
    steps = [
        (number, step, len(phrase), word)
        for number, phrase in enumerate(phrases)
        for step, words in enumerate(phrase)
        for word in words
    ]
    return {
        "phrases": len(phrases),
        "phrase": _array(each[0] for each in steps),
        "step": _array(each[1] for each in steps),
        "steps": _array(each[2] for each in steps),
        "needed": [each[3] for each in steps],
    }
