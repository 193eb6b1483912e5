"""The install command fits the way Holdfast was installed."""

from __future__ import annotations

import sys
from importlib import metadata

import msgspec
import pytest

from holdfast import installation

GIT = {"url": "https://host/holdfast", "vcs_info": {"vcs": "git", "commit_id": "1", "requested_revision": "v1"}}
EDITABLE = {"url": "file:///src/my%20holdfast", "dir_info": {"editable": True}}


@pytest.mark.parametrize(
    ("prefix", "source", "command"),
    [
        ("/venv", EDITABLE, "/venv/bin/python -m pip install --editable '/src/my holdfast[tui]'"),
        ("/venv", {"url": "file:///x.whl", "archive_info": {}}, "/venv/bin/python -m pip install '/x.whl[tui]'"),
        ("/venv", None, "/venv/bin/python -m pip install 'holdfast[tui]'"),
        (
            "/u/.local/share/uv/tools/holdfast",
            GIT,
            "uv tool install 'holdfast[acp,tui] @ git+https://host/holdfast@v1'",
        ),
        ("/u/.local/share/uv/tools/holdfast", None, "uv tool install 'holdfast[acp,tui]'"),
        ("/u/.local/pipx/venvs/holdfast", None, "pipx install --force 'holdfast[acp,tui]'"),
    ],
)
def test_command_names_tool_and_source(
    monkeypatch: pytest.MonkeyPatch, prefix: str, source: dict[str, object] | None, command: str
) -> None:
    class Installed:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return None if source is None else msgspec.json.encode(source).decode()

    monkeypatch.setattr(metadata, "distribution", lambda name: Installed())
    monkeypatch.setattr(installation, "EXTRAS", {"acp": "json", "pg": "no_such_module"})
    monkeypatch.setattr(sys, "prefix", prefix)
    monkeypatch.setattr(sys, "executable", "/venv/bin/python")
    assert installation.install_command("tui") == command
