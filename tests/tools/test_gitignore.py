"""Ignore rules match the same files as git."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.tools.files import file_search, gitignore, workspace
from tests.support.file_tools import FileTools


@pytest.mark.parametrize("pattern", ["*a" * 60 + "b", "?*" * 60 + "b", "**/a/" * 40 + "b", "[a-b]*" * 60 + "c"])
def test_no_pattern_takes_exponential_time(pattern: str) -> None:
    match = gitignore.glob(pattern)
    assert not match("a" * 2_000)
    assert not match("/".join("a" * 400))


def test_braces_are_expanded_up_to_a_limit() -> None:
    assert sorted(gitignore.expand_braces("*.{js,ts}")) == ["*.js", "*.ts"]
    assert sorted(gitignore.expand_braces("{a,b{c,d}}")) == ["a", "a", "bc", "bd"]
    assert gitignore.expand_braces("{a}") == ["{a}"]
    assert len(gitignore.expand_braces("{a,b}" * 30)) <= 64


# Only ASCII: to git, `?` is one byte; here it is one character.
NAMES = ["a", "b", "ab", "a.b", "#a", "!a", "a b", "b ", "[a]", "a\\"]
PIECES = ["a", "b", "*", "?", "**", "/", "!", ".", " ", "#", "\\", "[ab]", "[!a]", "[", "]", "a*", "-"]
FOLDERS = ["", "a", "b", "a/ab", "b/a"]
RULES = st.lists(st.lists(st.sampled_from(PIECES), min_size=1, max_size=5).map("".join), max_size=4)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(RULES, RULES)
def test_any_rules_match_the_same_files_as_git(top: list[str], below: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for each in FOLDERS:
            (root / each).mkdir(parents=True, exist_ok=True)
        for each in FOLDERS:
            for name in NAMES:
                if not (root / each / name).exists():
                    (root / each / name).touch()
        (root / ".gitignore").write_text("\n".join(top), encoding="utf-8")
        (root / "b" / ".gitignore").write_text("\n".join(below), encoding="utf-8")
        where = workspace.Workspace([str(root)])
        walk = file_search.Walk(where, False, 60.0, lambda: False)
        assert {"/".join(found.path.parts) for found in walk.files(where.resolve("."))} == list_by_git(root)


def list_by_git(root: Path) -> set[str]:
    quiet = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "HOME": str(root)}

    def git(*arguments: str) -> bytes:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, check=True, env=quiet, capture_output=True).stdout

    git("init", "-q")
    return {os.fsdecode(name) for name in git("ls-files", "-z", "--others", "--exclude-standard").split(b"\0") if name}


def test_rules_of_parent_folders_and_other_files_apply(tmp_path: Path) -> None:
    for path in ["src/a.log", "src/b.tmp", "src/keep.log", "src/deep/c.log", "build/out.js", "a.txt"]:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("needle\n", encoding="utf-8")
    (tmp_path / ".gitignore").write_text("*.log\nbuild/\n!keep.log\na.txt/\n", encoding="utf-8")
    (tmp_path / ".ignore").write_text("*.tmp\n", encoding="utf-8")
    (tmp_path / "src" / "deep" / ".ignore").write_text("!c.log\n", encoding="utf-8")
    tools = FileTools(tmp_path)

    def found(**more: object) -> set[str]:
        return {each for each in tools.text("find_files", pattern="*.*", **more).split("\n") if "ignore" not in each}

    assert found() == {"src/keep.log", "src/deep/c.log", "a.txt"}
    assert found(folder="src") == {"src/keep.log", "src/deep/c.log"}
    assert len(found(include_ignored=True)) == 6
    assert tools.text("search_files", text="needle", files="*.log").count("\n") == 1


def test_rule_file_that_is_a_pipe_or_a_link_is_ignored(tmp_path: Path) -> None:
    root = tmp_path / "project"
    (root / "sub").mkdir(parents=True)
    (tmp_path / "rules").write_text("*", encoding="utf-8")
    os.mkfifo(root / ".gitignore")
    (root / "sub" / ".gitignore").symlink_to(tmp_path / "rules")
    (root / "sub" / "a").touch()
    assert FileTools(root).text("find_files", pattern="*") == "sub/a"
