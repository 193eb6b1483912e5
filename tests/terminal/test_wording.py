"""The sentence of each event: one for every kind that is shown as a sentence, none for the others."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from holdfast import events
from holdfast.runtime import wording
from tests.support.agents import turn_result

SENTENCES: list[tuple[events.AnyEvent, tuple[str, str] | None]] = [
    (events.TurnQueued("pid 7"), ("Waiting: a turn of this conversation is running elsewhere.", "warning")),
    (events.TurnStarted("c", "s", "Hello", 3), None),
    (events.TurnStarted("c", "s", "\nprocess 1 ended\noutput", 3, "process"), ("process 1 ended", "info")),
    (events.TextDelta("x"), None),
    (events.ReasoningDelta("x"), None),
    (events.MessageStored(1, "u", "user"), None),
    (events.ToolStarted("c", "shell", '{"a":1}'), ('shell {"a":1}', "info")),
    (events.ToolProgress("c", "half"), None),
    (events.ToolFinished("c", "shell", True, "\none\ntwo"), ("shell  one", "info")),
    (events.ToolFinished("c", "shell", False, ""), ("shell", "warning")),
    (events.ApprovalAsked("r", "c", "shell", "Run x."), ("shell: Run x.", "info")),
    (events.ApprovalAsked("r", "c", "shell", "Run x.", danger="Deletes."), ("shell: Run x.", "warning")),
    (events.ApprovalSettled("r", True, "me"), ("Allowed (me).", "info")),
    (events.ApprovalSettled("r", False, "me"), ("Denied (me).", "warning")),
    (events.Notice("Mind.", "error"), ("Mind.", "error")),
    (events.Titled("T"), ("Title: T", "info")),
    (events.Titled(None), ("The title was removed.", "info")),
    (
        events.Compacted("s2", 9, 1_000, 10, remark="By extract."),
        ("Compacted up to message 9: 1,000 tokens before, 10 after. By extract.", "info"),
    ),
    (events.Answer("So."), ("So.", "info")),
    (events.Say("x"), None),
    (events.Moved("x"), None),
    (events.Quit(), None),
    (events.TurnFinished(turn_result(final_response="Yes.")), None),
]


def test_every_kind_of_event_has_a_sentence_or_none() -> None:
    assert {type(event) for event, _ in SENTENCES} == {*get_args(events.AnyEvent)}
    for event, expected in SENTENCES:
        assert wording.describe(event) == expected, event


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"completed": False, "interrupted": True}, ("Interrupted. The conversation up to here is saved.", "warning")),
        ({"interrupted": True, "messages": ()}, ("Interrupted. The message was not sent.", "warning")),
        ({"completed": False, "failed": True, "error": "No key."}, ("No key.", "error")),
        ({"completed": False, "error": "50 steps."}, ("50 steps.", "warning")),
        ({"completed": False}, (wording.NOT_COMPLETED, "warning")),
        ({"partial": True}, (wording.CUT_OFF, "warning")),
        ({"final_response": " \n"}, (wording.EMPTY_REPLY, "info")),
    ],
)
def test_an_incomplete_turn_has_a_sentence(given: dict[str, Any], expected: tuple[str, str]) -> None:
    assert wording.turn_finished(turn_result(**{"final_response": "Yes.", **given})) == expected
