"""The meter of the context window: how full it is, its thresholds, and the progress of a compaction."""

from __future__ import annotations

import pytest

from holdfast import safe_text
from holdfast.compaction import base
from holdfast.terminal import event_text
from holdfast.terminal.status_line import ConversationStatus
from holdfast.tui import context_meter, entry_rows

STYLES = entry_rows.EntryStyles()


def form(width: int = 20, marks: event_text.Marks | None = None) -> entry_rows.RowFormat:
    return entry_rows.RowFormat(width, STYLES, marks or event_text.Marks())


@pytest.mark.parametrize("width", [1, 8, 20, 40, 200])
@pytest.mark.parametrize("marks", [event_text.Marks(), event_text.PLAIN])
def test_lines_fit_any_width(width: int, marks: event_text.Marks) -> None:
    model = "a-provider/a-model-with-a-name"
    status = ConversationStatus(model, 900, 1000, 0.5, queued=2, processes=3, soft=650, hard=900)
    assert safe_text.cells(context_meter.draw_status(status, form(width, marks), 3.0).plain) <= width
    for progress in (None, base.Progress("reading"), base.Progress("summing up", 380, 12_400)):
        assert safe_text.cells(context_meter.draw_progress(progress, 7.3, form(width, marks)).plain) <= width
