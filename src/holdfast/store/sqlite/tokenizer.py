"""SQLite's full-text tokenizer, for an index that is not SQLite's."""

from __future__ import annotations

import functools

import apsw

# The `tokenize` option of sql/sqlite_search/schema.sql, so that both databases find the same words.
_NAME, _ARGUMENTS = "porter", ["unicode61", "remove_diacritics", "2"]


def tokenize(text: str) -> list[str]:
    """Return the words of a text in order: in lower case, without accents, stemmed by Porter's algorithm."""
    utf8 = text.encode("utf-8", "replace")
    found = _tokenizer()(utf8, apsw.FTS5_TOKENIZE_DOCUMENT, None, include_offsets=False, include_colocated=False)
    return [word for word in found if isinstance(word, str)]  # all are: the flags leave out the tuples


@functools.cache
def _tokenizer() -> apsw.FTS5Tokenizer:
    return apsw.Connection(":memory:").fts5_tokenizer(_NAME, _ARGUMENTS)
