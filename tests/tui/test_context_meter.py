"""The meter of the context window and the progress of a compaction fit the screen."""

from __future__ import annotations

import pytest

from holdfast import safe_text
from holdfast.compaction import base
from holdfast.terminal import event_text
from holdfast.terminal.status_line import ConversationStatus
from holdfast.tui import context_meter, entry_rows


@pytest.mark.parametrize("width", [1, 8, 20, 40, 200])
@pytest.mark.parametrize("marks", [event_text.Marks(), event_text.PLAIN])
def test_lines_fit_any_width(width: int, marks: event_text.Marks) -> None:
    form = entry_rows.RowFormat(width, entry_rows.EntryStyles(), marks)
    status = ConversationStatus("a-provider/a-long-name", 900, 1000, 0.5, queued=2, processes=3, soft=650, hard=900)
    assert safe_text.cells(context_meter.draw_status(status, form, 3.0).plain) <= width
    for progress in (None, base.Progress("reading"), base.Progress("summing up", 380, 12_400)):
        assert safe_text.cells(context_meter.draw_progress(progress, 7.3, form).plain) <= width
