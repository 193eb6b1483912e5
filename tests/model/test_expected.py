"""A question says by its form what an answer has in it, and nothing where its form does not say."""

from __future__ import annotations

import pytest

from holdfast.model import expected


@pytest.mark.parametrize(
    ("question", "has", "has_not"),
    [
        ("When does it start?", "It starts on 3 December.", "It starts with a song."),
        ("Which day is it?", "It is on Fridays.", "It is in the hall."),
        ("At what time do we meet?", "We meet at 14:30.", "We meet there."),
        ("How much was it?", "It was 20 euros.", "It was cheap."),
        ("How long does it take?", "It takes four hours.", "It takes too long."),
        ("What size do I wear?", "I wear 43.", "I wear it often."),
        ("Who did it?", "It was done by Anna.", "It was done well."),
        ("Who did it?", "Anna is the one.", "Please look around."),
        ("Where is it?", "It is under the mat.", "It is blue."),
        ("In which folder is it?", "It is in logs/today.", "It is somewhere."),
    ],
)
def test_the_form_of_a_question_says_what_to_look_for(question: str, has: str, has_not: str) -> None:
    wanted = expected.of(question)
    assert wanted is not None
    assert wanted.search(has)
    assert not wanted.search(has_not)


@pytest.mark.parametrize("question", ["Is it raining?", "Do I like olives?", "我的猫叫什么?"])
def test_other_questions_expect_nothing(question: str) -> None:
    assert expected.of(question) is None
