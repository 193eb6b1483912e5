"""The look of the full screen: a dark and a light theme, and the style sheet."""

from __future__ import annotations

from rich.terminal_theme import TerminalTheme
from textual.theme import Theme


def _rgb(code: str) -> tuple[int, int, int]:
    return int(code[1:3], 16), int(code[3:5], 16), int(code[5:7], 16)


# The classes of the screen by its number of rows.
ROW_BREAKPOINTS = [(0, "-flat"), (9, "-low"), (16, "-high")]

DARK, LIGHT = "holdfast-dark", "holdfast-light"

THEMES = (
    Theme(
        name=DARK,
        primary="#6cb6ff",
        secondary="#8ddb8c",
        accent="#dcbdfb",
        foreground="#d6dde6",
        background="#171b21",
        surface="#1d222a",
        panel="#262d37",
        success="#6bc46d",
        warning="#daaa3f",
        error="#f47067",
        dark=True,
    ),
    Theme(
        name=LIGHT,
        primary="#0b62c4",
        secondary="#1a7f37",
        accent="#8250df",
        foreground="#24292f",
        background="#fbfbfa",
        surface="#f1f2f4",
        panel="#e4e7eb",
        success="#1a7f37",
        warning="#8a5a00",
        error="#c62828",
        dark=False,
    ),
)

# The colours of code in replies: terminal colours are too bright on one theme and too pale on the other.
CODE_DARK = TerminalTheme(
    (0x17, 0x1B, 0x21),
    (0xD6, 0xDD, 0xE6),
    [_rgb(each) for each in ("#545d68", "#f47067", "#8ddb8c", "#daaa3f", "#6cb6ff", "#dcbdfb", "#76e3ea", "#d6dde6")],
    [_rgb(each) for each in ("#909dab", "#ff938a", "#8ddb8c", "#eac55f", "#96d0ff", "#eedcff", "#b3f0ff", "#ffffff")],
)
CODE_LIGHT = TerminalTheme(
    (0xFB, 0xFB, 0xFA),
    (0x24, 0x29, 0x2F),
    [_rgb(each) for each in ("#24292f", "#c62828", "#116329", "#7a4e00", "#0b62c4", "#8250df", "#1b6f78", "#57606a")],
    [_rgb(each) for each in ("#57606a", "#a40e26", "#1a7f37", "#633c01", "#0550ae", "#6639ba", "#136068", "#24292f")],
)

CSS = """
FullScreen { background: $background; }
Screen { overflow: hidden; }
#heading { height: 1; padding: 0 3; background: $panel; color: $foreground;
           text-wrap: nowrap; text-overflow: ellipsis; }
Transcript { height: 1fr; background: $background; scrollbar-size-vertical: 1; scrollbar-color: $foreground 25%;
             scrollbar-background: $background; scrollbar-background-hover: $background; }
#progress { height: 1; padding: 0 3; color: $accent; display: none; }
#progress.shown { display: block; }
#prompt { height: auto; max-height: 10; margin: 0 1; padding: 0 1; border: round $foreground 25%;
          background: $background; }
#prompt:focus { border: round $primary; }
#prompt > .text-area--placeholder { color: $foreground 65%; }
#candidates { height: auto; padding: 0 3; color: $text-muted; display: none; text-wrap: nowrap;
              text-overflow: ellipsis; }
#candidates.shown { display: block; }
#status { height: 1; padding: 0 3; background: $background; text-wrap: nowrap; text-overflow: ellipsis; }

ApprovalPanel { height: auto; max-height: 60%; margin: 0 1; padding: 0 1; border: round $warning; background: $surface;
                display: none; overflow-y: auto; scrollbar-size-vertical: 1; }
ApprovalPanel.shown { display: block; }
ApprovalPanel.dangerous { border: round $error; }
ApprovalPanel #what { text-style: bold; }
ApprovalPanel #danger { color: $error; }
ApprovalPanel #remembers { color: $text-muted; }
ApprovalPanel:focus { border: heavy $warning; }
ApprovalPanel.dangerous:focus { border: heavy $error; }
ApprovalPanel #detail { margin: 0 0 0 2; }
ApprovalPanel #answers { height: auto; dock: bottom; }
ApprovalPanel.narrow #answers { layout: grid; grid-size: 2; grid-rows: 1; }
ApprovalPanel Button { min-width: 8; height: 1; border: none; margin: 0 1 0 0; }

ConversationScreen, CompactionScreen { align: center middle; background: $background 60%; }
#list, #compared { width: 96%; height: 92%; border: round $primary; background: $surface; padding: 0 1; }
#filter { border: none; height: 1; padding: 0 1; margin: 0 0 1 0; background: $panel; }
#found { width: 1fr; height: 1fr; border: none; background: $surface; text-wrap: nowrap; text-overflow: ellipsis; }
#lineage { width: 1fr; height: 1fr; border-left: solid $foreground 25%; padding: 0 1; color: $text-muted; }
#both { height: 1fr; }
.side { width: 1fr; height: 1fr; }
.side Transcript { background: $surface; }
.side.summary { border-left: solid $foreground 25%; }
.heading { height: 1; padding: 0 3; color: $text-muted; }
.side:focus-within .heading { color: $primary; text-style: bold; }
.narrow #both { layout: vertical; }
.narrow .side { width: 1fr; height: 1fr; }
.narrow #lineage { display: none; }
.narrow .side.summary { border-left: none; border-top: solid $foreground 25%; }

.-low ApprovalPanel, .-flat ApprovalPanel { max-height: 80%; }
.-flat #heading { display: none; }
.-flat #prompt, .-flat #prompt:focus, .-flat ApprovalPanel, .-flat ApprovalPanel:focus { border: none; }
.-flat #prompt { max-height: 2; }
"""
