"""The install command fits the way Holdfast was installed, and constraints.txt pins every dependency."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import msgspec
import pytest
from packaging import requirements, utils

from holdfast import installation

UV = "/u/.local/share/uv/tools/holdfast"
GIT = {"url": "https://host/holdfast", "vcs_info": {"vcs": "git", "commit_id": "1", "requested_revision": "v1"}}
EDITABLE = {"url": "file:///src/my%20holdfast", "dir_info": {"editable": True}}


@pytest.mark.parametrize(
    ("prefix", "source", "command"),
    [
        ("/venv", EDITABLE, "/venv/bin/python -m pip install --editable '/src/my holdfast[tui]'"),
        ("/venv", {"url": "file:///x.whl", "archive_info": {}}, "/venv/bin/python -m pip install '/x.whl[tui]'"),
        ("/venv", None, "/venv/bin/python -m pip install 'holdfast[tui]'"),
        (UV, GIT, "uv tool install 'holdfast[acp,tui] @ git+https://host/holdfast@v1'"),
        (UV, None, "uv tool install 'holdfast[acp,tui]'"),
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


ROOT = Path(__file__).parent.parent
LINES = (ROOT / "constraints.txt").read_text("utf-8").splitlines()


def test_every_dependency_is_pinned_to_an_allowed_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    wanted = [*project["dependencies"], *(each for extra in extras for each in extra)]
    pinned = dict(line.split("==") for line in LINES if not line.startswith("#"))
    versions = {utils.canonicalize_name(name): version for name, version in pinned.items()}
    for each in map(requirements.Requirement, wanted):
        assert versions[utils.canonicalize_name(each.name)] in each.specifier, f"{each}: run make lock"


def test_constraints_are_names_and_versions_only() -> None:
    assert [line for line in LINES if not re.fullmatch(r"#.*|[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.+!]*", line)] == []
    assert not re.search(r"://|--index|--find-links", "\n".join(LINES))
