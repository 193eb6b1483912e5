"""Whoever comes back to a conversation sees where it stood."""

from __future__ import annotations

import re
from typing import Any

from holdfast import SessionDB, content_parts, types
from holdfast.terminal import event_text, markdown, recap

AGAIN = "Unfinished: no reply to this is stored.\nUse /retry to ask again.\n\n"


def looks(*said: dict[str, Any], width: int = 40, under_way: bool = False, draws: bool = False) -> str:
    with SessionDB(":memory:") as db:
        here = db.create_session(source="test").id
        db.append_messages(here, list(said))
        messages = db.transcript(here)
    page = event_text.EventRenderer(None, lambda: width, markdown.MarkdownStream(lambda: width) if draws else None)
    return "".join(piece.text for piece in recap.draw_recap(messages, page, running=under_way))


def exchange(number: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"ask {number}"}, {"role": "assistant", "content": f"reply {number}"}]


def test_the_last_exchanges_are_shown_in_order() -> None:
    shown = looks(*(each for number in range(1, 6) for each in exchange(number)))
    assert shown == "> ask 3\nreply 3\n\n> ask 4\nreply 4\n\n> ask 5\nreply 5\n\n"


def test_a_message_nobody_answered_is_shown_too() -> None:
    assert looks(*exchange(1), {"role": "user", "content": "and?"}) == f"> ask 1\nreply 1\n\n> and?\n{AGAIN}"


CALL = {"role": "assistant", "content": "I look.", "tool_calls": [{"id": "c", "name": "ls", "arguments": "{}"}]}
RESULT = {"role": "tool", "content": "a tool said", "tool_call_id": "c"}


def test_work_that_was_broken_off_is_not_taken_for_an_answer() -> None:
    assert looks(exchange(1)[0], CALL, RESULT) == f"> ask 1\nI look.\n\n{AGAIN}"
    assert AGAIN not in looks(exchange(1)[0], CALL, RESULT, exchange(1)[1])
    assert "Unfinished" not in looks(
        *exchange(1), {"role": "user", "content": [content_parts.notice("over", "process")]}
    )


def test_only_the_last_can_be_asked_again_and_not_while_its_answer_is_under_way() -> None:
    shown = looks(exchange(1)[0], *exchange(2))
    assert shown == "> ask 1\n> ask 2\nreply 2\n\n"
    assert looks(exchange(1)[0], under_way=True) == "> ask 1\n\n"


def test_on_a_terminal_with_colours_an_answer_looks_as_it_did_when_it_came() -> None:
    said = ({"role": "user", "content": "q"}, {"role": "assistant", "content": "It is **so**:\n\n" + "- a\n" * 20})
    shown = re.sub(r"\x1b\[[\d;]*m", "", looks(*said, draws=True))
    assert shown.startswith("> q\nIt is so:\n\n")
    assert "**" not in shown
    assert shown.endswith("a\n…\n\n")
    assert len(shown.splitlines()) == 1 + recap.MAX_LINES + 1
    assert "**so**" in looks(*said)


def test_work_and_notes_are_left_out() -> None:
    call = {"role": "assistant", "tool_calls": [{"id": "c", "name": "ls", "arguments": "{}"}]}
    dated = {"role": "user", "content": [content_parts.note("It is a note."), {"type": "text", "text": "hi"}]}
    shown = looks(dated, call, {"role": "tool", "content": "a tool said", "tool_call_id": "c"}, exchange(1)[1])
    assert shown == "> hi\nreply 1\n\n"


def test_a_notice_is_shown_as_one_and_not_as_what_somebody_asked() -> None:
    told = {
        "role": "user",
        "content": [content_parts.note("n"), content_parts.notice("process 1 ended\n> much output", "process")],
    }
    assert looks(*exchange(1), told, exchange(2)[1]) == "> ask 1\nreply 1\n\n· process 1 ended\nreply 2\n\n"


def test_a_long_message_is_shortened_to_rows_of_the_terminal() -> None:
    shown = looks({"role": "user", "content": "word " * 100}, width=20)
    rows = shown.partition("\nUnf")[0].split("\n")
    assert len(rows) == recap.MAX_LINES
    assert rows[-1] == "  …"
    assert all(len(row) <= 20 for row in rows)


def test_nothing_said_is_nothing_shown() -> None:
    assert looks() == ""


def test_what_is_shown_cannot_act_on_the_terminal() -> None:
    assert looks({"role": "user", "content": "\x1b[2J\u202ehi"}) == f"> \\x1b[2J\\u202ehi\n{AGAIN}"


def test_the_compaction_a_conversation_stands_on_is_marked() -> None:
    made = [types.Compaction(epoch, None, "s", 10 * epoch, 10 * epoch, None, 0.0, "summary") for epoch in (2, 3)]
    page = event_text.EventRenderer(width=lambda: 100)
    told = "".join(piece.text for piece in recap.draw_summary_note(made, 2, page))
    assert "up to 20" in told
    assert "/recall 1-20" in told
    assert recap.draw_summary_note(made, 7, page) == []


def test_what_was_taken_back_is_left_out_until_it_is_brought_back() -> None:
    said = [each for number in range(1, 4) for each in exchange(number)]
    with SessionDB(":memory:") as db:
        here = db.create_session(source="test").id
        db.append_messages(here, said)
        hidden = db.hide(here, 3)
        page, messages = event_text.EventRenderer(width=lambda: 40), db.transcript(here)

        def looked(hides: list[types.Hide]) -> str:
            return "".join(piece.text for piece in recap.draw_recap(messages, page, hides))

        assert looked(db.hides(here)) == "> ask 1\nreply 1\n\n"
        branch = db.branch(here).conversation_id
        assert looked(db.hides(branch)) == "> ask 1\nreply 1\n\n"
        db.show(here, hidden.epoch)
        assert "ask 3" in looked(db.hides(here))
