"""How the prompt is drawn at the end of the screen, and how finished text gets above it.

What is printed is written where the prompt stood, and the prompt is drawn again below it: one write, so that nothing
flickers. The prompt's rows are never wrapped by the terminal, so it is known how many there are, whatever stands in
them; after the terminal became narrower they are counted as terminals break them anew.
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
from prompt_toolkit.layout.screen import Char
from prompt_toolkit.layout.screen import Screen as Drawn
from prompt_toolkit.output import vt100


class Screen(vt100.Vt100_Output):
    """The terminal. Where its cursor is, is not asked: the answer would arrive as if typed, at any later moment."""

    def __init__(self, out: TextIO, size: Callable[[], Size]) -> None:
        super().__init__(out, size, enable_cpr=False)
        self._held = False

    def get_rows_below_cursor_position(self) -> int:
        """One is always there, or made by scrolling: enough to know that something can be drawn under the prompt."""
        return 1

    @contextmanager
    def held(self) -> Iterator[None]:
        """All that is drawn within this block is written at once, at its end."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
            self.flush()

    def flush(self) -> None:
        if not self._held:
            super().flush()


class Renderer(renderer.Renderer):
    """Draws the prompt; `above` gives what is to be printed before, once."""

    def __init__(self, style: styles.BaseStyle, screen: Screen, above: Callable[[], str]) -> None:
        super().__init__(style, screen)
        self._screen, self._above = screen, above

    def render(self, app: Application[Any], layout: Layout, is_done: bool = False) -> None:
        try:
            with self._screen.held():
                above = self._above()
                if above or self._is_smaller(layout):
                    self.erase()
                    self._screen.write_raw(above)
                super().render(app, layout, is_done)
        except OSError as error:
            # Nobody waits for a drawing: whoever waits for the prompt hears that the terminal is gone.
            if not app.is_done:
                app.exit(exception=error)

    def erase(self, leave_alternate_screen: bool = True) -> None:
        columns = self._screen.get_size().columns
        if self._last_screen is not None and self._last_size is not None and columns < self._last_size.columns:
            up = rows_above(self._last_screen, self._cursor_pos, columns)
            self._cursor_pos = Point(min(self._cursor_pos.x, columns), up)
        super().erase(leave_alternate_screen)

    def _is_smaller(self, layout: Layout) -> bool:
        """Whether it was drawn in another size, or had more rows than it has now, which would stay as empty ones."""
        if self._last_screen is None:
            return False
        size = self._screen.get_size()
        wanted = layout.container.preferred_height(size.columns, size.rows).preferred
        return self._last_size != size or wanted < self._last_screen.height


def rows_above(drawn: Drawn, cursor: Point, columns: int) -> int:
    """How many rows stand above the cursor once a terminal of so many columns has broken them anew."""
    above = sum(max(1, -(-_width(drawn.data_buffer[row]) // columns)) for row in range(cursor.y))
    return above + cursor.x // columns


def _width(row: dict[int, Char]) -> int:
    return max((place + max(cell.width, 1) for place, cell in row.items() if cell.char.strip()), default=0)


def size() -> Size:
    """As large as the terminal is now. Some pseudo-terminals say 0."""
    try:
        found = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        found = os.terminal_size((0, 0))
    return Size(rows=found.lines or 24, columns=found.columns or 80)
