"""Events as they look: text flows as it was said, the rest stands on lines of its own, nothing moves the cursor."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import events
from holdfast.terminal import event_text, markdown
from tests.support.agents import turn_result


def page(width: int = 80, marks: event_text.Marks | None = None) -> event_text.EventRenderer:
    return event_text.EventRenderer(marks, lambda: width)


def drawn(*shown: events.AnyEvent, width: int = 80) -> str:
    on = page(width)
    return "".join(piece.text for event in shown for piece in on.draw(event))


def styles(event: events.AnyEvent) -> set[str]:
    return {piece.style for piece in page().draw(event) if piece.text.strip()}


def test_a_notice_is_told_by_its_first_line_and_a_persons_words_are_not_repeated() -> None:
    assert (
        drawn(events.TurnStarted("c", "s", "process 1 ended\n> \x1b[2Joutput", 3, "process")) == "· process 1 ended\n"
    )
    assert drawn(events.TurnStarted("c", "s", "Hello", 3)) == ""


SAID = [events.TextDelta("Hel"), events.TextDelta("lo.\n"), events.TextDelta("  More"), events.TextDelta(" of it")]


@pytest.mark.parametrize(
    ("shown", "looks"),
    [
        (SAID, "Hello.\n  More of it"),
        ([*SAID, events.TurnFinished(turn_result(final_response="Hello."))], "Hello.\n  More of it\n"),
        ([events.TextDelta("\n\nHello")], "Hello"),
        ([events.TextDelta("a"), events.TextDelta("\n\nb")], "a\n\nb"),
        ([events.ReasoningDelta("Hm."), events.TextDelta("So.")], "Hm.\nSo."),
        ([events.TextDelta("Wait."), events.Notice("Careful.")], "Wait.\nCareful.\n"),
        ([events.ToolStarted("c", "ls", '{"path":"x"}')], '→ ls {"path":"x"}\n'),
        ([events.ToolStarted("c", "ls", "{}")], "→ ls\n"),
        ([events.ToolFinished("c", "ls", True, "\none\ntwo")], "✓ ls  one\n"),
        ([events.ToolFinished("c", "ls", False, "Error: no")], "✗ ls  Error: no\n"),
        ([events.Answer("one\ntwo")], "one\ntwo\n"),
        ([events.Titled("Trip")], "Title: Trip\n"),
        ([events.TurnQueued("me")], "Waiting: a turn of this conversation is running elsewhere.\n"),
        ([events.Moved("x"), events.Quit(), events.MessageStored(1, "u", "user")], ""),
    ],
)
def test_events_look_like_this(shown: list[events.AnyEvent], looks: str) -> None:
    assert drawn(*shown) == looks


@pytest.mark.parametrize(
    ("ended", "looks", "style"),
    [
        (
            turn_result(completed=False, interrupted=True),
            "Interrupted. The conversation up to here is saved.\n",
            "yellow",
        ),
        (
            turn_result(completed=False, interrupted=True, messages=()),
            "Interrupted. The message was not sent.\n",
            "yellow",
        ),
        (turn_result(completed=False, failed=True, error="The key was refused."), "The key was refused.\n", "red"),
        (turn_result(completed=False, error="I stopped after 50 steps."), "I stopped after 50 steps.\n", "yellow"),
        (turn_result(), "The model returned an empty reply.\n", "dim"),
        (turn_result(final_response="Said before."), "Said before.\n", ""),
    ],
)
def test_however_a_turn_ends_it_is_said(ended: events.TurnResult, looks: str, style: str) -> None:
    assert drawn(events.TurnFinished(ended)) == looks
    assert styles(events.TurnFinished(ended)) == {style}


def test_an_answer_that_ran_out_of_room_says_so() -> None:
    ended = events.TurnFinished(turn_result(final_response="So mu", partial=True))
    assert drawn(events.TextDelta("So mu"), ended) == "So mu\nThe reply was cut off at the model's output limit.\n"


def test_what_one_turn_said_does_not_count_for_the_next() -> None:
    started = events.TurnStarted("c", "s", "hi", 3)
    ended = events.TurnFinished(turn_result())
    assert drawn(events.TextDelta("a"), ended, started, ended) == "a\nThe model returned an empty reply.\n"


@pytest.mark.parametrize(
    ("event", "style"),
    [
        (events.TextDelta("x"), ""),
        (events.ReasoningDelta("x"), "dim"),
        (events.Notice("x"), "dim"),
        (events.Notice("x", "warning"), "yellow"),
        (events.Notice("x", "error"), "red"),
        (events.ToolStarted("c", "ls", ""), "dim"),
        (events.ToolFinished("c", "ls", False, ""), "yellow"),
    ],
)
def test_a_glance_tells_what_kind_of_line_it_is(event: events.AnyEvent, style: str) -> None:
    assert styles(event) == {style}


@given(st.text(), st.integers(1, 200))
def test_a_tool_never_takes_more_than_a_line(words: str, width: int) -> None:
    for event in (events.ToolStarted("c", words, words), events.ToolFinished("c", words, True, words)):
        looks = drawn(event, width=width)
        assert looks.count("\n") == 1
        assert looks.endswith("\n")


EVERYWHERE = st.text(st.sampled_from("a \n\t\r\x1b\x07\x9b\u202e\u200b\x00\x7f[2J") | st.characters())


@given(EVERYWHERE)
def test_nothing_that_is_shown_can_act_on_the_terminal(words: str) -> None:
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
    left = drawn(*shown).translate({ord(c): None for c in "\n\t\u200c\u200d"})
    assert left.isprintable()


@given(st.lists(st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "Zs")) | st.just("\n"))))
def test_plain_text_is_shown_to_the_letter_however_it_is_split(pieces: list[str]) -> None:
    # A space that is no space to a terminal becomes one; all else stays.
    said = "".join(" " if c.isspace() and c != "\n" else c for c in "".join(pieces))
    assert drawn(*map(events.TextDelta, pieces)) == said.lstrip("\n")


def test_a_terminal_without_such_marks_gets_letters() -> None:
    on = page(marks=event_text.PLAIN)
    shown = [events.ToolStarted("c", "ls", "x" * 200), events.ToolFinished("c", "ls", False, "no")]
    assert all(piece.text.isascii() for event in shown for piece in on.draw(event))


def drawn_page() -> event_text.EventRenderer:
    return event_text.EventRenderer(
        None, lambda: 40, markdown.MarkdownStream(lambda: 40), event_text.ToolActivity(lambda: 40)
    )


def test_what_is_said_beside_a_drawn_answer_does_not_break_it_in_two() -> None:
    on = drawn_page()
    shown = [events.TextDelta("```\none\ntw"), events.Answer("Nothing waits."), events.Notice("Told.")]
    out = [piece.text for event in [*shown, events.TextDelta("o  *x*\n```\n")] for piece in on.draw(event)]
    assert "".join(out) == "```\none\nNothing waits.\nTold.\ntwo  *x*\n```\n".replace("```", "\x1b[2m```\x1b[0m")


@pytest.mark.parametrize(
    "event",
    [
        events.Titled("Trip"),
        events.ToolStarted("c", "ls", "{}"),
        events.ReasoningDelta("Hm."),
        events.TurnFinished(turn_result(final_response="Wait.")),
        events.TurnStarted("c", "s", "process 1 ended", 3, "process"),
        events.ApprovalAsked("q", "c", "shell", "Run it."),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_ends_an_answer_comes_after_it(event: events.AnyEvent) -> None:
    on = drawn_page()
    on.draw(events.TextDelta("Wait."))
    assert on.open == [event_text.StyledText("Wait.\n")]
    assert on.draw(event)[0].text == "Wait.\n"
    assert on.open[:1] != [event_text.StyledText("Wait.\n")]
