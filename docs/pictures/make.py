"""Create the terminal pictures of the documentation: `python docs/pictures/make.py [FOLDER [NAME]...]`.

Each scene runs the real program under tmux with a scripted model provider on loopback, in a temporary home directory.
The screen is exported as SVG, once dark and once light. Dates and ids differ from run to run.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import history
import provider
from rich.console import Console
from rich.text import Text

from holdfast import SessionDB
from holdfast.tui import theme

TIMEOUT_SECONDS = 60.0
COLUMNS, ROWS = 100, 30
HOME = "/home/charlie"
"""Shown instead of the temporary home directory; as long as its path, so that the layout stays."""
PNG_SCENES = ("chat", "full-screen")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")

TEMPLATE = """\
<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" xmlns="http://www.w3.org/2000/svg" role="img">
<style>
.{unique_id}-matrix {{ font: {char_height}px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace }}
.{unique_id}-title {{ font: bold 18px sans-serif }}
svg > rect {{ stroke: #8884 }}
{styles}
</style>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
THEMES = {"dark": theme.CODE_DARK, "light": theme.CODE_LIGHT}


class Step(NamedTuple):
    """Text to type, the text that the screen must show then, and the keys to press after the typed text."""

    text: str
    expected: str
    keys: tuple[str, ...] = ("Enter",)


class Scene(NamedTuple):
    """The steps of a picture. `rounds` is the length of the stored conversation; `offline` uses the offline model."""

    title: str
    steps: tuple[Step, ...]
    rounds: int = 4
    offline: bool = False


OPEN = Step("holdfast tui -c --$SCHEME", "tests of checkout pass")
RELEASE = Step("What is left before the release?", "minutes=15")
SCENES = {
    "chat": Scene(
        "holdfast",
        (
            Step("holdfast -c", "Web shop"),
            # Ctrl-L clears the screen, so that all of the exchange is visible.
            Step("\fThe total of the cart is wrong for 2 items. Please fix it.", "Allow?"),
            Step("y", "after. Use /recall"),
            Step("Which port did we choose for the staging database?", "You decided"),
        ),
        rounds=44,
    ),
    "first-chat": Scene(
        "holdfast",
        (
            Step("holdfast", "your first message"),
            Step("My train leaves at 9:40 from platform 4.", "message 1"),
            Step("When does my train leave?", "You said in message 1"),
        ),
        rounds=0,
        offline=True,
    ),
    "tour": Scene("holdfast tour", (Step("holdfast tour", "Next: run"),), rounds=0, offline=True),
    "doctor": Scene(
        "holdfast doctor",
        (
            Step("holdfast sessions search staging; holdfast doctor --fix; clear", "No problems found"),
            Step("holdfast doctor", "No problems found"),
        ),
    ),
    "conversations": Scene(
        "holdfast tui: conversations",
        (OPEN, Step("", "Names for the cat", ("C-o",)), Step("", "compacted up to", ("Down", "Down"))),
    ),
    "full-screen": Scene("holdfast tui", (OPEN, RELEASE)),
    "compaction": Scene(
        "holdfast tui: a compaction",
        (OPEN, RELEASE, Step("/compact here 1", "1 compaction"), Step("", "Decisions", ("F6", "p", "p", "Enter"))),
    ),
    "approval": Scene(
        "holdfast tui: an approval request",
        (OPEN, Step("Delete the old build and start a new one.", "y once")),
    ),
}


class Screen:
    """A tmux server with one window."""

    def __init__(self, home: Path, env: dict[str, str]) -> None:
        self._socket = home / "tmux"
        variables = " ".join(shlex.quote(f"{name}={value}") for name, value in env.items())
        size = ("-x", str(COLUMNS), "-y", str(ROWS))
        self.tmux("new-session", "-d", *size, "-c", str(home / "web-shop"), f"env -i {variables} sh")
        self.wait_for("$")

    def tmux(self, *command: str) -> str:
        argv = ["tmux", "-f", "/dev/null", "-S", str(self._socket), *command]
        return subprocess.run(argv, capture_output=True, encoding="utf-8", check=True).stdout

    def play(self, step: Step) -> None:
        count = self.tmux("capture-pane", "-p").count(step.expected)
        self.tmux("send-keys", "-l", step.text)
        if step.keys:
            self.tmux("send-keys", *step.keys)
        self.wait_for(step.expected, count)

    def wait_for(self, text: str, count: int = 0) -> None:
        """Wait until the text occurs more than `count` times and the screen has stopped changing."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while (screen := self.tmux("capture-pane", "-p")).count(text) <= count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"The screen does not show {text!r}:\n{screen}")
            time.sleep(0.05)
        captures: list[str] = []
        while len(captures) < 5 or len(set(captures[-5:])) > 1:
            captures.append(self.tmux("capture-pane", "-e", "-p"))
            time.sleep(0.1)


def capture(scene: Scene, scheme: str) -> str:
    """Play a scene and return the final screen with its escape codes."""
    with tempfile.TemporaryDirectory(prefix="", dir="/tmp") as folder, provider.serve() as model_env:
        home = Path(folder)
        prepare_home(home, scene.rounds)
        env = {
            "HOME": folder,
            "HOLDFAST_DB": f"{folder}/holdfast.db",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PS1": "$ ",
            "SCHEME": scheme,
            "LANG": "C.UTF-8",
            "TERM": "screen-256color",
            "COLORTERM": "truecolor",
            "TZ": "UTC",
        }
        screen = Screen(home, env | ({"HOLDFAST_MODEL": "offline"} if scene.offline else model_env))
        try:
            for step in scene.steps:
                screen.play(step)
            return screen.tmux("capture-pane", "-e", "-p", "-N").rstrip("\n").replace(folder, HOME)
        finally:
            screen.tmux("kill-server")


def prepare_home(home: Path, rounds: int) -> None:
    folder = home / "web-shop"
    folder.mkdir()
    (folder / "cart.py").write_text("def total(prices, quantity):\n    return sum(prices) * quantity\n")
    (folder / "TODO.md").write_text("- [ ] Review the release notes\n- [ ] Load test of the checkout\n")
    with SessionDB(home / "holdfast.db") as db:
        db.admin.set_meta("welcomed_at", repr(time.time()))
        if rounds:
            history.fill(db, str(folder), rounds)


def render(name: str, scheme: str, screen: str) -> str:
    """Return a screen as SVG."""
    with open(os.devnull, "w") as null:
        console = Console(record=True, width=COLUMNS, file=null, force_terminal=True, color_system="truecolor")
        console.print(Text.from_ansi(screen), end="", soft_wrap=True)
    svg = console.export_svg(
        title=SCENES[name].title,
        theme=THEMES[scheme],
        code_format=TEMPLATE,
        font_aspect_ratio=0.602,
        unique_id=f"{name}-{scheme}",
    )
    return re.sub(r' clip-path="[^"]*"', "", svg)


def write_png(picture: Path) -> None:
    """Write an SVG as PNG with a browser, for pages that cannot show SVG."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print(f"No browser found: {picture.with_suffix('.png')} was not updated.", file=sys.stderr)
        return
    _, width, height = picture.read_text("utf-8").split('"')[1].rsplit(" ", 2)
    size = f"--window-size={width},{math.ceil(float(height))}"
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", size)
    output = f"--screenshot={picture.with_suffix('.png').resolve()}"
    subprocess.run([browser, *options, output, picture.resolve().as_uri()], capture_output=True, check=True)


def main(folder: Path, names: list[str]) -> None:
    for name in names or SCENES:
        for scheme in THEMES:
            picture = folder / f"{name}-{scheme}.svg"
            picture.write_text(render(name, scheme, capture(SCENES[name], scheme)), "utf-8")
            print(picture)
            if name in PNG_SCENES:
                write_png(picture)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent, sys.argv[2:])
