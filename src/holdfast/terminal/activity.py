"""What tools do, a line each, on a terminal where a line can be written once more: it runs, and then it is done.

Lines of tools that run stand at the end of the screen, with the last thing each of them showed. One that is done has
its line above them, with the time it took. Whatever else is written meanwhile comes below, and they stay above it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from holdfast import events
from holdfast.terminal import live, show, text

# So much of a line at most is what a tool was called with: the rest is for what came of it.
SHARE = 0.5


class Call(msgspec.Struct, frozen=True):
    """A tool at work."""

    name: str
    arguments: str
    since: float
    showed: str = ""


class Activity:
    """The tools of one turn after the other."""

    def __init__(
        self, measure: live.Measure, marks: show.Marks | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._measure, self._marks, self._clock = measure, marks or show.Marks(), clock
        self._live = live.Live(measure)
        self._calls: dict[str, Call] = {}
        self._seen: list[str] = []

    def draw(self, event: events.ToolStarted | events.ToolProgress | events.ToolFinished) -> list[show.Piece]:
        """What an event looks like; the cursor is at the beginning of a row, before and after."""
        match event:
            case events.ToolStarted(call_id, name, arguments):
                self._calls[call_id] = Call(name, "" if arguments == "{}" else arguments, self._clock())
                return self._again(call_id)
            case events.ToolProgress(call_id, words):
                return self._progress(call_id, words)
            case events.ToolFinished():
                return self._finished(event)

    def leave(self) -> None:
        """Something else is written: what stands here stays."""
        self._live.leave()
        self._seen.clear()

    def _progress(self, call_id: str, words: str) -> list[show.Piece]:
        call = self._calls.get(call_id)
        last = next((line for line in reversed(words.splitlines()) if line.strip()), "")
        if call is None or not last:
            return []
        self._calls[call_id] = msgspec.structs.replace(call, showed=last)
        return self._again(call_id)

    def _finished(self, event: events.ToolFinished) -> list[show.Piece]:
        call = self._calls.pop(event.call_id, None) or Call(event.name, "", self._clock())
        first = next((line for line in event.preview.splitlines() if line.strip()), "")
        mark = self._marks.done if event.ok else self._marks.failed
        done = self._line(mark, call, first, f"{self._clock() - call.since:.1f} s")
        back = self._taken_back()
        if event.call_id in self._seen:
            self._seen.remove(event.call_id)
        return [*back, show.Piece(done, "dim" if event.ok else "yellow"), show.Piece("\n"), *self._running()]

    def _again(self, call_id: str) -> list[show.Piece]:
        """The lines of what runs, with this one among them."""
        back = self._taken_back()
        if call_id not in self._seen:
            self._seen.append(call_id)
        return [*back, *self._running()]

    def _taken_back(self) -> list[show.Piece]:
        back = self._live.taken_back()
        if back is None:
            self.leave()
        return [show.Piece(back)] if back else []

    def _running(self) -> list[show.Piece]:
        # More than fit could not be taken back.
        self._seen = self._seen[-max(self._measure().rows - 2, 1) :]
        pieces: list[show.Piece] = []
        for call in map(self._calls.__getitem__, self._seen):
            line = self._line(self._marks.call, call, call.showed)
            self._live.put(f"{line}\n")
            pieces += [show.Piece(line, "dim"), show.Piece("\n")]
        return pieces

    def _line(self, mark: str, call: Call, came: str, took: str = "") -> str:
        """A row that does not fill the terminal's, so that it is one whatever the terminal makes of the last column."""
        more, room = self._marks.more, max(self._measure().columns - 1, 1)
        came = text.safe(came.strip())
        called = text.safe(f"{mark} {call.name} {call.arguments}".rstrip())
        behind = f" {self._marks.dot} {took}" if took else ""
        if came and text.cells(called) + text.cells(came) + 2 > room - text.cells(behind):
            called = text.clipped(called, max(int(room * SHARE), len(mark) + 2), more)
        line = f"{called}  {came}" if came else called
        return text.clipped(text.clipped(line, max(room - text.cells(behind), 1), more) + behind, room, more)
