"""Events as text of a terminal: replies flow, other events have their own lines, and nothing acts on the terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import events
from holdfast.terminal import event_text, markdown
from tests.support.agents import turn_result


def draw(*shown: events.AnyEvent, width: int = 80) -> str:
    page = event_text.EventRenderer(None, lambda: width)
    return "".join(piece.text for event in shown for piece in page.draw(event))


REPLY = [events.TextDelta("Hel"), events.TextDelta("lo.\n"), events.TextDelta("  More"), events.TextDelta(" of it")]
STARTED, EMPTY = events.TurnStarted("c", "s", "Hello", 3), events.TurnFinished(turn_result())
CUT_OFF = events.TurnFinished(turn_result(final_response="So mu", partial=True))
PROCESS = events.TurnStarted("c", "s", "process 1 ended\n> \x1b[2Joutput", 3, "process")


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (REPLY, "Hello.\n  More of it"),
        ([*REPLY, events.TurnFinished(turn_result(final_response="Hello."))], "Hello.\n  More of it\n"),
        ([events.TurnFinished(turn_result(final_response="Said before."))], "Said before.\n"),
        ([events.TextDelta("a"), events.TextDelta("\n\nb")], "a\n\nb"),
        ([events.ReasoningDelta("Hm."), events.TextDelta("So.")], "Hm.\nSo."),
        ([events.TextDelta("Wait."), events.Notice("Careful.")], "Wait.\nCareful.\n"),
        ([events.ToolStarted("c", "ls", '{"path":"x"}')], '→ ls {"path":"x"}\n'),
        ([events.ToolFinished("c", "ls", True, "\none\ntwo")], "✓ ls  one\n"),
        ([events.ToolFinished("c", "ls", False, "Error: no")], "✗ ls  Error: no\n"),
        ([events.Answer("one\ntwo"), events.Moved("x"), events.Titled("Trip")], "one\ntwo\nTitle: Trip\n"),
        ([PROCESS, STARTED], "· process 1 ended\n"),
        ([events.TextDelta("So mu"), CUT_OFF], "So mu\nThe reply was cut off at the model's output limit.\n"),
        ([events.TextDelta("a"), EMPTY, STARTED, EMPTY], "a\nThe model returned an empty reply.\n"),
    ],
)
def test_events_are_drawn(shown: list[events.AnyEvent], text: str) -> None:
    assert draw(*shown) == text


EVERYWHERE = st.text(st.sampled_from("a \n\t\r\x1b\x07\x9b\u202e\u200b\x00\x7f[2J") | st.characters())


@given(EVERYWHERE, st.integers(1, 200))
def test_any_event_is_printable_and_a_tool_one_line(words: str, width: int) -> None:
    for event in (events.ToolStarted("c", words, words), events.ToolFinished("c", words, True, words)):
        drawn = draw(event, width=width)
        assert (drawn.count("\n"), drawn[-1]) == (1, "\n")
    shown: list[events.AnyEvent] = [
        events.TextDelta(words),
        events.ReasoningDelta(words),
        events.ToolStarted("c", words, words),
        events.ToolFinished("c", words, False, words),
        events.Notice(words),
        events.Titled(words),
        events.Answer(words),
        events.TurnQueued(words),
        events.TurnFinished(turn_result(completed=False, failed=True, error=words)),
    ]
    assert draw(*shown).translate({ord(c): None for c in "\n\t\u200c\u200d"}).isprintable()


@given(st.lists(st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "Zs")) | st.just("\n"))))
def test_any_plain_text_is_drawn_unchanged_however_it_is_split(pieces: list[str]) -> None:
    # Every other space becomes an ordinary one.
    text = "".join(" " if c.isspace() and c != "\n" else c for c in "".join(pieces))
    assert draw(*map(events.TextDelta, pieces)) == text.lstrip("\n")


def test_plain_marks_are_ascii() -> None:
    page = event_text.EventRenderer(event_text.PLAIN, lambda: 80)
    shown = [events.ToolStarted("c", "ls", "x" * 200), events.ToolFinished("c", "ls", False, "no")]
    assert all(piece.text.isascii() for event in shown for piece in page.draw(event))


class LivePage:
    """A page with open lines and a clock that a test sets."""

    def __init__(self, columns: int = 60) -> None:
        self.now, self._written = 0.0, ""
        tools = event_text.ToolActivity(lambda: columns, clock=lambda: self.now)
        self.page = event_text.EventRenderer(None, lambda: columns, markdown.MarkdownStream(lambda: columns), tools)

    def draw(self, *shown: events.AnyEvent) -> str:
        """Return the text written so far, with the open lines below it."""
        for event in shown:
            self._written += _unstyled(self.page.draw(event))
        return (self._written + _unstyled(self.page.open)).rstrip("\n")


def _unstyled(pieces: list[event_text.StyledText]) -> str:
    text = "".join(piece.text for piece in pieces)
    return text.replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[0m", "")


def test_tool_is_one_line_from_start_to_end() -> None:
    page = LivePage()
    assert page.draw(events.ToolStarted("1", "ls", '{"path":"x"}')) == '→ ls {"path":"x"}'
    assert page.draw(events.ToolProgress("1", "a\nb\n")) == '→ ls {"path":"x"}  b'
    page.now = 1.25
    assert page.draw(events.ToolFinished("1", "ls", True, "\none\ntwo")) == '✓ ls {"path":"x"}  one · 1.2 s'


def test_parallel_tools_end_in_any_order_and_the_time_of_an_approval_does_not_count() -> None:
    page = LivePage()
    page.draw(events.ToolStarted("1", "a", "{}"), events.ToolStarted("2", "b", "{}"))
    page.draw(events.ApprovalAsked("q", "1", "a", "Do it."))
    page.now = 60.0
    page.draw(events.ApprovalSettled("q", True, "you"))
    page.now = 62.0
    assert page.draw(events.ToolFinished("2", "b", True, "B")).endswith("✓ b  B · 62.0 s\n→ a")
    assert page.draw(events.ToolFinished("1", "a", False, "no")).endswith("✓ b  B · 62.0 s\n✗ a  no · 2.0 s")


def test_other_text_stands_above_running_tools() -> None:
    page = LivePage()
    page.draw(events.TextDelta("Let me **see**"), events.ToolStarted("1", "a", "{}"))
    assert page.draw(events.Notice("Careful.")) == "Let me see\nCareful.\n→ a"
    page.draw(events.ToolProgress("1", "half"), events.ToolFinished("1", "a", True, "A"))
    assert page.draw(events.TextDelta("So.")) == "Let me see\nCareful.\n✓ a  A · 0.0 s\nSo."


def test_tool_without_an_end_is_written_when_the_turn_ends() -> None:
    page = LivePage()
    page.draw(events.ToolStarted("1", "a", "{}"))
    stopped = turn_result(completed=False, interrupted=True)
    assert page.draw(events.TurnFinished(stopped)) == "→ a\nInterrupted. The conversation up to here is saved."
    assert page.page.open == []


def test_tool_line_is_narrower_than_the_terminal() -> None:
    page = LivePage(columns=20)
    page.draw(events.ToolStarted("1", "name", "x" * 50), events.ToolProgress("1", "y" * 50))
    assert len(page.draw()) < 20
    assert len(page.draw(events.ToolFinished("1", "name", True, "z" * 50))) < 20


def test_notices_do_not_break_an_open_reply() -> None:
    page = LivePage(columns=40)
    page.draw(events.TextDelta("```\none\ntw"), events.Answer("Nothing waits."), events.Notice("Noted."))
    assert page.draw(events.TextDelta("o  *x*\n```\n")) == "```\none\nNothing waits.\nNoted.\ntwo  *x*\n```"
