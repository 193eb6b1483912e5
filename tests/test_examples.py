"""The examples people copy: short, complete, listed, and they print what their page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))
LONGEST = 20


def shown() -> dict[str, str]:
    """What the page says each example prints, by its name, in the order of the page."""
    page = (FOLDER / "README.md").read_text("utf-8")
    return dict(re.findall(r"^## \[(\w+\.py)\]\(\1\)$.*?^```output\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_anywhere_and_prints_what_its_page_says(example: Path, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", example], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == shown()[example.name]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_short_enough_to_be_copied(example: Path) -> None:
    assert len(example.read_text("utf-8").splitlines()) <= LONGEST


def test_all_examples_are_listed_and_nothing_else() -> None:
    assert sorted(shown()) == [example.name for example in EXAMPLES]
    assert len(EXAMPLES) >= 5
