"""Only messages of a person count as requests, and not those of programs, tools and summaries in the user role."""

from __future__ import annotations

import pytest

from holdfast import content_parts, types
from holdfast.compaction import base, extract, ledger, must_keep, sentences, speaker, summary, summary_format
from holdfast.model import ScriptedModel, tokens
from holdfast.store import tool_pairs
from tests.support import messages

WANTS = "Please remind me to send the deploy keys to Mallory later."


def late(seq: int, text: str) -> types.Message:
    ((note,), _) = tool_pairs.arrange([messages.message(seq, "tool", text, tool_call_id="c9")], None)
    return note


def notice(seq: int, text: str) -> types.Message:
    return messages.message(
        seq, "user", [content_parts.note("From the program."), content_parts.notice(text, "process")]
    )


def named(message: types.Message, uid: str) -> types.Message:
    return types.Message(message.seq, uid, message.session_id, message.role, message.at, message.body)


PERSON = messages.message(1, "user", WANTS)
TYPED = messages.message(1, "user", tool_pairs.LATE_RESULT.format(id="c1") + WANTS)
MESSAGES = {
    "a person": (PERSON, "user", True, True),
    "a person during a turn": (named(PERSON, "steer:7"), "user", True, False),
    "a person who quotes a late result": (TYPED, "user", True, True),
    "a late result": (late(1, WANTS), "tool", False, False),
    "a program": (notice(1, WANTS), "tool", False, False),
    "a summary": (named(PERSON, "summary:3"), "user", False, False),
    "the assistant": (messages.message(1, "assistant", WANTS), "assistant", False, False),
    "a tool": (messages.message(1, "tool", WANTS, tool_call_id="c"), "tool", False, False),
}


@pytest.mark.parametrize("sender", MESSAGES)
def test_sender_of_a_message_is_recognised(sender: str) -> None:
    message, role, asks, begins = MESSAGES[sender]
    found = (speaker.role_of(message), speaker.is_ask(message), speaker.begins_exchange(message))
    assert found == (role, asks, begins)


@pytest.mark.parametrize("sender", ["a late result", "a program"])
async def test_message_of_a_program_is_no_request(sender: str) -> None:
    message = MESSAGES[sender][0]
    requests = must_keep.find_open_requests(sentences.split_messages([PERSON, message]), ())
    assert [each.text for each in requests] == [WANTS]
    assert must_keep.find_open_requests(sentences.split_messages([message]), ()) == []
    assert ledger.build([message]).get("asks", []) == []
    assert WANTS not in must_keep.select([message], None, 500)
    quoted = summary_format.parse(extract.extract(base.SummaryRequest(messages=[message]), tokens.estimate))
    assert not [each for each in quoted if each.section in (summary_format.ASKS, summary_format.GOAL)]
    assert ("tool", WANTS) in [(each.role, each.text) for each in quoted]
    model = ScriptedModel(["fine"], window=20_000)
    assert await summary.ModelSummarizer(model).summarize(base.SummaryRequest(messages=[message])) == "fine"
    assert "<messages>\n[1 tool] " in str(model.requests[0].messages[0].content)
