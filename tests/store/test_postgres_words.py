"""Words of the PostgreSQL index: how texts are split, stored and searched for."""

from __future__ import annotations

import json
from pathlib import Path

import apsw
import pytest

from holdfast.store import queries
from holdfast.store.search import postgres_index, query_parser

CORPUS = Path(__file__).parent.parent.parent / "bench" / "corpus"


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("The Passports, in_drawers!", ["the", "passport", "in", "drawer"]),
        ("Schränkchen ÜBER", ["schrankchen", "uber"]),
        ("Tokyo 红叶 festival", ["tokyo", "红叶", "叶", "festiv"]),
        ("서울에서", ["서울", "울에", "에서", "서"]),
        ("ガラス", ["ガラ", "ラス", "ス"]),
        ("x" * 500, ["x" * 100]),
        ("?! … \0", []),
    ],
)
def test_text_is_split_into_words(text: str, cut: list[str]) -> None:
    assert postgres_index.index_text(text) == cut


def test_both_databases_index_the_same_words() -> None:
    chats = [json.loads(line) for file in CORPUS.glob("*.jsonl") for line in file.read_text("utf-8").splitlines()]
    texts = [message["content"] for chat in chats for message in chat["messages"]]
    spaced = [text for text in texts if query_parser.index_text(text) == text]
    index = apsw.Connection(":memory:")
    index.execute(queries.schema("sqlite_search"))
    index.execute("CREATE VIRTUAL TABLE found USING fts5vocab (words, 'instance')")
    index.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", enumerate(spaced))
    theirs: list[list[str]] = [[] for _ in spaced]
    for number, word in index.execute("SELECT doc, term FROM found ORDER BY doc, offset"):
        theirs[number].append(word)
    assert len(spaced) > 900
    assert list(map(postgres_index.index_text, spaced)) == theirs


def _document(seq: int, *said: str) -> query_parser.Document[list[str]]:
    return query_parser.Document(seq, list(said), [["of", "neighbours"]], ["r1"], "o1")


def test_posting_of_a_very_long_text_is_capped() -> None:
    last = 2**19 + 5
    (row,) = postgres_index.index_rows(1, [_document(255, *["gull"] * 20, *["x"] * last, "gull")], 0)
    word = row["words"].split().index("gull")
    numbers = [int(number) for number in row["places"].split()[word].strip("{}").split(",")]
    assert {number >> 23 for number in numbers} == {255}
    assert [(number >> 19) & 15 for number in numbers] == [15] + [0] * 20
    assert numbers[-1] & 524287 == 524287
