"""Events as pieces of styled text. Pure: nothing is written here.

The reply flows as it comes, verbatim unless a `ReplyStream` draws it. Everything else has lines of its own, so that the
reply, the work of tools and errors can be distinguished at a glance.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, Protocol, assert_never

import msgspec

from holdfast import events, safe_text
from holdfast.runtime import wording

DETAIL_LINES = 12
REMEMBERS = "c and a also allow: "
LEVELS: dict[events.Level, str] = {"info": "dim", "warning": "yellow", "error": "red"}
# The arguments of a tool take at most this share of a line; the rest is for its output.
ARGUMENTS_SHARE = 0.5

ToolEvent = events.ToolStarted | events.ToolProgress | events.ToolFinished
ApprovalEvent = events.ApprovalAsked | events.ApprovalSettled


class Marks(NamedTuple):
    """The signs at the beginning and end of lines."""

    call: str = "→"
    done: str = "✓"
    failed: str = "✗"
    dot: str = "·"
    more: str = "…"


PLAIN = Marks("->", "ok:", "failed:", "-", "...")


class StyledText(NamedTuple):
    """Safe text and its style."""

    text: str
    style: str = ""


class ReplyStream(Protocol):
    """Draws a reply as it streams in: complete blocks are returned once, the rest is `open`."""

    @property
    def open(self) -> str: ...
    @property
    def in_code(self) -> bool: ...
    def add(self, text: str) -> str: ...
    def end(self) -> str: ...


class EventRenderer:
    """Draws events one after the other, and remembers as much as the next piece depends on.

    With a `reply` and `tools`, these draw Markdown and tool calls, and their unfinished lines are `open`: shown below
    the finished text and drawn again when they change. Without them, all text is written once.
    """

    def __init__(
        self,
        marks: Marks | None = None,
        width: Callable[[], int] = lambda: 80,
        reply: ReplyStream | None = None,
        tools: ToolActivity | None = None,
    ) -> None:
        self.marks = marks or Marks()
        self.width = width
        self._reply, self._tools = reply, tools
        self._at_line_start = True
        self._flowing: str | None = None  # The style of the text that is being written; "" for the reply.
        self._replied = False

    @property
    def open(self) -> list[StyledText]:
        """The unfinished lines."""
        reply = [StyledText(f"{text}\n")] if self._reply and (text := self._reply.open) else []
        return [*reply, *(self._tools.open if self._tools else ())]

    @property
    def draws_markdown(self) -> bool:
        """Whether Markdown is drawn, or shown as it was written."""
        return self._reply is not None

    @property
    def in_code(self) -> bool:
        """Whether text written now would be inside a block of code."""
        return self._reply is not None and self._flowing == "" and self._reply.in_code

    def draw(self, event: events.AnyEvent) -> list[StyledText]:
        """Draw an event below the text that was drawn before."""
        match event:
            case events.TextDelta(text):
                self._replied = self._replied or bool(text.strip())
                return self._draw_reply(text)
            case events.ReasoningDelta(text):
                return self._flow(text, "dim")
            case events.ApprovalAsked() | events.ApprovalSettled():
                return [*self.end_line(), *self._draw_approval(event)]
            case events.ToolStarted() | events.ToolProgress() | events.ToolFinished():
                return self._draw_tool(event)
            case events.Answer(text) | events.Say(text):
                return self.lines("\n".join(safe_text.lay_out(safe_text.safe_lines(text), self.width())))
            case events.TurnFinished(result):
                return [*self.end_tools(), *self._draw_end(result)]
            case events.TurnStarted(text=text, notice=kind):
                self._replied = False
                return [*self.end_line(), *self.notice(text)] if kind else []
            case events.MessageStored() | events.Moved() | events.Quit():
                return []
            case events.Notice() | events.TurnQueued() | events.Titled() | events.Compacted():
                return self._draw_sentence(event)
            case _:
                assert_never(event)

    def lines(self, text: str, style: str = "") -> list[StyledText]:
        """Draw text on lines of its own. A drawn reply continues below it: half a block would be drawn wrongly."""
        shown = "\n".join(safe_text.safe_lines(text))
        before = [] if self._reply and self._flowing == "" else self.end_line()
        return [*before, StyledText(shown, style), StyledText("\n")]

    def notice(self, text: str) -> list[StyledText]:
        """Draw the first line of a notice that a program sent to the agent."""
        return self.one_line(f"{self.marks.dot} {wording.first_line(text)}", "dim")

    def prose(self, text: str, style: str = "") -> list[StyledText]:
        """Draw a sentence, wrapped between words."""
        return self.lines("\n".join(safe_text.wrap(safe_text.safe(text), max(self.width(), 1))), style)

    def one_line(self, text: str, style: str) -> list[StyledText]:
        """Draw text on one line, clipped to the width."""
        line = safe_text.safe(text).rstrip()
        return self.lines(safe_text.clip(line, max(self.width() - 1, 1), self.marks.more), style)

    def end_line(self) -> list[StyledText]:
        """End the line that is being written, if there is one."""
        reply, at_line_start = self._flowing == "" and self._reply, self._at_line_start
        self._at_line_start, self._flowing = True, None
        if reply:
            rest = reply.end()
            return [StyledText(rest)] if rest else []
        return [] if at_line_start else [StyledText("\n")]

    def end_tools(self) -> list[StyledText]:
        """End the line that is being written, and the lines of tools that never finished."""
        return [*self.end_line(), *self._tools.end()] if self._tools else []

    def detail(self, asked: events.ApprovalAsked, max_lines: int | None = None) -> list[StyledText]:
        """Draw the detail of an approval request, or its first lines."""
        text = asked.detail.rstrip("\n")
        lines = [f"  {line}" for line in safe_text.safe_lines(text)] if text.strip() else []
        if max_lines is None or len(lines) <= max_lines:
            return self.lines("\n".join(lines)) if lines else []
        more = f"  {self.marks.more} {safe_text.count(len(lines) - max_lines, 'more line')} (d shows all)"
        return [*self.lines("\n".join(lines[:max_lines])), *self.lines(more, "dim")]

    def _draw_sentence(
        self, event: events.Notice | events.TurnQueued | events.Titled | events.Compacted
    ) -> list[StyledText]:
        text, level = wording.describe(event) or wording.EventSentence("")
        if isinstance(event, events.Compacted):
            text = f"{text} Use /recall to read the originals."
        # A title comes after the end of a reply.
        before = self.end_line() if isinstance(event, events.Titled) else []
        return [*before, *self.prose(text, LEVELS[level])]

    def _draw_reply(self, text: str) -> list[StyledText]:
        if self._reply is None:
            return self._flow(text, "")
        before = self.end_line() if self._flowing != "" else []
        shown = self._reply.add(text)
        self._flowing, self._at_line_start = "", True
        return [*before, StyledText(shown)] if shown else before

    def _flow(self, text: str, style: str) -> list[StyledText]:
        before = self.end_line() if self._flowing != style else []
        shown = safe_text.safe_stream(text)
        if self._at_line_start and self._flowing is None:
            shown = shown.lstrip("\n")  # Some models begin with empty lines.
        if not shown:
            return before
        self._flowing, self._at_line_start = style, shown.endswith("\n")
        return [*before, StyledText(shown, style)]

    def _draw_tool(self, event: ToolEvent) -> list[StyledText]:
        if self._tools:
            return [*self.end_line(), *self._tools.draw(event)]
        match event:
            case events.ToolProgress(text=text):
                # Output comes in pieces of several lines; a progress message is one line.
                return self._flow(text, "dim") if "\n" in text else self.lines(text, "dim")
            case events.ToolStarted():
                return self.one_line(f"{self.marks.call} {wording.tool_started(event).text}", "dim")
            case events.ToolFinished():
                mark, (text, level) = self.marks.done if event.ok else self.marks.failed, wording.tool_finished(event)
                return self.one_line(f"{mark} {text}", LEVELS[level])
            case _:
                assert_never(event)

    def _draw_approval(self, event: ApprovalEvent) -> list[StyledText]:
        if self._tools:
            self._tools.handle_approval(event)
        if isinstance(event, events.ApprovalSettled):
            text, level = wording.approval_settled(event)
            return self.prose(text, LEVELS[level])
        return [
            *self.prose(wording.approval_asked(event).text, "bold"),
            *self.detail(event, DETAIL_LINES),
            *(self.prose(event.danger, "red") if event.danger else []),
            *(self.prose(f"{REMEMBERS}{event.remembers}", "dim") if event.remembers else []),
        ]

    def _draw_end(self, result: events.TurnResult) -> list[StyledText]:
        replied, self._replied = self._replied, False
        sentence = wording.turn_finished(result)
        pieces = self.end_line()
        if result.completed and not replied:
            # The reply came before this renderer was subscribed.
            pieces += [*self._draw_reply(result.final_response), *self.end_line()]
        if sentence is None or (replied and sentence.text == wording.EMPTY_REPLY):
            return pieces
        return [*pieces, *self.prose(sentence.text, LEVELS[sentence.level])]


class RunningTool(msgspec.Struct, frozen=True):
    """A running tool."""

    name: str
    arguments: str
    since: float
    output: str = ""


class ToolActivity:
    """Draws one line per tool call on a terminal whose lines can change.

    The lines of running tools, with the last line of their output, are `open`. A finished one gets its line above
    them, with the time since the call, or since the approval.
    """

    def __init__(
        self, width: Callable[[], int], marks: Marks | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._width, self._marks, self._clock = width, marks or Marks(), clock
        self._calls: dict[str, RunningTool] = {}
        self._approvals: dict[str, str] = {}

    @property
    def open(self) -> list[StyledText]:
        """The lines of running tools."""
        lines = [StyledText(self._line(self._marks.call, call, call.output), "dim") for call in self._calls.values()]
        return [piece for line in lines for piece in (line, StyledText("\n"))]

    def handle_approval(self, event: ApprovalEvent) -> None:
        """Restart the clock of a call when it is approved: a person's thinking is not the tool's time."""
        match event:
            case events.ApprovalAsked(request_id, call_id):
                self._approvals[request_id] = call_id
            case events.ApprovalSettled(request_id):
                call_id = self._approvals.pop(request_id, "")
                if call_id in self._calls:
                    self._calls[call_id] = msgspec.structs.replace(self._calls[call_id], since=self._clock())

    def draw(self, event: ToolEvent) -> list[StyledText]:
        """Return the line of a call that this event finishes, if it does."""
        match event:
            case events.ToolStarted(call_id, name, arguments):
                self._calls[call_id] = RunningTool(name, "" if arguments == "{}" else arguments, self._clock())
            case events.ToolProgress(call_id, text):
                last = wording.first_line("\n".join(reversed(text.splitlines())))
                if last and call_id in self._calls:
                    self._calls[call_id] = msgspec.structs.replace(self._calls[call_id], output=last)
            case events.ToolFinished():
                return self._finish(event)
        return []

    def end(self) -> list[StyledText]:
        """End the turn: return the lines of calls that never finished."""
        left = self.open
        self._calls.clear()
        self._approvals.clear()
        return left

    def _finish(self, event: events.ToolFinished) -> list[StyledText]:
        call = self._calls.pop(event.call_id, None) or RunningTool(event.name, "", self._clock())
        mark = self._marks.done if event.ok else self._marks.failed
        line = self._line(mark, call, wording.first_line(event.preview), f"{self._clock() - call.since:.1f} s")
        return [StyledText(line, "dim" if event.ok else "yellow"), StyledText("\n")]

    def _line(self, mark: str, call: RunningTool, output: str, duration: str = "") -> str:
        """Return a line that leaves the last column free, because terminals differ in how they wrap there."""
        more, room = self._marks.more, max(self._width() - 1, 1)
        output = safe_text.safe(output.strip())
        called = safe_text.safe(f"{mark} {call.name} {call.arguments}".rstrip())
        behind = f" {self._marks.dot} {duration}" if duration else ""
        if output and safe_text.cells(called) + safe_text.cells(output) + 2 > room - safe_text.cells(behind):
            called = safe_text.clip(called, max(int(room * ARGUMENTS_SHARE), len(mark) + 2), more)
        line = f"{called}  {output}" if output else called
        line = safe_text.clip(line, max(room - safe_text.cells(behind), 1), more)
        return safe_text.clip(line + behind, room, more)
