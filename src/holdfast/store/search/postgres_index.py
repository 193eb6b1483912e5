"""The search index on PostgreSQL: tables in the schema of the store, and the words that are written to them.

Words are tokenized and stemmed as in SQLite's index, so that both databases find the same messages. The format of
blocks and positions is described in sql/postgres_search/schema.sql.

One process at a time writes to the index, under an advisory lock that it holds for the transaction. A process that does
not get the lock within two seconds searches the index as it is.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from holdfast.store.driver import Tx
from holdfast.store.search import query_parser
from holdfast.store.sqlite import tokenizer

T = TypeVar("T")

FOLDER = "postgres_search"
# Tables with words of messages.
INDEX_TABLES = ("search_words", "search_blocks")

# The lock is a separate statement, so that the statements after it see what its last holder wrote. The transaction is
# idle while a batch of the log is read and compared, which may take longer than the store's idle timeout.
_BEGIN = """
BEGIN; SET LOCAL lock_timeout = '2s'; SET LOCAL idle_in_transaction_session_timeout = '1min';
SELECT pg_advisory_xact_lock(hashtextextended('holdfast search ' || current_schema(), 0))
"""
# Queries differ in their words only, so one generic plan serves all. Sequential scans would be chosen for small tables
# only, where every look-up of a block would read all of them.
_BEGIN_READING = """
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SET LOCAL plan_cache_mode = force_generic_plan; SET LOCAL jit = off; SET LOCAL enable_seqscan = off
"""
_CLEAR = """;
DELETE FROM search_words; DELETE FROM search_blocks; DELETE FROM search_totals;
DELETE FROM search_progress; DELETE FROM search_meta
"""

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
WordRange = tuple[str, str]


class IndexTables:
    """The index of one store. It uses the connections of the store."""

    def __init__(self, store: Any) -> None:
        self._store = store  # a PostgresDriver, which imports this module

    def write(self, operation: str, step: Callable[[Tx], T]) -> T:
        result: T = self._store.write(operation, step, _BEGIN)
        return result

    def read(self, step: Callable[[Tx], T]) -> T:
        result: T = self._store.read(step, _BEGIN_READING)
        return result

    def clear(self) -> None:
        """Delete all rows. That takes no right to create tables, and other processes can still search."""
        self._store.write("discard", lambda _: None, _BEGIN + _CLEAR)

    def scrub(self) -> None:
        self._store.rewrite("scrub", INDEX_TABLES)

    def integrity_errors(self) -> list[str]:
        return []

    def close(self) -> None:
        pass


# --- words --------------------------------------------------------------------------------------------


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
            "lengths": _format_array(len(each.text) + sum(map(len, each.around)) for each in group),
            "words": " ".join(word for word, _ in ordered),
            "messages": _format_array(messages[word] for word, _ in ordered),
            "places": " ".join(_format_array(each) for _, each in ordered),
        }


def _format_array(numbers: Iterable[int]) -> str:
    return f"{{{','.join(map(str, numbers))}}}"


def _places(document: query_parser.Document[Words]) -> dict[str, list[int]]:
    within = (document.seq % BLOCK) << 23
    at: dict[str, list[int]] = {f"#{tag}": [within] for tag in document.tags}
    for place, word in enumerate(document.text):
        at.setdefault(word, []).append(within | min(place, _MAX_POSITION))
    for found in at.values():
        found[0] |= min(len(found), _MAX_COUNT) << 19
    return at


def search_parameters(tx: Tx, query: query_parser.ParsedQuery) -> query_parser.Parameters | None:
    """Look up the words of a query and return the parameters of `index_find` and of `index_find_at`.

    None when the index has none of its words, or not all of a phrase in quotes.
    """
    phrases = [phrase for phrase in map(_phrase, query.phrases) if phrase]
    loose = [range_ for word in query.words for range_ in _phrase(word)]
    ranges = list(dict.fromkeys([*loose, *itertools.chain.from_iterable(phrases)]))
    rows = tx.all("index_weights", firsts=[first for first, _ in ranges], lasts=[last for _, last in ranges])
    words: dict[WordRange, list[str]] = {}
    scored: dict[str, tuple[int, float]] = {}
    for number, word, rarity, _ in sorted(rows):
        words.setdefault(ranges[number - 1], []).append(word)
        scored.setdefault(word, (number, rarity))
    if not scored or any(range_ not in words for phrase in phrases for range_ in phrase):
        return None
    pairs = enumerate(itertools.pairwise(ranges), 1)
    # Only single words of the query score higher close to the next one.
    together = [n for n, pair in pairs if all(range_[0] == range_[1] and range_ in loose for range_ in pair)]
    common = {
        "words": list(scored),
        "terms": _format_array(number for number, _ in scored.values()),
        "rarities": [rarity for _, rarity in scored.values()],
        "share": rows[0][3],
        "together": _format_array(together),
        "apart": query_parser.MAX_WORD_DISTANCE + 1,
        "owner": query.shared[0] if query.shared else None,
    }
    own = [[words[range_] for range_ in phrase] for phrase in phrases]
    tags = [[[f"#{tag}"]] for tag in query.tags]
    return {**common, **_phrase_parameters(own)}, {**common, **_phrase_parameters(own + tags)}


def _phrase(text: str) -> list[WordRange]:
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
        "phrase": _format_array(each[0] for each in steps),
        "step": _format_array(each[1] for each in steps),
        "steps": _format_array(each[2] for each in steps),
        "needed": [each[3] for each in steps],
    }
