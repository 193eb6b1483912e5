"""The prompt at the end of the screen: drawn in one write, printed above of, and found again after a resize."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prompt_toolkit import application
from prompt_toolkit.data_structures import Point
from prompt_toolkit.layout.screen import Char
from prompt_toolkit.layout.screen import Screen as Drawn

from holdfast.chat import input_line, renderer
from tests.support import agents, slash_commands
from tests.support.chat import ENTER, sitting
from tests.support.screen import Screen
from tests.terminal.test_chat import sat

PARAGRAPH = "one two three four five six seven eight nine ten " * 4


async def test_a_stream_of_small_pieces_is_drawn_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame that does not end shows it: nothing is drawn but with the next one."""
    monkeypatch.setattr(input_line, "FRAME_SECONDS", 1000.0)

    async with sat() as sits:
        sits.type(f"go{ENTER}")
        await sits.until(lambda: sits.model.requests)
        await asyncio.sleep(0)
        app = sits.prompt._session.app
        drawn = app.render_counter
        sits.model.say(*(f"w{number} \n" for number in range(2000)), None)
        await sits.until(lambda: not sits.home.door.running("talk"))
        await sits.chat.session.show_changes()
        assert app.render_counter - drawn <= 2
        sits.type("x")  # A key is seen at once, and all that came with it.
        await sits.sees("w1999", "> x")
        assert app.render_counter - drawn <= 5


async def test_what_is_printed_and_the_prompt_below_it_are_one_write() -> None:
    async with sat() as sits:
        written: list[str] = []
        write = sits.screen.write

        def noted(words: str) -> int:
            written.append(words)
            return write(words)

        sits.screen.write = noted  # type: ignore[method-assign]
        sits.type(f"go{ENTER}")
        sits.model.say("First line.\n\nSecond")
        await sits.sees("First line.\n\nSecond")
        (printed,) = [each for each in written if "First line." in each and "\x1b[J" in each and "Second" in each]
        # The prompt is taken away before, and stands below again: nobody sees the moment between.
        assert printed.index("\x1b[J") < printed.index("First line.") < printed.rindex(">")


@pytest.mark.parametrize("columns", [30, 47, 100])
async def test_after_a_resize_what_is_open_is_there_once(columns: int) -> None:
    async with sat() as sits:
        sits.type(f"go{ENTER}")
        sits.model.say(f"Before.\n\n{PARAGRAPH}")
        await sits.sees("ten\n\n> ")
        sits.screen.resize(columns, 20)
        sits.prompt._session.app._on_resize()
        sits.model.say("finis.", None)
        await sits.sees("finis.")
        shown = (await sits.idles()).replace("\n", " ").replace("  ", " ")
        assert "".join(shown.split()).count("onetwothree") == 4
        assert shown.count("Before.") == 1
        assert shown.count("A new conversation") == 1


async def test_a_frame_that_comes_before_the_news_of_a_resize_is_drawn_in_the_new_size() -> None:
    async with sat() as sits:
        sits.type(f"go{ENTER}")
        sits.model.say(PARAGRAPH)
        await sits.sees("ten\n\n> ")
        sits.screen.resize(25, 20)
        sits.model.say("more")
        await sits.sees("more")
        assert "".join(sits.screen.shown.split()).count("onetwothree") == 4
        assert sits.screen.shown.count("> go") == 1


async def test_of_an_open_block_taller_than_the_terminal_the_end_is_seen_and_all_of_it_once_it_is_complete() -> None:
    async with sat(rows=12) as sits:
        sits.type(f"go{ENTER}")
        sits.model.say("| n |\n|---|\n" + "".join(f"| r{number}r |\n" for number in range(50)))
        shown = await sits.sees("r49r")
        assert "r10r" not in shown
        assert sits.line.startswith("> ")
        sits.model.say(None)
        await sits.idles()
        assert [sits.screen.shown.count(f"r{number}r") for number in range(50)] == [1] * 50


async def test_rows_that_are_not_needed_any_more_go() -> None:
    async with sat() as sits:
        await sits.sees("scripted/model")
        sits.type("/st")
        await sits.sees("/stop")
        sits.type("\x03")
        await sits.until(lambda: "/stop" not in sits.screen.shown)
        assert sits.line.split("\n")[1].startswith("scripted/model")


def test_a_row_that_a_narrower_terminal_broke_counts_also_where_the_cursor_is_in_it() -> None:
    drawn = Drawn()
    for column in range(25):
        drawn.data_buffer[0][column] = Char("x")
    assert renderer.rows_above(drawn, Point(3, 1), 10) == 3
    assert renderer.rows_above(drawn, Point(23, 1), 10) == 5
    assert renderer.rows_above(drawn, Point(9, 0), 10) == 0


async def test_one_empty_row_stands_over_the_prompt_whatever_came_before() -> None:
    async with sat() as sits:
        assert "first message.\n\n> " in await sits.sees("first message.\n\n> ")
        await slash_commands.exchanges(sits.home.db, 1, "other")
        sits.type(f"/resume other{ENTER}")
        shown = await sits.sees("a1\n\n> ")
        assert "\n\n\n" not in shown


async def test_a_terminal_that_goes_while_nobody_types_ends_the_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("gone")

    async with sat() as sits:
        monkeypatch.setattr(Screen, "write", fail)
        sits.prompt.redraw()
        with pytest.raises(OSError, match="gone"):
            await asyncio.wait_for(asyncio.shield(sits.ended), 60)


async def test_a_long_line_is_echoed_broken_between_words() -> None:
    async with sat(columns=28) as sits:
        sits.model.say("Yes.", None)
        sits.type(f"{'word ' * 9}{ENTER}")
        await sits.sees("> word word word word word\n  word word word word\nYes.")


async def test_ctrl_z_suspends(monkeypatch: pytest.MonkeyPatch) -> None:
    suspended: list[object] = []
    monkeypatch.setattr(application.Application, "suspend_to_background", lambda app, *_: suspended.append(app))

    async with sat() as sits:
        sits.type("\x1a")
        await sits.until(lambda: suspended)


ANY = st.lists(
    st.sampled_from(["word ", "\n", "\n\n", "```\n", "- ", "| a |\n", "|---|\n", "漢字 ", "\U0001f389 ", "x" * 30]),
    max_size=30,
)


@settings(max_examples=25)
@given(ANY, st.integers(12, 60), st.integers(5, 20))
def test_for_any_answer_on_any_terminal_the_prompt_stands_at_the_end_and_what_came_before_stays(
    pieces: list[str], columns: int, rows: int
) -> None:
    async def story(db: agents.AsyncSessionDB) -> None:
        async with sitting(db, columns, rows) as sits:
            sits.type(f"go{ENTER}")
            sits.model.say(*pieces, "\n\nwxend", None)  # On a line of its own, so that it is not wrapped.
            await sits.sees("wxend")
            shown = await sits.idles()
            assert shown.count("wxend") == 1
            assert shown.count("> go") == 1
            assert "".join(shown.split()).count("Anewconversation") == 1

    agents.run(story)
