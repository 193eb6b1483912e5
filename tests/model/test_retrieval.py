"""The sentences that answer a question are found, and of two that fit alike the later one."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import types
from holdfast.model import retrieval


def message(seq: int, role: types.Role, text: str) -> types.Message:
    return types.Message(seq, f"uid{seq}", "s", role, 0.0, msgspec.json.encode(types.Body(content=text)).decode())


def told(*texts: str) -> list[types.Message]:
    return [message(seq, "user", text) for seq, text in enumerate(texts, 1)]


@pytest.mark.parametrize(
    ("asked", "seq"),
    [
        ("what is my dog called?", 1),
        ("What's the name of my dog?", 1),
        ("where does Anna live?", 2),
        ("who is a nurse?", 2),
        ("on which ports are the servers listening?", 3),
        ("我的猫叫什么?", 4),
        ("wie heißt meine Katze?", 5),
        ("где лежит ключ?", 6),
    ],
)
def test_a_question_finds_what_was_told(asked: str, seq: int) -> None:
    context = told(
        "My dog is called Bella.",
        "My sister Anna lives in Oslo. She is a nurse.",
        "The server listens on port 8443.",
        "我的猫叫小白。",
        "Meine Katze heißt Minka.",
        "Ключ лежит под ковриком.",
    )
    assert retrieval.best(asked, context)[0].seq == seq


def test_a_name_is_found_by_how_it_was_told() -> None:
    assert retrieval.best("what is her name?", told("She is called Bella."))


def test_the_later_of_two_statements_comes_first() -> None:
    found = retrieval.best(
        "what is my dog called?", told("My dog is called Bella", "hm", "By now my dog is called Max")
    )
    assert [one.seq for one in found] == [3, 1]


def test_what_a_person_said_goes_before_an_echo_of_it() -> None:
    context = [message(1, "user", "My dog is called Bella"), message(2, "assistant", "Your dog is called Bella!")]
    assert [one.seq for one in retrieval.best("what is my dog called?", context)] == [1, 2]


def test_a_question_is_no_answer() -> None:
    assert retrieval.best("what is my dog called?", told("What is my dog called?", "do you know my dog")) == []


def test_a_share_tells_how_much_of_the_question_was_found() -> None:
    context = told("My friend lives in France.", *(f"Item {n} is here." for n in range(50)))
    assert retrieval.best("where in France does my friend live?", context)[0].share == pytest.approx(1.0)
    assert retrieval.best("what is the capital of France?", context)[0].share < 0.6


def test_an_answer_does_not_depend_on_what_was_asked_before() -> None:
    texts = [f"The {thing} is in box {n}." for n, thing in enumerate(("lamp", "drill", "rope", "lamp shade"), 1)]
    fresh, used = told(*texts), told(*texts)
    retrieval.best("where is the rope?", used)
    assert retrieval.best("where is the lamp?", fresh) == retrieval.best("where is the lamp?", used)


def test_a_body_in_escapes_is_found_too() -> None:
    escaped = types.Message(1, "u", "s", "user", 0.0, '{"content":"Der Schl\\u00fcssel liegt im Flur."}')
    assert retrieval.best("wo ist der Schlüssel?", [escaped])


def test_lines_of_a_text_come_in_their_order_and_without_the_question() -> None:
    text = "Bella eats at eight.\nwhat about Bella?\nTom is away.\nBella sleeps at nine."
    assert retrieval.best_lines("what about Bella?", text) == ["Bella eats at eight.", "Bella sleeps at nine."]
    assert retrieval.best_lines("Anna", text) == []


def test_a_huge_text_is_looked_at_as_far_as_is_reasonable() -> None:
    assert len(retrieval.sentences("One fact. " * 100_000)) == retrieval.MOST_SENTENCES
    assert sum(len(one.text) for one in retrieval.sentences("x" * 10**6)) == retrieval.MOST_CHARACTERS


@pytest.mark.parametrize(
    "words", [("name", "names", "named", "naming", "called"), ("live", "lives", "lived", "living"), ("port", "ports")]
)
def test_forms_of_a_word_are_one(words: tuple[str, ...]) -> None:
    assert len({retrieval.stem(word) for word in words}) == 1


@given(st.text(max_size=200), st.lists(st.text(max_size=80), max_size=8))
def test_for_any_texts_what_is_found_was_said(asked: str, texts: list[str]) -> None:
    context = told(*texts)
    for one in retrieval.best(asked, context):
        assert one.text in texts[one.seq - 1]
        assert 0 < one.share <= 1 + 1e-9
