"""The pictures of the documentation show the real program, are all in use, and load nothing from outside."""

from __future__ import annotations

import importlib
import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "pictures"
REFERENCE = re.compile(r"pictures/([\w-]+\.(?:svg|png))")
SVG = sorted({*FOLDER.glob("*.svg")} - {FOLDER / "anchor.svg"})


@pytest.fixture(scope="module")
def make() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        yield importlib.import_module("make")


def text_of(picture: Path) -> str:
    return " ".join(" ".join(ET.parse(picture).getroot().itertext()).split())


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_scene_shows_the_real_program(make: ModuleType, tmp_path: Path) -> None:
    make.main(tmp_path, ["first-chat"])
    for scheme in ("dark", "light"):
        text = text_of(tmp_path / f"first-chat-{scheme}.svg")
        assert "/help lists the commands" in text
        assert "You said in message 1" in text


def test_every_scene_is_checked_in_and_shown(make: ModuleType) -> None:
    assert {path.stem for path in SVG} == {f"{name}-{scheme}" for name in make.SCENES for scheme in make.THEMES}
    png = {f"{name}-{scheme}" for name in make.PNG_SCENES for scheme in make.THEMES}
    assert {path.stem for path in FOLDER.glob("*.png")} == png
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    names = {name for page in pages for name in REFERENCE.findall(page.read_text("utf-8"))}
    assert names <= {path.name for path in FOLDER.iterdir()}
    assert {f"{name}-dark.svg" for name in make.SCENES} <= names


@pytest.mark.parametrize("picture", SVG, ids=lambda path: path.stem)
def test_picture_loads_nothing_and_shows_no_machine_path(picture: Path) -> None:
    source = picture.read_text("utf-8")
    tags = {element.tag.partition("}")[2] for element in ET.fromstring(source).iter()}
    assert tags <= {"svg", "style", "g", "rect", "circle", "text"}
    assert not re.search(r"url\(|href|@import|/(?:home/(?!charlie\b)|root/|tmp/|work/|Users/)|Traceback", source)
