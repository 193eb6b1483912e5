"""The themes: what is written can be read, in the light and in the dark."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from rich.terminal_theme import TerminalTheme
from textual.color import Color
from textual.theme import Theme

from holdfast.tui import theme as tui_theme
from holdfast.tui import transcript

READABLE = 4.5
"""What WCAG asks of text (AA)."""


def contrast(one: Color, other: Color) -> float:
    shades = sorted((_shade(one), _shade(other)), reverse=True)
    return (shades[0] + 0.05) / (shades[1] + 0.05)


def _shade(colour: Color) -> float:
    parts = [part / 255 for part in (colour.r, colour.g, colour.b)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("theme", tui_theme.THEMES, ids=lambda theme: theme.name)
def test_every_ink_can_be_read_on_every_paper(theme: Theme) -> None:
    papers = [Color.parse(str(each)) for each in (theme.background, theme.surface)]
    inks = (theme.primary, theme.secondary, theme.accent, theme.foreground, theme.success, theme.warning, theme.error)
    for paper in papers:
        assert all(contrast(Color.parse(str(ink)), paper) >= READABLE for ink in inks)


@pytest.mark.parametrize("theme", tui_theme.THEMES, ids=lambda theme: theme.name)
def test_what_stands_back_can_still_be_read(theme: Theme) -> None:
    css = tui_theme.CSS + transcript.Transcript.DEFAULT_CSS
    shares = [int(each) / 100 for each in re.findall(r"[{; ]color: \$foreground (\d+)%", css)]
    assert shares
    for share in shares:
        for paper in (Color.parse(str(theme.background)), Color.parse(str(theme.surface))):
            assert contrast(paper.blend(Color.parse(str(theme.foreground)), share), paper) >= READABLE


@pytest.mark.parametrize(
    ("code", "theme"),
    [(tui_theme.CODE_DARK, tui_theme.THEMES[0]), (tui_theme.CODE_LIGHT, tui_theme.THEMES[1])],
    ids=["dark", "light"],
)
def test_code_can_be_read(code: TerminalTheme, theme: Theme) -> None:
    paper = Color.parse(str(theme.background))
    colours = [Color(*code.ansi_colors[number]) for number in range(16)]
    # Black on the dark, which nothing is written in.
    dark = {0} if theme.dark else set[int]()
    assert all(contrast(each, paper) >= READABLE for number, each in enumerate(colours) if number not in dark)
    assert len({each.rgb for each in colours}) > 10


def test_contrast_is_measured_as_everywhere() -> None:
    assert [contrast(Color.parse(a), Color.parse(b)) for a, b in pairwise(("#000", "#fff", "#fff"))] == [21.0, 1.0]
