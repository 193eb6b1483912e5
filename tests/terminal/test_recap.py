"""The recap of a conversation that is continued: its last exchanges, and whether a reply is missing."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import SessionDB, content_parts, types
from holdfast.terminal import event_text, markdown, recap

AGAIN = "Unfinished: no reply to this is stored.\nUse /retry to ask again.\n\n"
CALL = {"role": "assistant", "content": "I look.", "tool_calls": [{"id": "c", "name": "ls", "arguments": "{}"}]}
RESULT = {"role": "tool", "content": "a tool said", "tool_call_id": "c"}
NOTE = content_parts.note("It is a note.")
PROCESS = content_parts.notice("process 1 ended\n> much output", "process")


def draw(*messages: dict[str, Any], width: int = 40, running: bool = False, as_markdown: bool = False) -> str:
    with SessionDB(":memory:") as db:
        here = db.create_session(source="test").id
        db.append_messages(here, list(messages))
        stored = db.transcript(here)
    stream = markdown.MarkdownStream(lambda: width) if as_markdown else None
    page = event_text.EventRenderer(None, lambda: width, stream)
    return "".join(piece.text for piece in recap.draw_recap(stored, page, running=running))


def user(content: types.Content) -> dict[str, Any]:
    return {"role": "user", "content": content}


def exchange(number: int) -> list[dict[str, Any]]:
    return [user(f"ask {number}"), {"role": "assistant", "content": f"reply {number}"}]


RECAPS: dict[str, tuple[list[dict[str, Any]], str]] = {
    "empty": ([], ""),
    "last exchanges": (
        [each for number in range(1, 6) for each in exchange(number)],
        "> ask 3\nreply 3\n\n> ask 4\nreply 4\n\n> ask 5\nreply 5\n\n",
    ),
    "unanswered": ([*exchange(1), user("and?")], f"> ask 1\nreply 1\n\n> and?\n{AGAIN}"),
    "interrupted work": ([exchange(1)[0], CALL, RESULT], f"> ask 1\nI look.\n\n{AGAIN}"),
    "two questions": ([exchange(1)[0], *exchange(2)], "> ask 1\n> ask 2\nreply 2\n\n"),
    "notes and calls": (
        [user([NOTE, {"type": "text", "text": "hi"}]), {**CALL, "content": ""}, RESULT, exchange(1)[1]],
        "> hi\nreply 1\n\n",
    ),
    "unanswered notice": ([*exchange(1), user([PROCESS])], "> ask 1\nreply 1\n\n· process 1 ended\n\n"),
    "notice": ([user([NOTE, PROCESS]), exchange(2)[1]], "· process 1 ended\nreply 2\n\n"),
    "control characters": ([user("\x1b[2J\u202ehi")], f"> \\x1b[2J\\u202ehi\n{AGAIN}"),
}


@pytest.mark.parametrize("case", RECAPS)
def test_recap_shows_the_last_exchanges(case: str) -> None:
    messages, expected = RECAPS[case]
    assert draw(*messages) == expected
    assert draw(*messages, running=True).rstrip() == expected.removesuffix(AGAIN).rstrip()


def test_long_message_is_shortened_to_rows_of_the_terminal() -> None:
    rows = draw(user("word " * 100), width=20).partition("\nUnf")[0].split("\n")
    assert (len(rows), rows[-1]) == (recap.MAX_LINES, "  …")
    assert all(len(row) <= 20 for row in rows)


def test_active_compaction_is_noted() -> None:
    made = [types.Compaction(epoch, None, "s", 10 * epoch, 10 * epoch, None, 0.0, "summary") for epoch in (2, 3)]
    page = event_text.EventRenderer(width=lambda: 100)
    note = "".join(piece.text for piece in recap.draw_summary_note(made, 2, page))
    assert "up to 20" in note
    assert "/recall 1-20" in note
    assert recap.draw_summary_note(made, 7, page) == []


def test_undone_messages_are_left_out_until_they_are_restored() -> None:
    with SessionDB(":memory:") as db:
        here = db.create_session(source="test").id
        db.append_messages(here, [each for number in range(1, 4) for each in exchange(number)])
        hidden = db.hide(here, 3)
        page, messages = event_text.EventRenderer(width=lambda: 40), db.transcript(here)

        def recap_of(conversation: str) -> str:
            return "".join(piece.text for piece in recap.draw_recap(messages, page, db.hides(conversation)))

        branch = db.branch(here).conversation_id
        assert recap_of(here) == recap_of(branch) == "> ask 1\nreply 1\n\n"
        db.show(here, hidden.epoch)
        assert "ask 3" in recap_of(here)
