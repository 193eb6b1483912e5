"""What the others say ranks first; the order is the same every time."""

from __future__ import annotations

from holdfast.compaction import extract, sentences

TEXTS = (
    "The invoice of the roofer is late again.",
    "The roofer sent a second invoice for the gutter.",
    "A roofer invoice and a gutter invoice are open.",
    "Bananas ripen quickly.",
)


def test_the_central_sentence_ranks_above_the_lonely_one() -> None:
    ranks = extract.rank([sentences.terms(text) for text in TEXTS])
    assert max(ranks) == 1.0
    assert ranks[3] == min(ranks)
    assert min(ranks[:3]) > ranks[3]


def test_nothing_ranks_nothing() -> None:
    assert extract.rank([]) == []
    assert extract.rank([frozenset()]) == [1.0]


def test_forms_of_a_word_are_one_and_scripts_without_spaces_have_pairs() -> None:
    assert sentences.terms("Permits permitted") == sentences.terms("permit")
    assert {"我们", "们决", "决定"} <= sentences.terms("我们决定")
