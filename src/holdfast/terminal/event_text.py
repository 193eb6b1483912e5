"""Events as pieces of styled text. Pure: an event in, pieces out; nothing is written here.

The text of a reply flows as it comes, exactly as it was said, unless somebody draws it. Everything else stands on
lines of its own, so that a glance tells what the model said from what was done and what went wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, assert_never

from holdfast import events, safe_text
from holdfast.runtime import wording
from holdfast.terminal import text_wrap

DETAIL_LINES = 12
REMEMBERS = "c or a also allows from now on: "
LEVELS: dict[events.Level, str] = {"info": "dim", "warning": "yellow", "error": "red"}


class Marks(NamedTuple):
    """What lines begin and end with."""

    call: str = "→"
    done: str = "✓"
    failed: str = "✗"
    dot: str = "·"
    more: str = "…"


PLAIN = Marks("->", "ok:", "failed:", "-", "...")


class Piece(NamedTuple):
    """Text, and how it is to look; safe to write as it is."""

    text: str
    style: str = ""


class Flow(Protocol):
    """A reply, drawn as it comes: what is complete with its next words and at its end, and what is open until then."""

    @property
    def open(self) -> str: ...
    @property
    def in_code(self) -> bool: ...
    def add(self, words: str) -> str: ...
    def end(self) -> str: ...


class Tools(Protocol):
    """What tools do, drawn where lines can change: what is done, and what is open until then."""

    @property
    def open(self) -> list[Piece]: ...
    def draw(self, event: events.ToolStarted | events.ToolProgress | events.ToolFinished) -> list[Piece]: ...
    def permission(self, event: events.ApprovalAsked | events.ApprovalSettled) -> None: ...
    def end(self) -> list[Piece]: ...


class Page:
    """What was drawn so far, as far as the next piece depends on it.

    With a `reply` and `tools` these draw what they are for, and what they have open is shown below all that was
    written; without, all is plain text that is written once.
    """

    def __init__(
        self,
        marks: Marks | None = None,
        width: Callable[[], int] = lambda: 80,
        reply: Flow | None = None,
        tools: Tools | None = None,
    ) -> None:
        self.marks = marks or Marks()
        self.width = width
        self._reply, self._tools = reply, tools
        self._fresh = True
        self._flowing: str | None = None
        self._said = False

    @property
    def open(self) -> list[Piece]:
        """What is not complete yet, and will be drawn once more when it is."""
        speaking = [Piece(f"{words}\n")] if self._reply and (words := self._reply.open) else []
        return [*speaking, *(self._tools.open if self._tools else ())]

    @property
    def draws(self) -> bool:
        """Whether Markdown is drawn, or shown as it was written."""
        return self._reply is not None

    @property
    def in_code(self) -> bool:
        """Whether what is written now would stand in the middle of a block of code."""
        return self._reply is not None and self._flowing == "" and self._reply.in_code

    def draw(self, event: events.AnyEvent) -> list[Piece]:
        """What an event looks like, after all that was drawn before."""
        match event:
            case events.TextDelta(words):
                self._said = self._said or bool(words.strip())
                return self._speak(words)
            case events.ReasoningDelta(words):
                return self._flow(words, "dim")
            case events.ApprovalAsked() | events.ApprovalSettled():
                if self._tools:
                    self._tools.permission(event)
                return [*self.break_off(), *self._permission(event)]
            case events.ToolStarted() | events.ToolProgress() | events.ToolFinished():
                return [*self.break_off(), *self._tools.draw(event)] if self._tools else self._tool(event)
            case events.Answer(words) | events.Say(words):
                return self.lines("\n".join(text_wrap.laid_out(safe_text.safe_lines(words), self.width())))
            case events.TurnFinished(result):
                return [*self.left_open(), *self._ended(result)]
            case events.TurnStarted(text=words, notice=kind):
                self._said = False
                return [*self.break_off(), *self.notice(words)] if kind else []
            case events.MessageStored() | events.Moved() | events.Quit():
                return []
            case _:
                return self._told(event)

    def lines(self, words: str, style: str = "") -> list[Piece]:
        """Text on lines of its own. A reply that is drawn goes on below it: half a block would be drawn as another."""
        shown = "\n".join(safe_text.safe_lines(words))
        broken = [] if self._reply and self._flowing == "" else self.break_off()
        return [*broken, Piece(shown, style), Piece("\n")]

    def notice(self, words: str) -> list[Piece]:
        """What a program told the agent: its first line, which says what it is."""
        return self.one_line(f"{self.marks.dot} {wording.first_line(words)}", "dim")

    def prose(self, words: str, style: str = "") -> list[Piece]:
        """A sentence on lines of its own, broken between words."""
        return self.lines("\n".join(safe_text.wrapped(safe_text.safe(words), max(self.width(), 1))), style)

    def break_off(self) -> list[Piece]:
        """End the line that is being written, if there is one."""
        speaking, fresh = self._flowing == "" and self._reply, self._fresh
        self._fresh, self._flowing = True, None
        if speaking:
            ended = speaking.end()
            return [Piece(ended)] if ended else []
        return [] if fresh else [Piece("\n")]

    def _told(self, event: events.TurnQueued | events.Notice | events.Titled | events.Compacted) -> list[Piece]:
        match event:
            case events.Titled():
                # A title is set when a reply has ended, so nothing follows that reply.
                return [*self.break_off(), *self._sentence(wording.titled(event))]
            case events.Compacted():
                text, level = wording.compacted(event)
                return self._sentence(wording.Sentence(f"{text} Use /recall to read the originals.", level))
            case events.Notice():
                return self._sentence(wording.notice(event))
            case events.TurnQueued():
                return self._sentence(wording.turn_queued(event))
            case _:
                assert_never(event)

    def _sentence(self, sentence: wording.Sentence) -> list[Piece]:
        return self.prose(sentence.text, LEVELS[sentence.level])

    def _speak(self, words: str) -> list[Piece]:
        """A piece of the reply."""
        if self._reply is None:
            return self._flow(words, "")
        broken = self.break_off() if self._flowing != "" else []
        shown = self._reply.add(words)
        self._flowing, self._fresh = "", True
        return [*broken, Piece(shown)] if shown else broken

    def _flow(self, words: str, style: str) -> list[Piece]:
        broken = self.break_off() if self._flowing != style else []
        shown = safe_text.flowing(words)
        if self._fresh and self._flowing is None:
            shown = shown.lstrip("\n")  # Some models begin with empty lines.
        if not shown:
            return broken
        self._flowing, self._fresh = style, shown.endswith("\n")
        return [*broken, Piece(shown, style)]

    def _tool(self, event: events.ToolStarted | events.ToolProgress | events.ToolFinished) -> list[Piece]:
        match event:
            case events.ToolProgress(text=words):
                # Output comes in pieces of several lines; a sentence stands alone.
                return self._flow(words, "dim") if "\n" in words else self.lines(words, "dim")
            case events.ToolStarted():
                return self.one_line(f"{self.marks.call} {wording.tool_started(event).text}", "dim")
            case events.ToolFinished():
                mark, (text, level) = self.marks.done if event.ok else self.marks.failed, wording.tool_finished(event)
                return self.one_line(f"{mark} {text}", LEVELS[level])
            case _:
                assert_never(event)

    def _permission(self, event: events.ApprovalAsked | events.ApprovalSettled) -> list[Piece]:
        match event:
            case events.ApprovalSettled():
                return self._sentence(wording.approval_settled(event))
            case events.ApprovalAsked():
                remembered = f"{REMEMBERS}{event.remembers}" if event.remembers else ""
                return [
                    *self.prose(wording.approval_asked(event).text, "bold"),
                    *self.detail(event, DETAIL_LINES),
                    *(self.prose(event.danger, "red") if event.danger else []),
                    *(self.prose(remembered, "dim") if remembered else []),
                ]
            case _:
                assert_never(event)

    def detail(self, asked: events.ApprovalAsked, most: int | None = None) -> list[Piece]:
        """More of what is asked for: the beginning of it, or all."""
        lines = (
            [f"  {line}" for line in safe_text.safe_lines(asked.detail.rstrip("\n"))] if asked.detail.strip() else []
        )
        if most is None or len(lines) <= most:
            return self.lines("\n".join(lines)) if lines else []
        more = f"  {self.marks.more} {safe_text.count(len(lines) - most, 'more line')} (d shows all)"
        return [*self.lines("\n".join(lines[:most])), *self.lines(more, "dim")]

    def one_line(self, words: str, style: str) -> list[Piece]:
        """Text on one line, as much of it as fits."""
        return self.lines(
            safe_text.clipped(safe_text.safe(words).rstrip(), max(self.width() - 1, 1), self.marks.more), style
        )

    def left_open(self) -> list[Piece]:
        """End what is being written, and the lines of tools that never came to an end."""
        return [*self.break_off(), *self._tools.end()] if self._tools else []

    def _ended(self, result: events.TurnResult) -> list[Piece]:
        said, self._said = self._said, False
        sentence = wording.turn_finished(result)
        pieces = self.break_off()
        if result.completed and not said:
            # The reply came before this page listened.
            pieces += [*self._speak(result.final_response), *self.break_off()]
        if sentence is None or (said and sentence.text == wording.EMPTY_REPLY):
            return pieces
        return [*pieces, *self._sentence(sentence)]
