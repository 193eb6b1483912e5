"""The running turn as rows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast import events
from holdfast.tui import entries, entry_rows, live_turn

FORM = entry_rows.RowFormat(60)


def start(*happened: events.AnyEvent) -> live_turn.LiveTurn:
    turn = live_turn.LiveTurn(lambda: "a/b", lambda: 0.0)
    for event in (events.TurnStarted("talk", "talk", "hello", 1), *happened):
        assert turn.handle(event)
    return turn


def draw(turn: live_turn.LiveTurn, opened: set[entries.Key] | None = None) -> list[str]:
    return [row.text.plain.strip() for row in turn.rows(FORM, opened or set()) if row.text.plain.strip()]


def test_events_are_drawn_in_order() -> None:
    turn = start(
        events.ReasoningDelta("Let me"),
        events.ReasoningDelta(" see.\nYes."),
        events.ToolStarted("c", "look", '{"at": 1}'),
        events.TextDelta("So **it"),
        events.TextDelta("** is.\n\nAnd"),
        events.ToolStarted("d", "look", "{}"),
        events.ToolProgress("d", "half"),
        events.ToolFinished("c", "look", False, "Nothing there."),
    )
    assert draw(turn) == [
        "▌ You",
        "▌ hello",
        "▸ reasoning: Let me see.",
        '▸ ✗ look {"at": 1}  Nothing there.',
        "Holdfast  a/b",
        "So it is.",
        "And",
        "▸ … look   half",
    ]
    (thought,) = [each for each in turn._parts if isinstance(each, entries.Entry) and each.kind == "reasoning"]
    assert draw(turn, {thought.key})[2:5] == ["▾ reasoning", "Let me see.", "Yes."]


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=200), max_size=8), st.integers(20, 100))
def test_any_streamed_reply_ends_as_it_is_drawn_at_once(pieces: list[str], width: int) -> None:
    form, streamed, whole = entry_rows.RowFormat(width), *(live_turn.StreamedReply((1, 1), "m") for _ in range(2))
    for piece in pieces:
        streamed.add(piece)
        streamed.rows(form)
    streamed.add("\n\nend\n\n")
    whole.add("".join(pieces) + "\n\nend\n\n")
    rows = [[row.text.plain.rstrip() for row in each.rows(form)] for each in (streamed, whole)]
    assert rows[0] == rows[1]
