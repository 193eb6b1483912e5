"""The context meter: how full the model's window is, with both thresholds drawn, and what goes on beside. Pure."""

from __future__ import annotations

import msgspec
from rich.style import Style
from rich.text import Text

from holdfast import safe_text
from holdfast.compaction import base
from holdfast.terminal import event_text, status_line
from holdfast.tui import entry_rows

BAR = 30
NARROWEST = 10
PULSE = 24


class Gauge(msgspec.Struct, frozen=True):
    """A window, in tokens. A compaction is made beside the turns from `soft` on; from `hard` on a turn waits for it."""

    used: int = 0
    window: int = 0
    soft: int = 0
    hard: int = 0


def gauged(here: status_line.Standing) -> Gauge:
    """The window of a conversation."""
    return Gauge(here.used or 0, here.window, here.soft, here.hard)


def bar(gauge: Gauge, width: int, ink: entry_rows.Ink, marks: event_text.Marks) -> Text:
    """The window from left to right: what is used, what is free, and where the thresholds are."""
    if not gauge.window or width < 1:
        return Text()
    used = min(round(gauge.used / gauge.window * width), width)
    if gauge.used and not used:
        used = 1
    places = {min(int(at / gauge.window * width), width - 1): style for at, style in _thresholds(gauge, ink)}
    full, free, edge = ("=", "-", "|") if marks == event_text.PLAIN else ("━", "─", "┃")
    style = ink.error if gauge.used >= gauge.hard else ink.warning if gauge.used >= gauge.soft else ink.good
    drawn = Text()
    for place in range(width):
        if place in places:
            drawn.append(edge, places[place])
        else:
            drawn.append(full if place < used else free, style if place < used else ink.aside)
    return drawn


def _thresholds(gauge: Gauge, ink: entry_rows.Ink) -> list[tuple[int, Style]]:
    return [(gauge.soft, ink.warning), (gauge.hard, ink.error)]


def standing(
    here: status_line.Standing,
    gauge: Gauge,
    room: int,
    ink: entry_rows.Ink,
    marks: event_text.Marks,
    answering: float | None = None,
) -> Text:
    """The line at the bottom: the meter first, then what else there is to tell, in as much room as there is."""
    told = [each for each in _told(here, gauge, marks, answering) if each]
    behind = f" {marks.dot} ".join(told)
    width = min(BAR, room - safe_text.cells(behind) - 2)
    if width < NARROWEST:
        width = min(NARROWEST, room)
    line = bar(gauge, width, ink, marks)
    if line and room > line.cell_len + 2:
        line.append("  ")
    return line.append(safe_text.clipped(behind, max(room - line.cell_len, 0), marks.more), ink.aside)


def _told(here: status_line.Standing, gauge: Gauge, marks: event_text.Marks, answering: float | None) -> list[str]:
    doing = "waiting" if here.waiting else "answering"
    share = f"{gauge.used / gauge.window:.0%} of {status_line.short(gauge.window)}" if gauge.window else ""
    return [
        share,
        f"{doing}{marks.more} {answering:.0f} s" if answering is not None else "",
        f"{here.queued} queued" if here.queued else "",
        safe_text.count(here.processes, "process", "processes") if here.processes else "",
        safe_text.safe(here.model),
        status_line.money(here.cost) if here.cost else "",
    ]


def progress(
    reached: base.Progress | None, seconds: float, room: int, ink: entry_rows.Ink, marks: event_text.Marks
) -> Text:
    """A compaction beside the talk: its stage; nobody knows how long it takes, so a light goes to and fro."""
    told = f"Compacting{_stage(reached)}{marks.more} {seconds:.0f} s "
    width = min(PULSE, room - safe_text.cells(told))
    if width < 4:
        return Text(safe_text.clipped(told, room, marks.more), ink.mark)
    step, length = int(seconds * 8), max(width // 4, 1)
    way = width - length
    place = way - abs(step % (2 * way) - way) if way else 0
    full, free = ("=", "-") if marks == event_text.PLAIN else ("━", "─")
    return Text.assemble(
        (told, ink.mark),
        (free * place, ink.aside),
        (full * length, ink.mark),
        (free * (width - place - length), ink.aside),
    )


def _stage(reached: base.Progress | None) -> str:
    match reached:
        case None:
            return ""
        case base.Progress("reading"):
            return ": reading"
        case base.Progress("writing"):
            return ": writing it down"
        case base.Progress(_, messages, tokens):
            return f": summing up {safe_text.count(messages, 'message')}, about {tokens:,} tokens"
