"""The pictures of the documentation are taken from the program, and are safe to show."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType

import pytest

from holdfast.tools.files import images

SHOWN = re.compile(r"\((?:\.\./)?pictures/([\w-]+)\.svg\)")
FOLDER = Path(__file__).parent.parent / "docs" / "pictures"


@pytest.fixture(scope="module")
def make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pictures", FOLDER / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["pictures"] = module
    spec.loader.exec_module(module)
    return module


def words(picture: str) -> str:
    return " ".join(" ".join(ET.fromstring(picture).itertext()).split())


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_picture_is_taken_from_the_program(make: ModuleType, tmp_path: Path) -> None:
    make.main(tmp_path, ["first-chat"])
    shown = words((tmp_path / "first-chat.svg").read_text("utf-8"))
    assert "/help lists the commands" in shown
    assert "You said in message 1" in shown


def test_every_scene_is_checked_in_and_shown(make: ModuleType) -> None:
    there = {path.stem for path in FOLDER.glob("*.svg")}
    pages = [(FOLDER.parent / name).read_text("utf-8") for name in ("get-started.md", "guides/full-screen.md")]
    assert there == set(make.SCENES) == {name for page in pages for name in SHOWN.findall(page)}


def test_full_screens_are_also_checked_in_as_png(make: ModuleType) -> None:
    wanted = {name for name, scene in make.SCENES.items() if scene.rows == make.FULL}
    assert {path.stem for path in FOLDER.glob("*.png")} == wanted
    for name in wanted:
        data = (FOLDER / f"{name}.png").read_bytes()
        found = images.read(data)
        box = ET.fromstring((FOLDER / f"{name}.svg").read_text("utf-8")).attrib["viewBox"]
        assert found is not None
        assert f"0 0 {found.width} {found.height}" == box
        assert len(data) < 150_000


@pytest.mark.parametrize("picture", sorted(FOLDER.glob("*.svg")), ids=lambda path: path.stem)
def test_picture_loads_nothing_and_names_no_machine(picture: Path) -> None:
    text = picture.read_text("utf-8")
    root = ET.fromstring(text)
    allowed = {"svg", "title", "style", "rect", "circle", "text"}
    assert {element.tag.partition("}")[2] for element in root.iter()} <= allowed
    assert not re.search(r"url\(|href|<script|/(?:home|root|tmp|work)/", text)
    assert "Traceback" not in words(text)
