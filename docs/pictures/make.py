"""Takes the terminal pictures of the guide: `make pictures`, or `python docs/pictures/make.py FOLDER [NAME]...`.

Each scene is played on the real program under tmux, in a home of its own and without any key, so that the offline model
answers. The screen is read with its colours and written as SVG. Dates and ids differ from run to run.
"""

from __future__ import annotations

import html
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

PATIENCE = 60.0
COLUMNS, ROWS, FULL = 92, 26, 34
WIDE, HIGH, MARGIN, BAR = 8.4, 18, 14, 28
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


class Step(NamedTuple):
    """What is typed, the keys that end it, and what the screen then has to show before the next step."""

    typed: str
    shows: str
    keys: tuple[str, ...] = ("Enter",)


class Scene(NamedTuple):
    """A picture: its title and how it comes about. `rows` is how much of it is shown; more make the screen higher."""

    title: str
    steps: tuple[Step, ...]
    rows: int = ROWS


def ferries(count: int) -> Step:
    return Step(f"seq -f 'The ferry to island %g sails at noon, weather permitting.' {count} > log.txt; clear", "$")


# Conversations that were talked with a model, and not with the offline one.
PAST = Step(f"python {shlex.quote(str(Path(__file__).parent.resolve() / 'past.py'))} $HOLDFAST_DB; clear", "$")

SCENES = {
    "first-chat": Scene(
        "holdfast",
        (
            Step("holdfast", "your first message"),
            Step("My train leaves at 9:40 from platform 4.", "message 1"),
            Step("When does my train leave?", "You said in message 1"),
        ),
    ),
    "compaction": Scene(
        "holdfast: a file, a compaction, a question",
        (
            ferries(400),
            Step("holdfast", "your first message"),
            Step("The hut on day 3 is Lakeside, the key is 4417.", "message 1 "),
            Step("read log.txt", "characters more"),
            Step("We walked 18 km today.", "message 7 "),
            Step("/compact here 1", "ompacted"),
            Step("What is the key of the hut?", "in message 1"),
        ),
        rows=18,
    ),
    "conversations": Scene(
        "holdfast sessions",
        (
            Step("holdfast -p 'The cat is called Miso.' 2>notices.txt", "message 1"),
            Step("holdfast -c -p 'What is the name of my cat?' 2>notices.txt", "You said in message 1"),
            Step("clear; holdfast sessions list; holdfast sessions show last --tail 2; echo", "4  assistant"),
        ),
    ),
    "full-screen": Scene(
        "holdfast tui",
        (
            PAST,
            Step("holdfast tui -c", "5 passed. The form"),
        ),
        rows=FULL,
    ),
    "full-screen-light": Scene(
        "holdfast tui --light",
        (
            PAST,
            Step("holdfast tui -c --light", "5 passed. The form"),
            Step("", "│ FF...", ("F6", "p", "p", "p", "p", "Enter")),
        ),
        rows=FULL,
    ),
    "full-screen-conversations": Scene(
        "holdfast tui: conversations",
        (
            PAST,
            Step("holdfast tui -c", "5 passed. The form"),
            Step("", "Names for the cat", ("C-o",)),
            Step("shop", "compacted up to", ("Down",)),
        ),
        rows=FULL,
    ),
    "full-screen-question": Scene(
        "holdfast tui: a question",
        (
            Step("holdfast tui", "your first message"),
            Step("run echo 4417 > key.txt", "y once"),
        ),
        rows=FULL,
    ),
    "full-screen-compaction": Scene(
        "holdfast tui: a compaction, opened",
        (
            ferries(400),
            Step("holdfast tui", "your first message"),
            Step("The hut on day 3 is Lakeside, the key is 4417.", "Title:"),
            Step("read log.txt", "6 messages"),
            Step("We walked 18 km today.", "8 messages"),
            Step("/compact here 1", "1 compaction"),
            Step("", "│ log.txt", ("F6", "p", "Enter")),
        ),
        rows=FULL,
    ),
}


class Screen:
    """A tmux server of our own, with one window."""

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "tmux"

    def tmux(self, *command: str, env: dict[str, str] | None = None) -> str:
        told = ["tmux", "-f", "/dev/null", "-S", str(self._socket), *command]
        return subprocess.run(told, env=env, capture_output=True, encoding="utf-8", check=True).stdout

    def type(self, step: Step) -> None:
        before = 0 if "clear" in step.typed else self.tmux("capture-pane", "-p").count(step.shows)
        self.tmux("send-keys", "-l", step.typed)
        self.tmux("send-keys", *step.keys)
        self.wait_for(step.shows, before)

    def wait_for(self, text: str, before: int) -> None:
        """Until the screen shows a text more often than before, and nothing is drawn any more: three looks alike."""
        ends = time.monotonic() + PATIENCE
        while self.tmux("capture-pane", "-p").count(text) <= before:
            if time.monotonic() > ends:
                raise TimeoutError(f"The screen did not show {text!r}:\n" + self.tmux("capture-pane", "-p"))
            time.sleep(0.05)
        seen: list[str] = []
        while len(seen) < 3 or len(set(seen[-3:])) > 1:
            seen.append(self.tmux("capture-pane", "-e", "-p"))
            time.sleep(0.1)


