"""What tools do, a line each, where a line can change: it runs, and then it is done.

Tools that run have their lines at the end, with the last thing each of them showed. One that is done has its line
above them, with the time it took: from when it was called, or from when somebody answered whether it may.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from holdfast import events, safe_text
from holdfast.runtime import wording
from holdfast.terminal import event_text

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
        self,
        width: Callable[[], int],
        marks: event_text.Marks | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._width, self._marks, self._clock = width, marks or event_text.Marks(), clock
        self._calls: dict[str, Call] = {}
        self._asked: dict[str, str] = {}

    @property
    def open(self) -> list[event_text.Piece]:
        """The lines of what runs."""
        return self._lines(list(self._calls.values()))

    def permission(self, event: events.ApprovalAsked | events.ApprovalSettled) -> None:
        """How long a person thinks is not the tool's time."""
        match event:
            case events.ApprovalAsked(request_id, call_id):
                self._asked[request_id] = call_id
            case events.ApprovalSettled(request_id):
                call_id = self._asked.pop(request_id, "")
                if call_id in self._calls:
                    self._calls[call_id] = msgspec.structs.replace(self._calls[call_id], since=self._clock())

    def draw(self, event: events.ToolStarted | events.ToolProgress | events.ToolFinished) -> list[event_text.Piece]:
        """The line of what is done with this event, if anything is."""
        match event:
            case events.ToolStarted(call_id, name, arguments):
                self._calls[call_id] = Call(name, "" if arguments == "{}" else arguments, self._clock())
                return []
            case events.ToolProgress(call_id, words):
                self._progress(call_id, words)
                return []
            case events.ToolFinished():
                return self._finished(event)

    def end(self) -> list[event_text.Piece]:
        """The turn is over: what never came to an end stays as it was."""
        left = self.open
        self._calls.clear()
        self._asked.clear()
        return left

    def _progress(self, call_id: str, words: str) -> None:
        call = self._calls.get(call_id)
        last = next((line for line in reversed(words.splitlines()) if line.strip()), "")
        if call is not None and last:
            self._calls[call_id] = msgspec.structs.replace(call, showed=last)

    def _finished(self, event: events.ToolFinished) -> list[event_text.Piece]:
        call = self._calls.pop(event.call_id, None) or Call(event.name, "", self._clock())
        first = wording.first_line(event.preview)
        mark = self._marks.done if event.ok else self._marks.failed
        done = self._line(mark, call, first, f"{self._clock() - call.since:.1f} s")
        return [event_text.Piece(done, "dim" if event.ok else "yellow"), event_text.Piece("\n")]

    def _lines(self, calls: list[Call]) -> list[event_text.Piece]:
        drawn = [event_text.Piece(self._line(self._marks.call, call, call.showed), "dim") for call in calls]
        return [piece for line in drawn for piece in (line, event_text.Piece("\n"))]

    def _line(self, mark: str, call: Call, came: str, took: str = "") -> str:
        """A row that does not fill the terminal's, so that it is one whatever the terminal makes of the last column."""
        more, room = self._marks.more, max(self._width() - 1, 1)
        came = safe_text.safe(came.strip())
        called = safe_text.safe(f"{mark} {call.name} {call.arguments}".rstrip())
        behind = f" {self._marks.dot} {took}" if took else ""
        if came and safe_text.cells(called) + safe_text.cells(came) + 2 > room - safe_text.cells(behind):
            called = safe_text.clipped(called, max(int(room * SHARE), len(mark) + 2), more)
        line = f"{called}  {came}" if came else called
        return safe_text.clipped(
            safe_text.clipped(line, max(room - safe_text.cells(behind), 1), more) + behind, room, more
        )
