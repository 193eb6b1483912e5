"""Stems: the same as SQLite's own, which the other database's index has."""

from __future__ import annotations

import re
from pathlib import Path

import apsw

from holdfast.store.search import stems

# Endings of every rule, on words of all lengths; and words that are little but an ending.
ROOTS = [
    "a",
    "be",
    "hop",
    "hopp",
    "fil",
    "sky",
    "tr",
    "conflat",
    "troubl",
    "relat",
    "digit",
    "radic",
    "gener",
    "commun",
    "oscill",
    "adjust",
    "y",
]
ENDINGS = [
    "s",
    "sses",
    "ies",
    "ss",
    "eed",
    "ed",
    "ing",
    "at",
    "bl",
    "iz",
    "y",
    "ational",
    "tional",
    "enci",
    "anci",
    "izer",
    "logi",
    "bli",
    "alli",
    "entli",
    "eli",
    "ousli",
    "ization",
    "ation",
    "ator",
    "alism",
    "iveness",
    "fulness",
    "ousness",
    "aliti",
    "iviti",
    "biliti",
    "icate",
    "ative",
    "alize",
    "iciti",
    "ical",
    "ful",
    "ness",
    "al",
    "ance",
    "ence",
    "er",
    "ic",
    "able",
    "ible",
    "ant",
    "ement",
    "ment",
    "ent",
    "sion",
    "tion",
    "ion",
    "ou",
    "ism",
    "ate",
    "iti",
    "ous",
    "ive",
    "ize",
    "e",
    "ll",
]
CORPUS = Path(__file__).parent.parent.parent / "bench" / "corpus"


def test_every_word_has_the_stem_that_sqlite_gives_it() -> None:
    found = {word for file in CORPUS.glob("*.jsonl") for word in re.findall("[a-z]+", file.read_text("utf-8").lower())}
    words = sorted(found | {root + ending for root in ["", *ROOTS] for ending in ENDINGS})
    table = apsw.Connection(":memory:")
    table.execute("CREATE VIRTUAL TABLE said USING fts5 (word, tokenize = 'porter unicode61')")
    table.execute("CREATE VIRTUAL TABLE stems USING fts5vocab (said, 'instance')")
    table.executemany("INSERT INTO said (rowid, word) VALUES (?, ?)", enumerate(words))
    theirs = {words[number]: stem for stem, number in table.execute("SELECT term, doc FROM stems")}
    assert len(theirs) > 3000
    assert {word: stems.stem(word) for word in theirs} == theirs


def test_what_is_no_latin_word_is_left_as_it_is() -> None:
    for word in ("", "is", "четвергами", "r2d2ing", "x" * 65 + "ing"):
        assert stems.stem(word) == word
