"""Draws the prompt at the end of the screen, and prints finished text above it.

Finished text is written where the prompt was, and the prompt is drawn again below it in the same write, so that nothing
flickers. The terminal never wraps the prompt's rows, so their number is known; after the terminal became narrower they
are counted as the terminal has wrapped them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from prompt_toolkit import renderer, styles
from prompt_toolkit.application import Application
from prompt_toolkit.data_structures import Point, Size
from prompt_toolkit.layout import Layout
from prompt_toolkit.layout.screen import Char, Screen
from prompt_toolkit.output import vt100


class TerminalOutput(vt100.Vt100_Output):
    """The terminal. The cursor position is never requested: the reply could arrive later, as if it were typed."""

    def __init__(self, out: TextIO, size: Callable[[], Size]) -> None:
        super().__init__(out, size, enable_cpr=False)
        self._held = False

    def get_rows_below_cursor_position(self) -> int:
        """Return 1: one row exists or can be made by scrolling, which is enough to draw below the prompt."""
        return 1

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Write all output of the block at once, at its end."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
            self.flush()

    def flush(self) -> None:
        """Write the buffered output, unless it is held."""
        if not self._held:
            super().flush()


class PromptRenderer(renderer.Renderer):
    """Draws the prompt; `take_finished` returns text to print above it, once."""

    def __init__(self, style: styles.BaseStyle, output: TerminalOutput, take_finished: Callable[[], str]) -> None:
        super().__init__(style, output)
        self._terminal, self._take_finished = output, take_finished

    def render(self, app: Application[Any], layout: Layout, is_done: bool = False) -> None:
        """Print the finished text and draw the prompt below it."""
        try:
            with self._terminal.hold():
                finished = self._take_finished()
                if finished or self._is_smaller(layout):
                    self.erase()
                    self._terminal.write_raw(finished)
                super().render(app, layout, is_done)
        except OSError as error:
            # The terminal is gone. No caller waits for a drawing, so the prompt reports it.
            if not app.is_done:
                app.exit(exception=error)

    def erase(self, leave_alternate_screen: bool = True) -> None:
        """Erase the prompt, also if the terminal has wrapped it since."""
        columns = self._terminal.get_size().columns
        if self._last_screen is not None and self._last_size is not None and columns < self._last_size.columns:
            rows = rows_above(self._last_screen, self._cursor_pos, columns)
            self._cursor_pos = Point(min(self._cursor_pos.x, columns), rows)
        super().erase(leave_alternate_screen)

    def _is_smaller(self, layout: Layout) -> bool:
        """Return whether the size changed, or the last drawing had more rows, which would stay as empty ones."""
        if self._last_screen is None:
            return False
        size = self._terminal.get_size()
        rows = layout.container.preferred_height(size.columns, size.rows).preferred
        return self._last_size != size or rows < self._last_screen.height


def rows_above(drawn: Screen, cursor: Point, columns: int) -> int:
    """Return the number of rows above the cursor after a terminal of this width has wrapped them."""
    above = sum(max(1, -(-_width(drawn.data_buffer[row]) // columns)) for row in range(cursor.y))
    return above + cursor.x // columns


def _width(row: dict[int, Char]) -> int:
    return max((place + max(cell.width, 1) for place, cell in row.items() if cell.char.strip()), default=0)


def terminal_size() -> Size:
    """Return the current size of the terminal. Some pseudo-terminals report 0."""
    try:
        found = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        found = os.terminal_size((0, 0))
    return Size(rows=found.lines or 24, columns=found.columns or 80)
