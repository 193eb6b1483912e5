"""The thesaurus is well formed, and what stands for a word is found for less than the word itself."""

from __future__ import annotations

import itertools

import msgspec

from holdfast import types
from holdfast.model import retrieval, synonyms


def told(*texts: str) -> list[types.Message]:
    bodies = (msgspec.json.encode(types.Body(content=text)).decode() for text in texts)
    return [types.Message(seq, f"uid{seq}", "s", "user", 0.0, body) for seq, body in enumerate(bodies, 1)]


def test_every_group_has_words_to_choose_from() -> None:
    assert all(len(group) > 1 and len(set(group)) == len(group) for group in synonyms.groups())
    assert all(asked and told for asked, told in synonyms.kinds())
    words = itertools.chain(*synonyms.groups(), *itertools.chain(*synonyms.kinds()))
    assert all(word.isalnum() and word == word.casefold() for word in words)


def test_no_word_of_it_is_one_that_is_never_looked_for() -> None:
    words = set(itertools.chain(*synonyms.groups()))
    assert words & retrieval.COMMON == set()


def test_another_word_for_it_is_found() -> None:
    context = told("We paid 900 for the sofa.", "The lamp is on the sill.", "The vehicle is in the yard.")
    assert [one.seq for one in retrieval.best("What did the couch cost?", context)] == [1]
    assert retrieval.best("Where is the car?", context)[0].seq == 3


def test_words_that_belong_together_stand_for_one() -> None:
    context = told("The people next door are away.", "The door is open.")
    assert retrieval.best("When are the neighbours back?", context)[0].seq == 1


def test_the_word_itself_goes_before_one_that_stands_for_it() -> None:
    context = told("The bike is in the shed.", "The bicycle is in the hall.", "It rains.")
    assert [one.seq for one in retrieval.best("Where is the bike?", context)] == [1, 2]


def test_one_of_a_kind_answers_which_and_not_the_other_way_round() -> None:
    context = told("The walls will be turquoise.", "The colour is not known.", *(f"Item {n}." for n in range(9)))
    assert retrieval.best("Which colour will the walls be?", context)[0].seq == 1
    assert all(one.seq != 2 for one in retrieval.best("Is anything turquoise?", context))
