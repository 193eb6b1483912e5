"""Tools at work: a line each, written once more when they are done; what else is written stays where it is."""

from __future__ import annotations

from holdfast import events
from holdfast.terminal import activity, live, reply, show
from tests.terminal.screen import Screen


class Played:
    """A page on a small screen, with a clock that is set by hand."""

    def __init__(self, columns: int = 60, rows: int = 20) -> None:
        self.screen, self.now = Screen(columns, rows), 0.0
        tools = activity.Activity(lambda: self.screen.size, clock=lambda: self.now)
        self.page = show.Page(None, lambda: self.screen.size.columns, reply.Reply(lambda: self.screen.size), tools)

    def draw(self, *shown: events.AnyEvent) -> str:
        for event in shown:
            self.screen.write("".join(piece.text for piece in self.page.draw(event)))
        return self.screen.shown


def test_a_tool_is_one_line_from_its_beginning_to_its_end() -> None:
    on = Played()
    assert on.draw(events.ToolStarted("1", "ls", '{"path":"x"}')) == '→ ls {"path":"x"}'
    assert on.draw(events.ToolProgress("1", "a\nb\n")) == '→ ls {"path":"x"}  b'
    on.now = 1.25
    assert on.draw(events.ToolFinished("1", "ls", True, "\none\ntwo")) == '✓ ls {"path":"x"}  one · 1.2 s'


def test_tools_side_by_side_end_in_any_order() -> None:
    on = Played()
    on.draw(events.ToolStarted("1", "a", "{}"), events.ToolStarted("2", "b", "{}"))
    assert on.draw(events.ToolFinished("2", "b", True, "B")) == "✓ b  B · 0.0 s\n→ a"
    assert on.draw(events.ToolFinished("1", "a", False, "no")) == "✓ b  B · 0.0 s\n✗ a  no · 0.0 s"


def test_what_is_said_meanwhile_is_not_taken_back() -> None:
    on = Played()
    on.draw(events.TextDelta("Let me **see**"), events.ToolStarted("1", "a", "{}"), events.Notice("Careful."))
    ended = on.draw(events.ToolProgress("1", "half"), events.ToolFinished("1", "a", True, "A"), events.TextDelta("So."))
    assert ended == "Let me see\n→ a\nCareful.\n✓ a  A · 0.0 s\nSo."


def test_a_failure_is_yellow_and_the_rest_is_not() -> None:
    tools = activity.Activity(lambda: live.Size(60, 20))
    drawn = tools.draw(events.ToolFinished("1", "a", False, "no"))
    assert [piece.style for piece in drawn if piece.text.strip()] == ["yellow"]


def test_after_a_resize_nothing_above_is_touched() -> None:
    on = Played()
    on.draw(events.Notice("Before."), events.ToolStarted("1", "a", "{}"))
    on.screen.size = live.Size(30, 20)
    assert on.draw(events.ToolFinished("1", "a", True, "A")) == "Before.\n→ a\n✓ a  A · 0.0 s"


def test_a_line_is_never_wider_than_the_terminal() -> None:
    on = Played(columns=20)
    on.draw(events.ToolStarted("1", "name", "x" * 50), events.ToolProgress("1", "y" * 50))
    assert on.draw(events.ToolFinished("1", "name", True, "z" * 50)).count("\n") == 0
