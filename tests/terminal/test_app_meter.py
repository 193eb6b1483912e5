"""The meter: how full the window is, where the thresholds are, and what goes on beside."""

from __future__ import annotations

import pytest

from holdfast import safe_text
from holdfast.compaction import base
from holdfast.terminal import event_text, status_line
from holdfast.tui import context_meter, entry_rows

INK, MARKS = entry_rows.EntryStyles(), event_text.Marks()


def status(used: int = 0, window: int = 0, soft: int = 0, hard: int = 0) -> status_line.ConversationStatus:
    return status_line.ConversationStatus("a/b", used, window, soft=soft, hard=hard)


def form(width: int = 20, marks: event_text.Marks = MARKS) -> entry_rows.RowFormat:
    return entry_rows.RowFormat(width, INK, marks)


@pytest.mark.parametrize(
    ("used", "drawn"),
    [
        (0, "──────┃──┃"),
        (1, "━─────┃──┃"),
        (40, "━━━━──┃──┃"),
        (85, "━━━━━━┃━─┃"),
        (500, "━━━━━━┃━━┃"),
    ],
)
def test_the_bar_shows_what_is_used_and_both_thresholds(used: int, drawn: str) -> None:
    assert context_meter.draw_bar(status(used, 100, 65, 90), 10, form()).plain == drawn


@pytest.mark.parametrize(("used", "style"), [(10, INK.success), (65, INK.warning), (90, INK.error)])
def test_its_colour_says_which_threshold_was_passed(used: int, style: object) -> None:
    line = context_meter.draw_bar(status(used, 100, 65, 90), 20, form())
    assert line.spans[0].style == style


def test_without_a_window_there_is_no_bar() -> None:
    assert context_meter.draw_bar(status(), 20, form()).plain == ""


@pytest.mark.parametrize("room", [1, 8, 20, 40, 200])
@pytest.mark.parametrize("marks", [MARKS, event_text.PLAIN])
def test_the_lines_fit_whatever_room_there_is(room: int, marks: event_text.Marks) -> None:
    here = status_line.ConversationStatus(
        "a-provider/a-model-with-a-name", 900, 1000, 0.5, queued=2, processes=3, soft=650, hard=900
    )
    line = context_meter.draw_status(here, form(room, marks), 3.0)
    assert safe_text.cells(line.plain) <= room
    for seconds in (0.0, 0.9, 7.3, 100.0):
        for reached in (None, base.Progress("reading"), base.Progress("summing up", 380, 12_400)):
            assert safe_text.cells(context_meter.draw_progress(reached, seconds, form(room, marks)).plain) <= room


def test_the_line_tells_what_matters() -> None:
    here = status_line.ConversationStatus("a/b", 40_000, 200_000, 0.5, queued=2, soft=130_000, hard=180_000)
    line = context_meter.draw_status(here, form(100), 3.0).plain
    assert line.endswith("20% of 200k · answering… 3 s · 2 queued · a/b · $0.5000")


@pytest.mark.parametrize(
    ("reached", "told"),
    [
        (None, "Compacting… 3 s"),
        (base.Progress("reading"), "Compacting: reading… 3 s"),
        (base.Progress("summing up", 380, 12_400), "Compacting: summarizing 380 messages, about 12,400 tokens… 3 s"),
        (base.Progress("writing", 380), "Compacting: saving… 3 s"),
    ],
)
def test_a_compaction_tells_its_stage_and_never_a_share(reached: base.Progress | None, told: str) -> None:
    assert context_meter.draw_progress(reached, 3.0, form(100)).plain == told
