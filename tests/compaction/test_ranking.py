"""Words are compared by their beginning."""

from __future__ import annotations

from holdfast.compaction import sentences


def test_forms_of_a_word_are_one_and_scripts_without_spaces_have_pairs() -> None:
    assert sentences.terms("Permits permitted") == sentences.terms("permit")
    assert {"我们", "们决", "决定"} <= sentences.terms("我们决定")
