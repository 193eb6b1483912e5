"""The themes: every text has the contrast that WCAG AA requires."""

from __future__ import annotations

import re

import pytest
from textual.color import Color
from textual.theme import Theme

from holdfast.tui import theme as tui_theme
from holdfast.tui import transcript

READABLE = 4.5


def luminance(colour: Color) -> float:
    parts = [part / 255 for part in (colour.r, colour.g, colour.b)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: Color, other: Color) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def backgrounds(theme: Theme) -> list[Color]:
    return [Color.parse(str(each)) for each in (theme.background, theme.surface)]


@pytest.mark.parametrize("theme", tui_theme.THEMES, ids=lambda theme: theme.name)
def test_every_colour_is_readable_on_every_background(theme: Theme) -> None:
    colours = (theme.primary, theme.secondary, theme.accent, theme.foreground, theme.success, theme.warning)
    css = tui_theme.CSS + transcript.Transcript.DEFAULT_CSS
    shares = [int(each) / 100 for each in re.findall(r"[{; ]color: \$foreground (\d+)%", css)]
    assert shares
    for paper in backgrounds(theme):
        dimmed = [paper.blend(Color.parse(str(theme.foreground)), share) for share in shares]
        inks = [*dimmed, *(Color.parse(str(each)) for each in (*colours, theme.error))]
        assert min(contrast(ink, paper) for ink in inks) >= READABLE
