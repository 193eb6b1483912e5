"""Tools at work: a line each, which changes until they are done; what else is said meanwhile stands above them."""

from __future__ import annotations

from holdfast import events
from holdfast.terminal import event_text, markdown
from tests.support.agents import turn_result


class Played:
    """A page with a clock that is set by hand."""

    def __init__(self, columns: int = 60) -> None:
        self.now, self._written = 0.0, ""
        tools = event_text.ToolActivity(lambda: columns, clock=lambda: self.now)
        self.page = event_text.EventRenderer(None, lambda: columns, markdown.MarkdownStream(lambda: columns), tools)

    def draw(self, *shown: events.AnyEvent) -> str:
        """What was written so far, and what is open below it."""
        for event in shown:
            self._written += _text(self.page.draw(event))
        return (self._written + _text(self.page.open)).rstrip("\n")


def _text(pieces: list[event_text.StyledText]) -> str:
    return "".join(piece.text.replace("\x1b[1m", "").replace("\x1b[0m", "") for piece in pieces)


def test_a_tool_is_one_line_from_its_beginning_to_its_end() -> None:
    on = Played()
    assert on.draw(events.ToolStarted("1", "ls", '{"path":"x"}')) == '→ ls {"path":"x"}'
    assert on.draw(events.ToolProgress("1", "a\nb\n")) == '→ ls {"path":"x"}  b'
    on.now = 1.25
    assert on.draw(events.ToolFinished("1", "ls", True, "\none\ntwo")) == '✓ ls {"path":"x"}  one · 1.2 s'


def test_the_time_a_person_thinks_is_not_the_tools() -> None:
    on = Played()
    on.draw(events.ToolStarted("1", "a", "{}"), events.ToolStarted("2", "b", "{}"))
    on.draw(events.ApprovalAsked("q", "1", "a", "Do it."))
    on.now = 60.0
    on.draw(events.ApprovalSettled("q", True, "you"))
    on.now = 62.0
    ended = on.draw(events.ToolFinished("1", "a", True, "A"), events.ToolFinished("2", "b", True, "B"))
    assert ended.endswith("✓ a  A · 2.0 s\n✓ b  B · 62.0 s")


def test_tools_side_by_side_end_in_any_order() -> None:
    on = Played()
    on.draw(events.ToolStarted("1", "a", "{}"), events.ToolStarted("2", "b", "{}"))
    assert on.draw(events.ToolFinished("2", "b", True, "B")) == "✓ b  B · 0.0 s\n→ a"
    assert on.draw(events.ToolFinished("1", "a", False, "no")) == "✓ b  B · 0.0 s\n✗ a  no · 0.0 s"


def test_what_is_said_meanwhile_stands_above_them() -> None:
    on = Played()
    on.draw(events.TextDelta("Let me **see**"), events.ToolStarted("1", "a", "{}"))
    assert on.draw(events.Notice("Careful.")) == "Let me see\nCareful.\n→ a"
    ended = on.draw(events.ToolProgress("1", "half"), events.ToolFinished("1", "a", True, "A"), events.TextDelta("So."))
    assert ended == "Let me see\nCareful.\n✓ a  A · 0.0 s\nSo."


def test_one_that_never_ended_is_told_when_the_turn_is_over() -> None:
    on = Played()
    on.draw(events.ToolStarted("1", "a", "{}"))
    stopped = turn_result(completed=False, interrupted=True)
    assert on.draw(events.TurnFinished(stopped)) == "→ a\nInterrupted. The conversation up to here is saved."
    assert on.page.open == []


def test_a_failure_is_yellow_and_the_rest_is_not() -> None:
    tools = event_text.ToolActivity(lambda: 60)
    drawn = tools.draw(events.ToolFinished("1", "a", False, "no"))
    assert [piece.style for piece in drawn if piece.text.strip()] == ["yellow"]


def test_a_line_is_never_wider_than_the_terminal() -> None:
    on = Played(columns=20)
    on.draw(events.ToolStarted("1", "name", "x" * 50), events.ToolProgress("1", "y" * 50))
    assert len(on.draw()) < 20
    assert len(on.draw(events.ToolFinished("1", "name", True, "z" * 50))) < 20