def environment(home: Path) -> dict[str, str]:
    """As on a new machine: no key, no settings, no server."""
    found = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
    found["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{found.get('PATH', '')}"
    own = {"HOME": str(home), "HOLDFAST_HOME": str(home / "holdfast"), "HOLDFAST_MODEL": "offline", "TZ": "UTC"}
    own["HOLDFAST_DB"] = str(home / "holdfast.db")
    return (
        {"LANG": "C.UTF-8", "TERM": "screen-256color", "COLORTERM": "truecolor", "SHELL": "/bin/sh", "PS1": "$ "}
        | found
        | own
    )


def taken(scene: Scene) -> list[str]:
    """The screen at the end of a scene, line by line, with its escape codes."""
    with tempfile.TemporaryDirectory(prefix="pictures") as folder:
        screen, work = Screen(Path(folder)), Path(folder, "work")
        work.mkdir()
        variables = " ".join(shlex.quote(f"{name}={value}") for name, value in environment(Path(folder)).items())
        size = ("-x", str(COLUMNS), "-y", str(max(ROWS, scene.rows)))
        screen.tmux(
            "new-session", "-d", *size, "-c", str(work), f"env -i {variables} sh", env=environment(Path(folder))
        )
        try:
            screen.wait_for("$", 0)
            for step in scene.steps:
                screen.type(step)
            shown = screen.tmux("capture-pane", "-e", "-p", "-N").rstrip("\n").split("\n")
            return [unnamed(line, folder) for line in shown[-scene.rows :]]
        finally:
            screen.tmux("kill-server")


def unnamed(line: str, folder: str) -> str:
    """A line that does not tell where the scene was played: in somebody's home. What stands at the edge stays there."""
    less = line.count(folder) * (len(folder) - 1)
    told = line.replace(folder, "~")
    edge = max(told.rfind("│"), told.rfind("┃"))
    return f"{told[:edge]}{' ' * less}{told[edge:]}" if edge >= 0 else told


# --- drawing -----------------------------------------------------------------------------------------

INK, PAPER, FRAME = "#d8dee9", "#1e222a", "#2b303b"
COLOURS = ("#3b4252", "#d8636e", "#a3be8c", "#e5c07b", "#81a1c1", "#b48ead", "#88c0d0", "#e5e9f0")
BRIGHT = ("#7b8496", "#e58a93", "#b9d1a5", "#f0d399", "#9dbbdb", "#c9a7c3", "#a3d4e0", "#ffffff")
_CODE = re.compile(r"\x1b\[([\d;]*)m")
_OTHER = re.compile(r"\x1b[()][A-Z0-9]|\x1b\][^\x07]*\x07|[\x00-\x08\x0b-\x1a\x1c-\x1f]|\x1b\[[\d;?]*[A-Za-ln-z]")


class Look(NamedTuple):
    """How letters look."""

    ink: str = INK
    paper: str = ""
    bold: bool = False
    dim: bool = False
    italic: bool = False
    under: bool = False
    turned: bool = False


def looked(look: Look, codes: list[int]) -> Look:
    """The look after some codes."""
    rest = iter(codes or [0])
    for code in rest:
        look = Look() if code == 0 else look._replace(**changed(code, rest))
    return look


def changed(code: int, rest: Iterator[int]) -> dict[str, Any]:
    """What one code changes; some colours take more of the codes after it."""
    flags = {1: "bold", 2: "dim", 3: "italic", 4: "under", 7: "turned"}
    ends = {22: ("bold", "dim"), 23: ("italic",), 24: ("under",), 27: ("turned",)}
    kind = "ink" if code in range(30, 40) or code in range(90, 98) else "paper"
    if code in flags:
        return {flags[code]: True}
    if code in ends:
        return dict.fromkeys(ends[code], False)
    if code in (38, 48):
        return {kind: named(rest)}
    if code in (39, 49):
        return {kind: INK if code == 39 else ""}
    if code // 10 in (3, 4, 9, 10) and code % 10 < 8:
        return {kind: (COLOURS if code < 90 else BRIGHT)[code % 10]}
    return {}


def named(rest: Iterator[int]) -> str:
    """A colour by its number of 256, or by red, green and blue."""
    if next(rest, 5) == 2:
        return "#" + "".join(f"{next(rest, 0):02x}" for _ in range(3))
    number = next(rest, 7)
    if number < 16:
        return (COLOURS + BRIGHT)[number]
    if number >= 232:
        return "#" + f"{8 + 10 * (number - 232):02x}" * 3
    steps = (0, 95, 135, 175, 215, 255)
    return "#" + "".join(f"{steps[(number - 16) // each % 6]:02x}" for each in (36, 6, 1))


def pieces(line: str, look: Look) -> tuple[list[tuple[Look, str]], Look]:
    """A line as stretches of one look, and the look it ends with."""
    found: list[tuple[Look, str]] = []
    for index, part in enumerate(_CODE.split(_OTHER.sub("", line))):
        if index % 2:
            look = looked(look, [int(code or 0) for code in part.split(";")])
        elif part:
            found.append((look, part))
    return found, look


def drawn(title: str, lines: list[str]) -> str:
    """A screen as SVG."""
    width, height = MARGIN * 2 + COLUMNS * WIDE, BAR + MARGIN * 2 + len(lines) * HIGH
    rows: list[list[tuple[Look, str]]] = []
    look = Look()
    for line in lines:
        stretches, look = pieces(line, look)
        rows.append(stretches)
    sheet = papered(rows)
    body = [each for number, found in enumerate(rows) for each in row(found, BAR + MARGIN + number * HIGH, sheet)]
    dots = "".join(f'<circle cx="{18 + 16 * n}" cy="14" r="5" fill="{c}"/>' for n, c in enumerate(COLOURS[1:4]))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img">\n'
        f"<title>{html.escape(title)}</title>\n"
        "<style>text{font-family:ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;font-size:14px;"
        "white-space:pre}rect{shape-rendering:crispEdges}</style>\n"
        f'<rect width="100%" height="100%" rx="8" fill="{sheet}"/>\n'
        f'<rect width="100%" height="{BAR}" rx="8" fill="{FRAME}"/>'
        f'{dots}<text x="50%" y="19" fill="{BRIGHT[0]}" text-anchor="middle">{html.escape(title)}</text>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def papered(rows: list[list[tuple[Look, str]]]) -> str:
    """The colour most of the screen has: the margin has it, too."""
    found: dict[str, int] = {PAPER: 0}
    for look, text in (piece for stretches in rows for piece in stretches):
        paper = look.paper or PAPER
        found[paper] = found.get(paper, 0) + len(text)
    return max(found, key=lambda paper: found[paper])


def row(stretches: list[tuple[Look, str]], top: float, sheet: str = PAPER) -> Iterator[str]:
    column = 0
    for look, text in stretches:
        ink, paper = (look.paper or PAPER, look.ink) if look.turned else (look.ink, look.paper)
        paper = "" if paper == sheet else paper
        left, wide = MARGIN + column * WIDE, len(text) * WIDE
        if paper:
            yield f'<rect x="{left:.1f}" y="{top}" width="{wide:.1f}" height="{HIGH}" fill="{paper}"/>'
        if text.strip():
            style = "".join(
                given
                for there, given in (
                    (look.bold, ' font-weight="bold"'),
                    (look.dim, ' opacity="0.6"'),
                    (look.italic, ' font-style="italic"'),
                    (look.under, ' text-decoration="underline"'),
                )
                if there
            )
            # The width is given, so that whatever font is there the columns stand under each other.
            size = f'x="{left:.1f}" y="{top + 13}" textLength="{wide:.1f}" lengthAdjust="spacingAndGlyphs"'
            yield f'<text {size} fill="{ink}"{style} xml:space="preserve">{html.escape(text)}</text>'
        column += len(text)


def photographed(picture: Path) -> None:
    """The same as PNG, for pages that show no SVG: as a browser draws it, where there is one."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        return
    found = re.search(r'viewBox="0 0 (\d+) (\d+)"', picture.read_text("utf-8"))
    assert found is not None
    told = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={found[1]},{found[2]}")
    with tempfile.TemporaryDirectory(prefix="pictures") as folder:
        # As an image it fills the window; alone it would stand in the middle of it.
        page = Path(folder, "page.html")
        page.write_text(f'<body style="margin:0"><img width="{found[1]}" src="{picture.resolve().as_uri()}">', "utf-8")
        shot = f"--screenshot={picture.with_suffix('.png').resolve()}"
        subprocess.run([browser, *told, shot, page.as_uri()], capture_output=True, check=True)


def main(folder: Path, names: list[str]) -> None:
    for name in names or SCENES:
        scene, picture = SCENES[name], folder / f"{name}.svg"
        picture.write_text(drawn(scene.title, taken(scene)), "utf-8")
        print(picture)
        if scene.rows == FULL:
            photographed(picture)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent, sys.argv[2:])
