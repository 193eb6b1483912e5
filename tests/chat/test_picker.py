"""The picker of conversations: rows fit and are printable, keys move the selection, typing filters."""

from __future__ import annotations

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
ENTER, ESCAPE, CTRL_C, CTRL_D, CTRL_U = "\r", "\x1b", "\x03", "\x04", "\x15"


def head(name: str, title: str | None = None, messages: int = 2, folder: str | None = None) -> types.Session:
    given: dict[str, Any] = dict.fromkeys(types.Session.__struct_fields__)
    known = {"id": name, "conversation_id": name, "title": title, "last_seq": messages, "active_at": 1.8e9}
    return types.Session(**{**given, **known, "folder": folder})


HEADS = tuple(head(f"c{number:02}", f"Trip {number}") for number in range(40))


def draw(state: picker.PickerState, columns: int = 79, rows: int = 24, begins: str = "") -> list[str]:
    found = picker.draw_rows(state, columns, rows, lambda _: begins, event_text.Marks())
    return ["".join(words for _, words in line) for line in found]


@given(st.text(), st.text(), st.text(), st.integers(1, 130), st.integers(1, 10**7))
def test_any_row_fits_and_is_printable(title: str, begins: str, folder: str, columns: int, messages: int) -> None:
    for line in draw(picker.PickerState((head("c1", title, messages, folder), head("c2"))), columns, begins=begins):
        assert safe_text.cells(line) <= columns
        assert line.replace("\u200c", "").replace("\u200d", "").isprintable()


class Source:
    """Conversations by title, and `messages` by the words they contain; searches wait for `proceed`."""

    def __init__(self, **messages: types.Session) -> None:
        self.messages, self.searches, self.proceed = messages, list[str](), threading.Event()
        self.proceed.set()

    def find_by_name(self, words: str) -> Sequence[types.Session]:
        return [each for each in HEADS if words in (each.title or "")]

    def find_by_message(self, words: str) -> Sequence[types.Session]:
        self.searches.append(words)
        assert self.proceed.wait(60)
        return [self.messages[words]] if words in self.messages else []

    def first_message(self, head: types.Session) -> str:
        return f"about {head.title}"


class Screen(DummyOutput):
    def get_size(self) -> Size:
        return Size(rows=12, columns=40)


def pick(*keys: str, source: Source | None = None, then: Callable[[picker.Picker], str] | None = None) -> str | None:
    """Return the conversation that these keys pick; `then` gives further keys after each frame."""
    with create_pipe_input() as keyboard:
        made = picker.Picker(source or Source(), event_text.Marks(), colour=False, keyboard=keyboard, screen=Screen())
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
        ([PAGE_DOWN, PAGE_DOWN, PAGE_UP, ENTER], "c09"),
        (["Trip 3", DOWN, ENTER], "c30"),
        ([DOWN, "Trip 3", "\x7f", "7", ENTER], "c07"),
        (["nobody", ENTER, CTRL_C], None),
        ([CTRL_D], None),
        (["Trip", ESCAPE], None),
    ],
)
def test_keys_move_filter_pick_and_leave(keys: list[str], found: str | None) -> None:
    assert pick(*keys) == found


def test_search_in_messages_runs_one_at_a_time_and_finds_the_last_words() -> None:
    source = Source(harbour=HEADS[17], quay=HEADS[21])
    source.proceed.clear()

    def press(made: picker.Picker) -> str:
        if made._filter.text == "quay":
            source.proceed.set()
            return ENTER if made._state.heads else ""
        return f"{CTRL_U}quay" if source.searches else ""

    assert pick("harbour", source=source, then=press) == "c21"
    assert (source.searches[0], source.searches[-1]) == ("harbour", "quay")
