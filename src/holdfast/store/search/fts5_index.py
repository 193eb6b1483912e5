"""The search index on SQLite: rows and expressions for FTS5, which tokenizes texts itself."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.store.search import query_parser
from holdfast.store.search.query_parser import index_text


def index_rows(key: int, documents: Sequence[query_parser.Document[str]], _known: int) -> Iterator[dict[str, Any]]:
    """Return the parameters of `index_put`, for all messages: FTS5 replaces those it has already."""
    for each in documents:
        tags = " ".join([*each.tags, each.owner])
        yield {"conversation": key, "seq": each.seq, "text": each.text, "around": " ".join(each.around), "tags": tags}


def search_parameters(_tx: object, query: query_parser.ParsedQuery) -> query_parser.Parameters:
    """Return the parameters of `index_find` and of `index_find_at`."""
    own, around = match_expressions(query)
    return {"match": own}, {"match": around}


def match_expressions(query: query_parser.ParsedQuery) -> tuple[str, str]:
    """Return an expression that matches messages by their own words, and one that adds their neighbours' words.

    The first is faster. For every message that the second matches, the first matches it or one of its neighbours.
    """
    phrases, words = list(map(_quote, query.phrases)), list(map(_quote, query.words))
    near = [
        f"NEAR({a} {b}, {query_parser.MAX_WORD_DISTANCE})" for a, b in itertools.pairwise(words) if "*" not in a + b
    ]
    shared = "".join(f' AND tags : "{each}"' for each in query.shared)
    tags = "".join(f' AND tags : "{each}"' for each in query.tags) + shared
    if phrases:
        # A phrase in quotes is required; words only raise the score.
        must, may = " AND ".join(phrases), " OR ".join(phrases + words + near)
        expression = f"{{text}} : (({must}) AND ({may})){tags}"
        return expression, expression
    return f"{{text}} : ({' OR '.join(words)}){shared}", f"{{text around}} : ({' OR '.join(words + near)}){tags}"


def _quote(phrase: str) -> str:
    """Return a phrase as an FTS5 expression, with unspaced runs as the pairs they were indexed as.

    A run at the end may continue in the message, so its last character is not required to be the last.
    """
    head, last = query_parser.split_last_word(phrase)
    tail = query_parser.prefix_pairs(last) if query_parser.is_unspaced(last) else [last]
    quoted = " ".join([*index_text(head).split(), *tail])
    return f'"{quoted}" *' if query_parser.is_unspaced(last) and len(last) == 1 else f'"{quoted}"'
