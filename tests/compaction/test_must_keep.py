"""Texts that a summary must keep: facts and open requests, ranked, verbatim and within a budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import types
from holdfast.compaction import must_keep, sentences
from holdfast.model import tokens
from tests.support.messages import message, talk


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("The deposit is 1,450 EUR.", ["1,450 EUR"]),
        ("Oven at 180°C, 12% off, $4.50 each.", ["180°C", "12%", "$4.50"]),
        ("See src/app/main.py and ~/notes/a b.", ["src/app/main.py", "~/notes/a"]),
        ("Write to ada@example.org, please.", ["ada@example.org"]),
        ("Ticket OPS-4411, build 2.14.7, v3.1", ["OPS-4411", "2.14.7", "v3.1"]),
        ("It raised ConnectionError and ECONNRESET.", ["ConnectionError", "ECONNRESET"]),
        ("It was Marta Okonkwo on Monday.", ["Marta Okonkwo"]),
        ("预算是 3000 元", ["3000 元"]),
    ],
)
def test_facts_are_found_in_a_sentence(text: str, facts: list[str]) -> None:
    assert [fact.text for fact in must_keep.find_facts(text)] == facts


PERMIT = talk("Remind me to renew the parking permit.", "OK.", "What is the weather?", "Sunny.")


@pytest.mark.parametrize(
    ("messages", "still_open"),
    [
        (talk("Can you list the files?", "There are three: a, b and c."), []),
        (talk("Hello.", "Hello!", "First. Could you  rename\tthe table?"), ["Could you rename the table?"]),
        (PERMIT, ["Remind me to renew the parking permit."]),
        ([*PERMIT, *talk("I renewed the parking permit, it's done.", "Good.", begin=5)], []),
        (
            talk("Please compare the two quotes.", "I'll get back to you on that.", "Thanks.", "Sure."),
            ["Please compare the two quotes."],
        ),
    ],
    ids=["answered", "unanswered", "for later", "done", "postponed"],
)
def test_request_is_open_until_it_is_answered_or_done(messages: list[types.Message], still_open: list[str]) -> None:
    found = must_keep.find_open_requests(sentences.split_messages(messages), ())
    assert [each.text for each in found] == still_open


def test_requests_come_first_then_facts_of_the_user_then_others() -> None:
    messages = [
        message(1, "user", "The deposit is 1,450 EUR and the ticket is OPS-4411."),
        message(2, "assistant", "By the way there is also OPS-9000."),
        message(3, "tool", "row 77120X checked", tool_call_id="x"),
        message(4, "user", "Please remind me to call the bank about OPS-4411 later."),
    ]
    kept = must_keep.select(messages, None, 200)
    assert kept[0] == "Please remind me to call the bank about OPS-4411 later."
    assert "OPS-4411" not in kept  # It is part of the request.
    order = [kept.index(each) for each in ("1,450 EUR", "OPS-9000", "77120X")]
    assert order == sorted(order)


def test_texts_of_the_previous_summary_are_kept() -> None:
    previous = (
        "## Facts\n> #4 user: The locker is number 3078.\n## Open asks\n> #5 user: Please remind me to pay later."
    )
    kept = must_keep.select(talk("Nice day.", "Yes."), previous, 100)
    assert kept == ("Please remind me to pay later.", "number 3078")


def test_newest_requests_take_up_to_half_of_the_budget() -> None:
    asked = [message(seq, "user", f"Remind me to water plant {seq} on the sill later.") for seq in range(1, 30)]
    later = [message(seq, "user", f"The ticket is OPS-{seq}00.") for seq in range(30, 90)]
    kept = must_keep.select([*asked, *later], None, 120)
    requests = [each for each in kept if each.startswith("Remind")]
    assert requests[0] == "Remind me to water plant 29 on the sill later."
    assert sum(tokens.estimate(each) + 1 for each in requests) <= 60
    assert len(kept) > len(requests)


@given(st.lists(st.text(max_size=200), max_size=20), st.integers(0, 300))
def test_selection_of_any_texts_fits_and_has_single_lines(said: list[str], budget: int) -> None:
    kept = must_keep.select(talk(*said), None, budget)
    assert sum(tokens.estimate(each) for each in kept) <= budget
    assert all(each == each.strip() and len(each.splitlines()) == 1 for each in kept)
    assert len(set(kept)) == len(kept)
