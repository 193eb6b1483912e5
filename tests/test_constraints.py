"""constraints.txt pins every package that set-up installs, and nothing else stands in it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging import requirements, utils

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
