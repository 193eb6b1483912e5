"""Patterns and rules for what is left out, beside git itself."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.tools.files import file_search, gitignore, workspace
from tests.support import file_tools


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("*.py", "a.py", True),
        ("/*.py", "a/b.py", False),
        ("**/*.py", "a.py", True),
        ("**/*.py", "a/b/c.py", True),
        ("a/**", "a", False),
        ("a/**", "a/b/c", True),
        ("a/**/b", "a/b", True),
        ("a/**/b", "a/x/y/b", True),
        ("a/**/b", "a/x/y/c", False),
        ("**/a/**/a/**/a", "a/a/b/a/b", False),
        ("a?c", "abc", True),
        ("a?c", "ac", False),
        ("[a-c]x", "bx", True),
        ("[!a-c]x", "bx", False),
        ("[^a-c]x", "dx", True),
        ("[]]x", "]x", True),
        ("[[:digit:]]", "7", True),
        ("[z-a]", "b", False),
        ("[", "[", False),
        (r"\*", "*", True),
        (r"\*", "a", False),
        ("*a*b*", "xxaxxbxx", True),
        ("*a*b*", "xxbxxaxx", False),
        ("a*", "a\nb", True),
        ("**a", "xa", True),
    ],
)
def test_patterns_fit_what_they_say(pattern: str, path: str, fits: bool) -> None:
    assert gitignore.glob(pattern)(path) is fits


@pytest.mark.parametrize("pattern", ["*a" * 60 + "b", "?*" * 60 + "b", "**/a/" * 40 + "b", "[a-b]*" * 60 + "c"])
def test_no_pattern_takes_forever(pattern: str) -> None:
    matches = gitignore.glob(pattern)
    assert not matches("a" * 2_000)
    assert not matches("/".join("a" * 400))


def test_braces_are_alternatives_and_there_are_not_too_many() -> None:
    assert sorted(gitignore.expand_braces("*.{js,ts}")) == ["*.js", "*.ts"]
    assert sorted(gitignore.expand_braces("{a,b{c,d}}")) == ["a", "a", "bc", "bd"]
    assert gitignore.expand_braces("{a}") == ["{a}"]
    assert len(gitignore.expand_braces("{a,b}" * 30)) <= 64


# Only ASCII: to git, `?` is one byte; here it is one character.
NAMES = ["a", "b", "ab", "a.b", "#a", "!a", "a b", "b ", "[a]", "a\\"]
PIECES = ["a", "b", "*", "?", "**", "/", "!", ".", " ", "#", "\\", "[ab]", "[!a]", "[", "]", "a*", "-"]
FOLDERS = ["", "a", "b", "a/ab", "b/a"]
RULES = st.lists(st.lists(st.sampled_from(PIECES), min_size=1, max_size=5).map("".join), max_size=4)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(RULES, RULES)
def test_for_any_rules_what_is_found_is_what_git_would_see(top: list[str], below: list[str]) -> None:
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
        assert ours(root) == gits(root)


def ours(root: Path) -> set[str]:
    where = workspace.Workspace([str(root)])
    walk = file_search.Walk(where, False, 60.0, lambda: False)
    return {"/".join(found.path.parts) for found in walk.files(where.resolve("."))}


def gits(root: Path) -> set[str]:
    quiet = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "HOME": str(root)}
    subprocess.run(["git", "init", "-q", str(root)], check=True, env=quiet, capture_output=True)
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z", "--others", "--exclude-standard"],
        check=True, env=quiet, capture_output=True,
    )  # fmt: skip
    return {os.fsdecode(name) for name in listed.stdout.split(b"\0") if name}


def test_rules_of_folders_above_and_of_other_files_hold(tmp_path: Path) -> None:
    for path in (
        "src/a.log",
        "src/b.tmp",
        "src/keep.log",
        "src/deep/c.log",
        "node_modules/x.js",
        "build/out.js",
        "a.txt",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("needle\n", encoding="utf-8")
    (tmp_path / ".gitignore").write_text("*.log\nbuild/\n!keep.log\na.txt/\n", encoding="utf-8")
    (tmp_path / ".ignore").write_text("*.tmp\n", encoding="utf-8")
    (tmp_path / "src" / "deep" / ".ignore").write_text("!c.log\n", encoding="utf-8")
    do = file_tools.Doing(tmp_path)

    def found(**more: object) -> set[str]:
        return {each for each in do.text("find_files", pattern="*.*", **more).split("\n") if "ignore" not in each}

    assert found() == {"src/keep.log", "src/deep/c.log", "a.txt"}
    assert found(folder="src") == {"src/keep.log", "src/deep/c.log"}
    assert len(found(include_ignored=True)) == 7
    assert do.text("search_files", text="needle", files="*.log").count("\n") == 1


def test_a_rule_file_that_is_a_pipe_or_a_link_out_is_passed_over(tmp_path: Path) -> None:
    root = tmp_path / "project"
    (root / "sub").mkdir(parents=True)
    (tmp_path / "rules").write_text("*", encoding="utf-8")
    os.mkfifo(root / ".gitignore")
    (root / "sub" / ".gitignore").symlink_to(tmp_path / "rules")
    (root / "sub" / "a").touch()
    assert file_tools.Doing(root).text("find_files", pattern="*") == "sub/a"


def test_rules_are_bounded() -> None:
    assert len(gitignore.parse("a\n" * 100_000, 0).rules) == gitignore.MAX_RULES
