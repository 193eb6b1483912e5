"""How the full screen looks: a dark and a light theme, and where things stand."""

from __future__ import annotations

from textual.theme import Theme

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

CSS = """
FullScreen { background: $background; }
#heading { height: 1; padding: 0 3; background: $panel; color: $foreground;
           text-wrap: nowrap; text-overflow: ellipsis; }
Transcript { height: 1fr; background: $background; scrollbar-size-vertical: 1; scrollbar-color: $foreground 25%;
             scrollbar-background: $background; scrollbar-background-hover: $background; }
#progress { height: 1; padding: 0 3; color: $accent; display: none; }
#progress.shown { display: block; }
#prompt { height: auto; max-height: 10; margin: 0 1; padding: 0 1; border: round $foreground 25%;
          background: $background; }
#prompt:focus { border: round $primary; }
#candidates { height: auto; max-height: 6; padding: 0 3; color: $text-muted; display: none; }
#candidates.shown { display: block; }
#standing { height: 1; padding: 0 3; background: $background; text-wrap: nowrap; text-overflow: ellipsis; }

Approval { height: auto; max-height: 60%; margin: 0 1; padding: 0 1; border: round $warning; background: $surface;
           display: none; }
Approval.shown { display: block; }
Approval.dangerous { border: round $error; }
Approval #what { text-style: bold; }
Approval #danger { color: $error; }
Approval #remembers { color: $text-muted; }
Approval #detail { height: auto; max-height: 12; margin: 0 0 0 2; }
Approval #answers { height: auto; }
Approval.narrow #answers { layout: grid; grid-size: 2; grid-rows: 1; }
Approval Button { min-width: 8; height: 1; border: none; margin: 0 1 0 0; }

Conversations, Compacted { align: center middle; background: $background 60%; }
#list, #compared { width: 96%; height: 92%; border: round $primary; background: $surface; padding: 0 1; }
#words { border: none; height: 1; padding: 0 1; margin: 0 0 1 0; background: $panel; }
#found { width: 3fr; height: 1fr; border: none; background: $surface; }
#lineage { width: 2fr; height: 1fr; border-left: solid $foreground 25%; padding: 0 1; color: $text-muted; }
#both { height: 1fr; }
.side { width: 1fr; height: 1fr; }
.side Transcript { background: $surface; }
.side.summary { border-left: solid $foreground 25%; }
.heading { height: 1; padding: 0 3; color: $text-muted; }
.narrow #both { layout: vertical; }
.narrow .side { width: 1fr; height: 1fr; }
.narrow #lineage { display: none; }
.narrow .side.summary { border-left: none; border-top: solid $foreground 25%; }
"""
