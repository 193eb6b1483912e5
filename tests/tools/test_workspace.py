"""No path, link or race makes a file tool open or write a file outside of its roots."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import errors
from holdfast.tools.files import workspace
from tests.support.file_tools import FileTools

SECRET = "the secret outside"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project folder next to files that are outside of it."""
    (tmp_path / "secret").write_text(SECRET, encoding="utf-8")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text(SECRET, encoding="utf-8")
    project = tmp_path / "project"
    project.mkdir()
    return project


# --- paths --------------------------------------------------------------------------------------------

PIECES = ["..", ".", "", "in", "a.txt", "out", "loop", "~", "/", "secret", "link", "\n", "é", "\ud800", "x" * 300]
PATHS = st.lists(st.sampled_from(PIECES) | st.text(max_size=5), min_size=1, max_size=8).map("/".join)


def open_in_project(path: str) -> bytes | None:
    """Open a path in a project with links; None if it is refused."""
    with tempfile.TemporaryDirectory() as folder:
        base = Path(os.path.realpath(folder))
        project = base / "project"
        (project / "in").mkdir(parents=True)
        (base / "secret").write_text(SECRET, encoding="utf-8")
        (project / "in" / "a.txt").write_text("inside", encoding="utf-8")
        (project / "out").symlink_to(base)
        (project / "link").symlink_to("in")
        (project / "loop").symlink_to("loop")
        where = workspace.Workspace([str(project)])
        try:
            with where.open_file(where.resolve(path)) as file:
                return file.read()
        except errors.ToolFailed:
            return None


@given(PATHS)
def test_any_path_opens_a_file_inside_or_is_refused(path: str) -> None:
    assert open_in_project(path) in (None, b"inside")
    assert open_in_project("./in/../link//a.txt") == b"inside"


@pytest.mark.parametrize("path", ["../secret", "out/secret", "a/../../secret", "file", "~/secret", "/etc/passwd", "",
                                  "a\0b"])  # fmt: skip
@pytest.mark.parametrize("tool", ["read_file", "write_file", "edit_file"])
def test_file_outside_is_neither_read_nor_written(root: Path, tool: str, path: str) -> None:
    (root / "out").symlink_to(root.parent)
    (root / "file").symlink_to("../secret")
    more = {"write_file": {"content": "changed"}, "edit_file": {"old_text": "secret", "new_text": "changed"}}
    assert SECRET not in FileTools(root).refusal(tool, path=path, **more.get(tool, {}))
    assert (root.parent / "secret").read_text("utf-8") == SECRET


def test_paths_are_relative_to_the_first_root_and_may_be_in_any(root: Path) -> None:
    (root.parent / "project-2").mkdir()
    where = workspace.Workspace([str(root), str(root.parent / "outside")])
    (root / "secret").write_text("mine", encoding="utf-8")
    with where.open_file(where.resolve("secret")) as file:
        assert file.read() == b"mine"
    assert where.resolve("../outside/secret").name == str(root.parent / "outside" / "secret")
    for path in ("../secret", "../project-2"):
        with pytest.raises(errors.ToolFailed, match="outside of"):
            where.resolve(path)


def test_pipes_sockets_and_folders_are_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(root / "pipe")
    (root / "folder").mkdir()
    monkeypatch.chdir(root)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        tools = FileTools(root)
        for name, reason in (("pipe", "regular"), ("socket", "regular"), ("folder", "folder"), (".", "folder")):
            for tool, more in (("read_file", {}), ("write_file", {"content": "x"})):
                assert reason in tools.refusal(tool, path=name, **more), (name, tool)
        assert tools.text("search_files", text="x").startswith("[No line matches.]")


def test_devices_are_refused_by_path_and_when_opened() -> None:
    where = workspace.Workspace(["/"])
    for path in ("/dev/zero", "/proc/self/environ", "/sys/kernel"):
        with pytest.raises(errors.ToolFailed, match="regular"):
            where.resolve(path)
    where = workspace.Workspace(["/dev"])
    with pytest.raises(errors.ToolFailed, match="regular"), where.open_file(where.resolve("zero")):
        pass


# --- the race between check and open ------------------------------------------------------------------


def test_link_created_after_the_check_is_not_followed(root: Path) -> None:
    (root / "a").mkdir()
    (root / "a" / "secret").write_text("inside", encoding="utf-8")
    (root / "file").write_text("inside", encoding="utf-8")
    where = workspace.Workspace([str(root)])
    nested, plain = where.resolve("a/secret"), where.resolve("file")
    (root / "a").rename(root / "b")
    (root / "a").symlink_to(root.parent / "outside")
    (root / "file").unlink()
    (root / "file").symlink_to(root.parent / "secret")
    for place in (nested, plain):
        with pytest.raises(errors.ToolFailed), where.open_file(place):
            pass
        with pytest.raises(errors.ToolFailed):
            where.write(place, b"changed", None)
    assert (root.parent / "outside" / "secret").read_text("utf-8") == SECRET
    assert (root.parent / "secret").read_text("utf-8") == SECRET


