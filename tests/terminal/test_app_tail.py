"""The turn under way: what happens in it as rows, of which only what has changed is drawn again."""

from __future__ import annotations

import msgspec
import pytest

from holdfast import events
from holdfast.tui import entries, entry_rows, live_turn

PEN = entry_rows.RowFormat(60)


def begun(*happened: events.AnyEvent) -> live_turn.LiveTurn:
    turn = live_turn.LiveTurn(lambda: "a/b", lambda: 0.0)
    for event in (events.TurnStarted("talk", "talk", "hello", 1), *happened):
        assert turn.handle(event)
    return turn


def shown(turn: live_turn.LiveTurn, opened: set[entries.Key] | None = None) -> list[str]:
    return [row.text.plain.strip() for row in turn.rows(PEN, opened or set()) if row.text.plain.strip()]


def test_what_happens_is_seen_in_its_order() -> None:
    turn = begun(
        events.ReasoningDelta("Let me"),
        events.ReasoningDelta(" see."),
        events.ToolStarted("c", "look", '{"at": 1}'),
        events.TextDelta("So **it"),
        events.TextDelta("** is.\n\nAnd"),
        events.ToolStarted("d", "look", "{}"),
        events.ToolFinished("c", "look", False, "Nothing there."),
    )
    assert shown(turn) == [
        "▌ You",
        "▌ hello",
        "▸ reasoning: Let me see.",
        '▸ ✗ look {"at": 1}  Nothing there.',
        "Holdfast  a/b",
        "So it is.",
        "And",
        "▸ … look",
    ]


def test_a_call_that_runs_shows_the_end_of_what_came_so_far_and_then_what_came_of_it() -> None:
    turn = begun(events.ToolStarted("c", "look", "{}"), events.ToolProgress("c", "x" * 5_000))
    (call,) = [each for each in turn._parts if isinstance(each, entries.Entry) and each.kind == "tool"]
    assert (len(call.text), call.ok) == (2_000, None)
    turn.handle(events.ToolFinished("c", "look", True, "done"))
    assert shown(turn)[-1] == "▸ ✓ look   done"


def test_what_is_opened_is_drawn_open_and_closed_again() -> None:
    turn = begun(events.ReasoningDelta("one\ntwo"))
    (thought,) = [each for each in turn._parts if isinstance(each, entries.Entry) and each.kind == "reasoning"]
    assert shown(turn, {thought.key})[-3:] == ["▾ reasoning", "one", "two"]
    assert shown(turn)[-1] == "▸ reasoning: one"


def test_what_waits_stands_below_and_a_new_turn_begins_with_nothing_of_the_last() -> None:
    turn = begun(events.TextDelta("Once."))
    turn.queued = ["next"]
    assert shown(turn)[-2:] == ["▌ You  queued", "▌ next"]
    assert not turn.is_empty
    turn.clear()
    turn.queued = []
    assert turn.is_empty
    assert shown(turn) == []


def test_what_has_not_changed_is_not_drawn_again() -> None:
    turn = begun(
        events.ReasoningDelta("thinking " * 1_000),
        *(events.ToolStarted(str(n), "look", "{}") for n in range(3)),
        events.TextDelta("One.\n\nTwo.\n\n"),
    )
    turn.queued = ["next"]
    before = turn.rows(PEN, set())
    turn.handle(events.TextDelta("Three.\n\n"))
    turn.handle(events.ToolFinished("1", "look", True, "done"))
    after = turn.rows(PEN, set())
    again = [row for row in after if not any(row is each for each in before)]
    drawn = [row.text.plain.strip() for row in again if row.text.plain.strip()]
    assert drawn == ["▸ ✓ look   done", "Three."]


@pytest.mark.parametrize(
    "other",
    [entry_rows.RowFormat(40), msgspec.structs.replace(PEN, styles=entry_rows.EntryStyles(user=entry_rows.Style()))],
)
def test_another_pen_draws_all_of_it_again(other: entry_rows.RowFormat) -> None:
    turn = begun(events.ToolStarted("c", "look", "{}"), events.TextDelta("One.\n\n"))
    before = turn.rows(PEN, set())
    assert not any(row is each for row in turn.rows(other, set()) for each in before if row.text.plain)
