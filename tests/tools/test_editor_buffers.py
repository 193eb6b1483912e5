"""Special, invalid and read-only files are neither read nor changed by way of an editor."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast import types
from holdfast.tools import registry
from holdfast.tools.files import file_tools, workspace


class FakeEditor:
    """An editor in which every file is open."""

    def __init__(self) -> None:
        self.text = "saved\n"
        self.asked: list[str] = []

    async def read(self, place: workspace.WorkspacePath, exists: bool) -> str | None:
        self.asked.append(place.name)
        return self.text

    async def write(self, place: workspace.WorkspacePath, text: str) -> bool:
        self.text = text
        return True


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("pipe", "saved\n", "regular"),
        ("folder", "saved\n", "folder"),
        ("fixed", "saved\n", "read-only"),
        ("new", "x\ud800", "unpaired surrogates"),
    ],
)
async def test_special_invalid_or_read_only_file_is_refused(tmp_path: Path, name: str, text: str, reason: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "fixed").write_text("saved\n")
    (tmp_path / "fixed").chmod(0o444)
    editor = FakeEditor()
    editor.text = text
    tools = registry.Registry(file_tools.file_tools([str(tmp_path)], editor=editor))
    result = await tools.run(types.ToolCall("1", "write_file", {"path": name, "content": "x"}))
    assert reason in str(result.content)
    assert editor.text == text
    assert (editor.asked == []) is (name in ("pipe", "folder"))