@pytest.mark.parametrize("kind", ["pipe", "folder", "own file", "link"])
def test_file_replaced_before_it_is_opened_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    own = root.parent / "own"
    own.write_text(SECRET, encoding="utf-8")
    path, open_file = root / "a", os.open
    path.write_text("harmless", encoding="utf-8")
    replace: Callable[[], object] = {
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
        "own file": lambda: os.link(own, path),
        "link": lambda: path.symlink_to(own),
    }[kind]

    def replace_and_open(name: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if name == "a":
            path.unlink()
            replace()
        return open_file(name, flags, mode, dir_fd=dir_fd)

    where = workspace.Workspace([str(root)], [str(own)])
    place = where.resolve("a")
    monkeypatch.setattr(os, "open", replace_and_open)
    with pytest.raises(errors.ToolFailed), where.open_file(place) as file:
        pytest.fail(f"opened: {file.read()!r}")


@pytest.mark.parametrize(
    "path",
    ["home/config.toml", "holdfast.db", "holdfast.db-wal", "link.toml", "hard.db", "folder/config.toml",
     "HOME/config.toml"],
)  # fmt: skip
def test_files_of_the_program_are_closed_under_any_name(root: Path, path: str) -> None:
    (root / "home").mkdir()
    (root / "home" / "config.toml").write_text(SECRET, encoding="utf-8")
    for name in ("holdfast.db", "holdfast.db-wal", "holdfast.db.lock"):
        (root / name).write_text(SECRET, encoding="utf-8")
    (root / "link.toml").symlink_to(root / "home" / "config.toml")
    os.link(root / "holdfast.db", root / "hard.db")
    (root / "folder").symlink_to("home")
    tools = FileTools(root, off_limits=[root / "home", root / "holdfast.db"])
    for tool, more in (("read_file", {}), ("edit_file", {"old_text": "secret", "new_text": "changed"})):
        assert SECRET not in tools.refusal(tool, path=path, **more)
    assert not tools("write_file", path="home/new", content="x").ok
    assert SECRET not in tools.text("search_files", text="secret outside")
    assert tools.text("find_files", pattern="*", include_ignored=True) == "[No file matches.]"
    assert not tools.acts
    (root / "home-page.txt").write_text("hello", encoding="utf-8")
    assert tools.text("read_file", path="home-page.txt") == "1\thello"


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31mred", "-rf", "é" * 127, "'quoted\"", "\u202egnp.exe", "*", "~"])
def test_any_name_is_used_and_shown_safely(root: Path, name: str) -> None:
    tools = FileTools(root)
    path = f"./{name}"
    assert tools("write_file", path=path, content="one\n").ok
    assert tools.text("read_file", path=path) == "1\tone"
    assert tools("edit_file", path=path, old_text="one", new_text="two").ok
    assert os.listdir(root) == [name]
    for shown in (tools.text("find_files", pattern="*"), tools.text("search_files", text="two")):
        assert shown.isprintable()
        assert len(shown.splitlines()) == 1
    assert all(act.summary.isprintable() for act in tools.acts)
    assert tools.acts[0].paths == (str(root / name),)


def test_name_that_is_not_unicode_or_too_long_is_reported(root: Path) -> None:
    with open(os.path.join(os.fsencode(root), b"caf\xe9.txt"), "wb") as file:
        file.write(b"coffee\n")
    tools = FileTools(root)
    assert tools.text("find_files", pattern="*.txt") == r"'caf\udce9.txt'"
    assert tools.text("search_files", text="coffee") == r"'caf\udce9.txt':1: coffee"
    assert tools.text("read_file", path="caf\udce9.txt") == "1\tcoffee"
    assert "too long" in str(tools("write_file", path="x" * 256, content="").content)


# --- writing ------------------------------------------------------------------------------------------


def test_hard_link_to_a_file_outside_is_replaced_and_not_written_through(root: Path) -> None:
    os.link(root.parent / "secret", root / "inside")
    assert FileTools(root)("write_file", path="inside", content="changed").ok
    assert (root / "inside").read_text("utf-8") == "changed"
    assert (root.parent / "secret").read_text("utf-8") == SECRET


def test_file_changed_right_before_it_is_replaced_is_left_alone(root: Path) -> None:
    place, file = workspace.Workspace([str(root)]), root / "plan"
    file.write_text("old", encoding="utf-8")
    before = workspace.file_version(file.stat())
    file.write_text("by the person", encoding="utf-8")
    with pytest.raises(errors.ToolFailed):
        place.write(place.resolve("plan"), b"new", before)
    assert file.read_text("utf-8") == "by the person"
    assert not list(root.glob(".holdfast-*"))


def test_mode_is_kept_and_a_new_file_has_the_default_mode(root: Path) -> None:
    (root / "run.sh").write_text("one", encoding="utf-8")
    (root / "run.sh").chmod(0o4751)
    tools = FileTools(root)
    before = os.umask(0o027)
    try:
        assert tools("edit_file", path="run.sh", old_text="one", new_text="two").ok
        assert tools("write_file", path="deep/er/new", content="x").ok
    finally:
        os.umask(before)
    assert stat.S_IMODE((root / "run.sh").stat().st_mode) == 0o751
    assert stat.S_IMODE((root / "deep" / "er" / "new").stat().st_mode) == 0o640
    assert sorted(os.listdir(root)) == ["deep", "run.sh"]


def test_no_descriptor_is_left_open(root: Path) -> None:
    (root / "a").mkdir()
    (root / "a" / "b").write_text("x", encoding="utf-8")
    tools = FileTools(root)
    before = len(os.listdir("/dev/fd"))
    for _ in range(3):
        tools("read_file", path="a/b")
        tools("read_file", path="a/nothing/b")
        tools("write_file", path="c/d", content="x")
        tools("search_files", text="x", regex=True)
        tools("find_files", pattern="*")
    assert len(os.listdir("/dev/fd")) == before
