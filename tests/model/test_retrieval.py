"""Retrieval: the sentences that answer a question, the later of two that match equally first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import types
from holdfast.model import retrieval
from tests.support.provider_calls import message


def rank(question: str, messages: list[types.Message]) -> list[retrieval.RankedStatement]:
    return retrieval.rank(question, retrieval.split_messages(messages))


def ranked_seqs(question: str, messages: list[types.Message]) -> list[int]:
    return [match.statement.seq for match in rank(question, messages)]


def user_messages(*texts: str) -> list[types.Message]:
    return [message("user", text, seq) for seq, text in enumerate(texts, 1)]


@pytest.mark.parametrize(
    ("question", "seq"),
    [
        ("What's the name of my dog?", 1),
        ("where does Anna live?", 2),
        ("on which ports are the servers listening?", 3),
        ("我的猫叫什么?", 4),
        ("где лежит ключ?", 5),
        ("wo ist der Schlüssel?", 6),
    ],
)
def test_question_finds_its_answer(question: str, seq: int) -> None:
    context = user_messages(
        "My dog is called Bella.",
        "My sister Anna lives in Oslo. She is a nurse.",
        "The server listens on port 8443.",
        "我的猫叫小白。",
        "Ключ лежит под ковриком.",
    )
    escaped = types.Message(6, "u", "s", "user", 0.0, '{"content":"Der Schl\\u00fcssel liegt im Flur."}')
    assert ranked_seqs(question, [*context, escaped])[0] == seq


def test_later_statements_and_user_statements_come_first() -> None:
    question = "what is my dog called?"
    assert ranked_seqs(question, user_messages("My dog is called Bella", "hm", "By now my dog is called Max")) == [3, 1]
    echoed = [message("user", "My dog is called Bella", 1), message("assistant", "Your dog is called Bella!", 2)]
    assert ranked_seqs(question, echoed) == [1, 2]
    assert rank(question, user_messages("What is my dog called?", "do you know my dog")) == []
    assert sum(len(one.text) for one in retrieval.split("x" * 10**6)) == retrieval.MAX_CHARACTERS


@given(st.text("ab .?!\n", max_size=60), st.lists(st.text("ab .?!\n", max_size=40), max_size=8))
def test_results_are_parts_of_the_messages(question: str, texts: list[str]) -> None:
    for one in rank(question, user_messages(*texts)):
        assert one.statement.text in texts[one.statement.seq - 1]
        assert 0 < one.share <= 1 + 1e-9
