"""Whoever comes back to a conversation sees where it stood."""

from __future__ import annotations

from typing import Any

from holdfast import SessionDB, parts, types
from holdfast.terminal import recap, show


def looks(*said: dict[str, Any], width: int = 40) -> str:
    with SessionDB(":memory:") as db:
        here = db.create_session(source="test").id
        db.append_messages(here, list(said))
        messages = db.transcript(here)
    return "".join(piece.text for piece in recap.drawn(messages, show.Page(width=lambda: width)))


def exchange(number: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"ask {number}"}, {"role": "assistant", "content": f"reply {number}"}]


def test_the_last_exchanges_are_shown_in_order() -> None:
    shown = looks(*(each for number in range(1, 6) for each in exchange(number)))
    assert shown == "> ask 3\nreply 3\n\n> ask 4\nreply 4\n\n> ask 5\nreply 5\n\n"


def test_a_message_nobody_answered_is_shown_too() -> None:
    assert looks(*exchange(1), {"role": "user", "content": "and?"}) == "> ask 1\nreply 1\n\n> and?\n\n"


def test_work_and_notes_are_left_out() -> None:
    call = {"role": "assistant", "tool_calls": [{"id": "c", "name": "ls", "arguments": "{}"}]}
    dated = {"role": "user", "content": [parts.note("It is a note."), {"type": "text", "text": "hi"}]}
    shown = looks(dated, call, {"role": "tool", "content": "a tool said", "tool_call_id": "c"}, exchange(1)[1])
    assert shown == "> hi\nreply 1\n\n"


def test_a_notice_is_shown_as_one_and_not_as_what_somebody_asked() -> None:
    told = {"role": "user", "content": [parts.note("n"), parts.notice("process 1 ended\n> much output", "process")]}
    assert looks(*exchange(1), told, exchange(2)[1]) == "> ask 1\nreply 1\n\n· process 1 ended\nreply 2\n\n"


def test_a_long_message_is_shortened_to_rows_of_the_terminal() -> None:
    shown = looks({"role": "user", "content": "word " * 100}, width=20)
    rows = shown.rstrip("\n").split("\n")
    assert len(rows) == recap.LINES
    assert rows[-1] == "  …"
    assert all(len(row) <= 20 for row in rows)


def test_nothing_said_is_nothing_shown() -> None:
    assert looks() == ""


def test_what_is_shown_cannot_act_on_the_terminal() -> None:
    assert looks({"role": "user", "content": "\x1b[2J\u202ehi"}) == "> \\x1b[2J\\u202ehi\n\n"


def test_the_compaction_a_conversation_stands_on_is_marked() -> None:
    made = [types.Compaction(epoch, None, "s", 10 * epoch, 10 * epoch, None, 0.0, "summary") for epoch in (2, 3)]
    page = show.Page(width=lambda: 100)
    told = "".join(piece.text for piece in recap.covered(made, 2, page))
    assert "up to 20" in told
    assert "/recall 1-20" in told
    assert recap.covered(made, 7, page) == []


def test_what_was_taken_back_is_left_out_until_it_is_brought_back() -> None:
    said = [each for number in range(1, 4) for each in exchange(number)]
    with SessionDB(":memory:") as db:
        here = db.create_session(source="test").id
        db.append_messages(here, said)
        hidden = db.hide(here, 3)
        page, messages = show.Page(width=lambda: 40), db.transcript(here)

        def looked(hides: list[types.Hide]) -> str:
            return "".join(piece.text for piece in recap.drawn(messages, page, hides))

        assert looked(db.hides(here)) == "> ask 1\nreply 1\n\n"
        branch = db.branch(here).conversation_id
        assert looked(db.hides(branch)) == "> ask 1\nreply 1\n\n"
        db.show(here, hidden.epoch)
        assert "ask 3" in looked(db.hides(here))
