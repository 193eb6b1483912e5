"""The context meter: how full the model's window is, with both thresholds drawn, and what goes on beside. Pure."""

from __future__ import annotations

import msgspec
from rich.style import Style
from rich.text import Text

from holdfast.compaction import port
from holdfast.terminal import show, status, text
from holdfast.terminal.screen import drawing

BAR = 30
NARROWEST = 10
PULSE = 24


class Gauge(msgspec.Struct, frozen=True):
    """A window, in tokens. A compaction is made beside the turns from `soft` on; from `hard` on a turn waits for it."""

    used: int = 0
    window: int = 0
    soft: int = 0
    hard: int = 0


def gauged(here: status.Standing) -> Gauge:
    """The window of a conversation."""
    return Gauge(here.used or 0, here.window, here.soft, here.hard)


def bar(gauge: Gauge, width: int, ink: drawing.Ink, marks: show.Marks) -> Text:
    """The window from left to right: what is used, what is free, and where the thresholds are."""
    if not gauge.window or width < 1:
        return Text()
    used = min(round(gauge.used / gauge.window * width), width)
    if gauge.used and not used:
        used = 1
    places = {min(int(at / gauge.window * width), width - 1): style for at, style in _thresholds(gauge, ink)}
    full, free, edge = ("=", "-", "|") if marks == show.PLAIN else ("━", "─", "┃")
    style = ink.error if gauge.used >= gauge.hard else ink.warning if gauge.used >= gauge.soft else ink.good
    drawn = Text()
    for place in range(width):
        if place in places:
            drawn.append(edge, places[place])
        else:
            drawn.append(full if place < used else free, style if place < used else ink.aside)
    return drawn


def _thresholds(gauge: Gauge, ink: drawing.Ink) -> list[tuple[int, Style]]:
    return [(gauge.soft, ink.warning), (gauge.hard, ink.error)]


def standing(
    here: status.Standing,
    gauge: Gauge,
    room: int,
    ink: drawing.Ink,
    marks: show.Marks,
    answering: float | None = None,
) -> Text:
    """The line at the bottom: the meter first, then what else there is to tell, in as much room as there is."""
    told = [each for each in _told(here, gauge, marks, answering) if each]
    behind = f" {marks.dot} ".join(told)
    width = min(BAR, room - text.cells(behind) - 2)
    if width < NARROWEST:
        width = min(NARROWEST, room)
    line = bar(gauge, width, ink, marks)
    if line and room > line.cell_len + 2:
        line.append("  ")
    return line.append(text.clipped(behind, max(room - line.cell_len, 0), marks.more), ink.aside)


def _told(here: status.Standing, gauge: Gauge, marks: show.Marks, answering: float | None) -> list[str]:
    doing = "waiting" if here.waiting else "answering"
    share = f"{gauge.used / gauge.window:.0%} of {status.short(gauge.window)}" if gauge.window else ""
    return [
        share,
        f"{doing}{marks.more} {answering:.0f} s" if answering is not None else "",
        f"{here.queued} queued" if here.queued else "",
        text.count(here.processes, "process", "processes") if here.processes else "",
        text.safe(here.model),
        status.money(here.cost) if here.cost else "",
    ]


def progress(reached: port.Progress | None, seconds: float, room: int, ink: drawing.Ink, marks: show.Marks) -> Text:
    """A compaction beside the talk: its stage; nobody knows how long it takes, so a light goes to and fro."""
    told = f"Compacting{_stage(reached)}{marks.more} {seconds:.0f} s "
    width = min(PULSE, room - text.cells(told))
    if width < 4:
        return Text(text.clipped(told, room, marks.more), ink.mark)
    step, length = int(seconds * 8), max(width // 4, 1)
    way = width - length
    place = way - abs(step % (2 * way) - way) if way else 0
    full, free = ("=", "-") if marks == show.PLAIN else ("━", "─")
    return Text.assemble(
        (told, ink.mark),
        (free * place, ink.aside),
        (full * length, ink.mark),
        (free * (width - place - length), ink.aside),
    )


def _stage(reached: port.Progress | None) -> str:
    match reached:
        case None:
            return ""
        case port.Progress("reading"):
            return ": reading"
        case port.Progress("writing"):
            return ": writing it down"
        case port.Progress(_, messages, tokens):
            return f": summing up {text.count(messages, 'message')}, about {tokens:,} tokens"
