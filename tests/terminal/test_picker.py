"""The list to pick a conversation from: what is drawn fits and cannot act, keys move, typing finds, leaving leaves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.data_structures import Size
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from holdfast import safe_text, types
from holdfast.chat import picker
from holdfast.terminal import event_text

UP, DOWN, PAGE_UP, PAGE_DOWN = "\x1b[A", "\x1b[B", "\x1b[5~", "\x1b[6~"
ENTER, ESCAPE, CTRL_C, CTRL_D = "\r", "\x1b", "\x03", "\x04"


def head(name: str, title: str | None = None, messages: int = 2, folder: str | None = None) -> types.Session:
    given: dict[str, Any] = dict.fromkeys(types.Session.__struct_fields__)
    known = {"id": name, "conversation_id": name, "title": title, "last_seq": messages, "active_at": 1.8e9}
    return types.Session(**{**given, **known, "folder": folder})


HEADS = tuple(head(f"c{number:02}", f"Trip {number}") for number in range(40))


def lines(state: picker.PickerState, columns: int = 79, rows: int = 24, begins: str = "") -> list[str]:
    found = picker.draw_rows(state, columns, rows, lambda _: begins, event_text.Marks())
    return ["".join(words for _, words in line) for line in found]


# --- what is drawn -------------------------------------------------------------------------------------


def test_a_line_has_title_first_words_number_and_time() -> None:
    (line, foot) = lines(picker.PickerState((head("c1", "Porto", 1234),)), begins="We leave at nine.")
    assert line.startswith("> Porto  We leave at nine.   ")
    assert line.endswith(f"  1,234  {safe_text.date(1.8e9)}")
    assert safe_text.cells(line) == 79
    assert foot == f"1 of 1 · {picker.KEYS}"


def test_wide_line_shows_the_end_of_the_folder() -> None:
    state = picker.PickerState((head("c1", "Porto", folder="/home/ada/projects/train-times"),))
    assert f"  …rojects/train-times  2  {safe_text.date(1.8e9)}" in lines(state)[0]
    assert "train-times" not in lines(state, columns=70)[0]


def test_without_a_title_the_first_words_stand_for_it_or_the_id() -> None:
    assert lines(picker.PickerState((head("c1"),)), begins="We leave.")[0].startswith("> We leave.  ")
    assert lines(picker.PickerState((head("c1"),)))[0].startswith("> c1  ")


@pytest.mark.parametrize(("at", "first", "last"), [(0, 0, 14), (7, 0, 14), (20, 13, 27), (39, 25, 39)])
def test_the_part_around_what_would_be_picked_is_shown(at: int, first: int, last: int) -> None:
    found = lines(picker.PickerState(HEADS, at))
    assert len(found) == picker.MAX_ROWS + 1
    assert f"Trip {first} " in found[0]
    assert f"Trip {last} " in found[-2]
    assert next(line for line in found if line.startswith(">")).startswith(f"> Trip {at} ")


def test_a_low_terminal_shows_what_it_can() -> None:
    assert len(lines(picker.PickerState(HEADS, 3), rows=8)) == 8 - picker.OTHER_ROWS + 1
    assert len(lines(picker.PickerState(HEADS, 3), rows=1)) == 2
    assert lines(picker.PickerState(())) == [picker.NO_MATCH]


@given(st.text(), st.text(), st.text(), st.integers(1, 130), st.integers(1, 10**7))
def test_for_any_title_and_words_it_fits_and_cannot_act(
    title: str, begins: str, folder: str, columns: int, messages: int
) -> None:
    for line in lines(picker.PickerState((head("c1", title, messages, folder), head("c2"))), columns, begins=begins):
        assert safe_text.cells(line) <= columns
        assert line.replace("\u200c", "").replace("\u200d", "").isprintable()


# --- what would be picked ------------------------------------------------------------------------------


def test_moving_stays_within_the_list() -> None:
    state = picker.PickerState(HEADS)
    assert state.move(-1).index == 0
    assert state.move(5).move(-2).index == 3
    assert state.move(1000).index == 39
    assert picker.PickerState(()).move(1).selected is None


def test_what_is_found_later_joins_behind_and_moves_nothing() -> None:
    state = picker.PickerState(HEADS[:3], 2).extend([HEADS[1], HEADS[7]])
    assert [each.conversation_id for each in state.heads] == ["c00", "c01", "c02", "c07"]
    assert state.selected == HEADS[2]


# --- keys ----------------------------------------------------------------------------------------------


class Shelf:
    """Finds by title, and by what was said where the test says so."""

    def __init__(self, **told: types.Session) -> None:
        self.told, self.asked, self.let = told, list[str](), threading.Event()
        self.let.set()

    def find_by_name(self, words: str) -> Sequence[types.Session]:
        return [each for each in HEADS if words in (each.title or "")]

    def find_by_message(self, words: str) -> Sequence[types.Session]:
        self.asked.append(words)
        assert self.let.wait(60)
        return [self.told[words]] if words in self.told else []

    def first_message(self, head: types.Session) -> str:
        return f"about {head.title}"


class Screen(DummyOutput):
    def get_size(self) -> Size:
        return Size(rows=12, columns=40)


def picked(*keys: str, shelf: Shelf | None = None, then: Callable[[picker.Picker], str] | None = None) -> str | None:
    with create_pipe_input() as keyboard:
        made = picker.Picker(shelf or Shelf(), event_text.Marks(), colour=False, keyboard=keyboard, screen=Screen())
        for each in keys:
            keyboard.send_text(each)
        if then is not None:
            made._app.after_render += lambda _: keyboard.send_text(then(made))
        found = made.run()
    return found.conversation_id if found else None


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ([ENTER], "c00"),
        ([DOWN, DOWN, UP, ENTER], "c01"),
        ([PAGE_DOWN, ENTER], "c09"),
        ([PAGE_DOWN, PAGE_DOWN, PAGE_UP, ENTER], "c09"),
        (["Trip 3", DOWN, ENTER], "c30"),
        (["Trip 39", ENTER], "c39"),
        (["Trip 3", "\x7f", "7", ENTER], "c07"),
        ([DOWN, "Trip 5", ENTER], "c05"),
        (["nobody", ENTER, CTRL_C], None),
        ([ESCAPE], None),
        ([CTRL_C], None),
        ([CTRL_D], None),
        (["Trip", ESCAPE], None),
    ],
)
def test_keys_do_what_people_expect(keys: list[str], found: str | None) -> None:
    assert picked(*keys) == found


def test_what_was_said_can_be_picked_once_it_is_found() -> None:
    def when_there(made: picker.Picker) -> str:
        return ENTER if made._state.heads else ""

    assert picked("harbour", shelf=Shelf(harbour=HEADS[17]), then=when_there) == "c17"


def test_a_slow_search_is_not_joined_by_others_and_finds_nothing_for_what_is_typed_later() -> None:
    shelf, typed = Shelf(harbour=HEADS[17], quay=HEADS[21]), list[str]()
    shelf.let.clear()

    def go_on(made: picker.Picker) -> str:
        if shelf.asked == ["harbour"] and not typed:
            typed.append("quay")
            return "\x15quay"  # Ctrl-U takes back what was typed.
        if made._filter.text == "quay":
            shelf.let.set()
        return ENTER if made._state.heads and made._filter.text == "quay" else ""

    assert picked("harbour", shelf=shelf, then=go_on) == "c21"
    assert shelf.asked == ["harbour", "quay"]


def test_a_search_that_is_over_makes_way_for_the_next() -> None:
    shelf = Shelf(harbour=HEADS[17], quay=HEADS[21])

    def go_on(made: picker.Picker) -> str:
        if not made._state.heads or made._filter.text not in ("harbour", "quay"):
            return ""
        if made._filter.text == "quay":
            return ENTER
        # Who waits in vain for what is typed next would wait for ever.
        asyncio.get_running_loop().call_later(30, made._app.exit)
        return "\x15quay"

    assert picked("harbour", shelf=shelf, then=go_on) == "c21"
