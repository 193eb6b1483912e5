"""The context meter with both compaction thresholds, the status line and the progress of a compaction. Pure."""

from __future__ import annotations

from rich.text import Text

from holdfast import safe_text
from holdfast.compaction import base
from holdfast.terminal import status_line
from holdfast.tui import entry_rows

MAX_BAR_COLUMNS = 30
MIN_BAR_COLUMNS = 10


def draw_bar(status: status_line.ConversationStatus, width: int, form: entry_rows.RowFormat) -> Text:
    """Draw the context window: the used part, the free part, and both thresholds."""
    window, tokens, styles = status.window, status.used or 0, form.styles
    if not window or width < 1:
        return Text()
    used = min(round(tokens / window * width), width)
    if tokens and not used:
        used = 1
    thresholds = [(status.soft, styles.warning), (status.hard, styles.error)]
    edges = {min(int(at / window * width), width - 1): style for at, style in thresholds}
    full, free, edge = ("=", "-", "|") if form.is_ascii else ("━", "─", "┃")
    style = styles.error if tokens >= status.hard else styles.warning if tokens >= status.soft else styles.success
    bar = Text()
    for place in range(width):
        if place in edges:
            bar.append(edge, edges[place])
        else:
            bar.append(full if place < used else free, style if place < used else styles.dim)
    return bar


def draw_status(status: status_line.ConversationStatus, form: entry_rows.RowFormat, turn: float | None = None) -> Text:
    """Draw the bottom line: the meter, then as much of the status as there is room for."""
    marks, room = form.marks, form.width
    queued, processes, cost = status_line.counters(status)
    parts = [
        status_line.share_text(status.used or 0, status.window),
        status_line.turn_time(status, marks, turn),
        queued,
        processes,
        safe_text.safe(status.model),
        cost,
    ]
    text = f" {marks.dot} ".join(filter(None, parts))
    width = min(MAX_BAR_COLUMNS, room - safe_text.cells(text) - 2)
    if width < MIN_BAR_COLUMNS:
        width = min(MIN_BAR_COLUMNS, room)
    line = draw_bar(status, width, form)
    if line and room > line.cell_len + 2:
        line.append("  ")
    return line.append(form.clip(text, max(room - line.cell_len, 0)), form.styles.dim)


def draw_progress(progress: base.Progress | None, seconds: float, form: entry_rows.RowFormat) -> Text:
    """Draw a running compaction: its stage, and how long it has been running."""
    text = f"Compacting{_stage(progress)}{form.marks.more} {seconds:.0f} s"
    return Text(form.clip(text, form.width), form.styles.compaction)


def _stage(progress: base.Progress | None) -> str:
    match progress:
        case None:
            return ""
        case base.Progress("reading"):
            return ": reading"
        case base.Progress("writing"):
            return ": saving"
        case base.Progress(_, messages, tokens):
            return f": summarizing {safe_text.count(messages, 'message')}, about {tokens:,} tokens"
