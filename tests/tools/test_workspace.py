"""Confinement: whatever a path says and whoever changes it meanwhile, nothing outside is opened or written."""

from __future__ import annotations

import os
import random
import socket
import stat
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import errors
from holdfast.tools.files import workspace
from tests.support import file_tools

SECRET = "the secret outside"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project beside a file that is none of its business."""
    (tmp_path / "secret").write_text(SECRET, encoding="utf-8")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text(SECRET, encoding="utf-8")
    project = tmp_path / "project"
    project.mkdir()
    return project


# --- paths --------------------------------------------------------------------------------------------

PIECES = [
    "..",
    ".",
    "",
    "in",
    "a.txt",
    "out",
    "loop",
    "~",
    "/",
    "secret",
    "link",
    "sub",
    "\n",
    "é",
    "-rf",
    "\ud800",
    "x" * 300,
]


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=5), min_size=1, max_size=8).map("/".join))
def test_for_any_path_what_is_opened_lies_below_the_root(path: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        base = Path(os.path.realpath(folder))
        project = base / "project"
        (project / "in" / "sub").mkdir(parents=True)
        (base / "secret").write_text(SECRET, encoding="utf-8")
        (project / "in" / "a.txt").write_text("inside", encoding="utf-8")
        (project / "out").symlink_to(base)
        (project / "link").symlink_to("in")
        (project / "loop").symlink_to("loop")
        where = workspace.Workspace([str(project)])
        try:
            with where.open_file(where.resolve(path)) as file:
                identity = os.fstat(file.fileno()).st_ino
                assert file.read() == b"inside"
            assert identity == (project / "in" / "a.txt").stat().st_ino
        except errors.ToolFailed:
            pass


def test_the_property_above_can_find_a_file(root: Path) -> None:
    (root / "in").mkdir()
    (root / "in" / "a.txt").write_text("inside", encoding="utf-8")
    (root / "link").symlink_to("in")
    where = workspace.Workspace([str(root)])
    for path in ("in/a.txt", "link/a.txt", "./in/../link//a.txt", f"{root}/in/a.txt"):
        with where.open_file(where.resolve(path)) as file:
            assert file.read() == b"inside"


@pytest.mark.parametrize(
    "path",
    ["../secret", "out/secret", "a/../../secret", "file", "~/secret", "~root/x", "/etc/passwd", "", "a\0b", "dot"],
)
@pytest.mark.parametrize("tool", ["read_file", "write_file", "edit_file"])
def test_nothing_outside_is_read_or_written(root: Path, tool: str, path: str) -> None:
    (root / "out").symlink_to(root.parent)
    (root / "file").symlink_to(root.parent / "secret")
    (root / "dot").symlink_to("../secret")
    more = {"write_file": {"content": "changed"}, "edit_file": {"old_text": "secret", "new_text": "changed"}}.get(
        tool, {}
    )
    result = file_tools.Doing(root)(tool, path=path, **more)
    assert not result.ok
    assert SECRET not in str(result.content)
    assert (root.parent / "secret").read_text("utf-8") == SECRET


def test_several_roots_are_open_and_the_first_is_where_paths_begin(root: Path) -> None:
    where = workspace.Workspace([str(root), str(root.parent / "outside")])
    (root / "secret").write_text("mine", encoding="utf-8")
    with where.open_file(where.resolve("secret")) as file:
        assert file.read() == b"mine"
    place = where.resolve("../outside/secret")
    assert place.name == str(root.parent / "outside" / "secret")
    with pytest.raises(errors.ToolFailed, match="outside of"):
        where.resolve("../secret")


def test_a_neighbour_whose_name_begins_the_same_is_outside(root: Path) -> None:
    (root.parent / "project-2").mkdir()
    with pytest.raises(errors.ToolFailed, match="outside of"):
        workspace.Workspace([str(root)]).resolve("../project-2")


# --- what is no file ----------------------------------------------------------------------------------


def test_pipes_sockets_devices_and_folders_are_refused_at_once(root: Path) -> None:
    os.mkfifo(root / "pipe")
    (root / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as ear:
        here = os.getcwd()
        os.chdir(root)
        try:
            ear.bind("socket")
        finally:
            os.chdir(here)
        do = file_tools.Doing(root)
        for name, told in (("pipe", "regular"), ("socket", "regular"), ("folder", "folder"), (".", "folder")):
            for tool, more in (("read_file", {}), ("write_file", {"content": "x"})):
                result = do(tool, path=name, **more)
                assert not result.ok
                assert told in str(result.content), (name, tool)
        assert do.text("search_files", text="x").startswith("[No line matches.]")


def test_devices_and_what_the_kernel_shows_are_refused_even_from_the_root_of_all() -> None:
    where = workspace.Workspace(["/"])
    for path in ("/dev/zero", "/dev/tty", "/proc/self/environ", "/sys/kernel"):
        with pytest.raises(errors.ToolFailed, match="regular"):
            where.resolve(path)


def test_a_device_that_was_not_known_by_its_path_is_refused_when_opened() -> None:
    where = workspace.Workspace(["/dev"])
    with pytest.raises(errors.ToolFailed, match="regular"), where.open_file(where.resolve("zero")):
        pass


# --- the race between check and open ------------------------------------------------------------------


@contextmanager
def swapping(root: Path) -> Iterator[None]:
    """Somebody who puts a link that leads out in the place of a folder, and the folder back, all the time."""
    over, chance = threading.Event(), random.Random(7)

    def work() -> None:
        while not over.wait(chance.random() / 2_000):
            (root / "a").rename(root / "b")
            (root / "a").symlink_to(root.parent / "outside")
            over.wait(chance.random() / 2_000)
            (root / "a").unlink()
            (root / "b").rename(root / "a")

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def rounds(done: Counter[str]) -> Iterator[int]:
    """Some hundreds, and more until it was done and refused a few times; a machine that never gets there fails."""
    for number in range(1_000_000):
        if number >= 300 and min(done["done"], done["refused"]) >= 10:
            return
        yield number
    raise AssertionError("it never came to that")


def test_a_folder_swapped_for_a_link_while_reading_shows_nothing_outside(root: Path) -> None:
    (root / "a").mkdir()
    (root / "a" / "secret").write_text("inside", encoding="utf-8")

    where = workspace.Workspace([str(root)])
    seen, tally = set[bytes](), Counter[str]()
    with swapping(root):
        for _ in rounds(tally):
            try:
                with where.open_file(where.resolve("a/secret")) as file:
                    seen.add(file.read())
                tally["done"] += 1
            except errors.ToolFailed:
                tally["refused"] += 1
    assert seen == {b"inside"}


def test_a_link_put_in_place_after_the_check_is_not_followed(root: Path) -> None:
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


@pytest.mark.parametrize("odd", ["pipe", "folder", "own"])
def test_what_is_put_in_place_between_the_look_and_the_opening_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch, odd: str
) -> None:
    own = root.parent / "own"
    own.write_text(SECRET, encoding="utf-8")
    path, opening = root / "a", os.open
    path.write_text("harmless", encoding="utf-8")

    def swapping(name: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if name == "a":
            path.unlink()
            {"pipe": os.mkfifo, "folder": os.mkdir, "own": lambda to: os.link(own, to)}[odd](path)
        return opening(name, flags, mode, dir_fd=dir_fd)

    where = workspace.Workspace([str(root)], [str(own)])
    place = where.resolve("a")
    monkeypatch.setattr(os, "open", swapping)
    with pytest.raises(errors.ToolFailed), where.open_file(place) as file:
        pytest.fail(f"opened: {file.read()!r}")


def test_a_folder_swapped_for_a_link_while_writing_changes_nothing_outside(root: Path) -> None:
    (root / "a").mkdir()
    (root / "a" / "secret").write_text("inside", encoding="utf-8")

    where = workspace.Workspace([str(root)])
    place = where.resolve("a/secret")
    tally = Counter[str]()
    with swapping(root):
        for number in rounds(tally):
            try:
                with where.open_file(place) as file:
                    seen = workspace.file_version(os.fstat(file.fileno()))
                where.write(place, b"%d" % number, seen)
                tally["done"] += 1
            except errors.ToolFailed:
                tally["refused"] += 1
    assert os.listdir(root.parent / "outside") == ["secret"]
    assert (root.parent / "outside" / "secret").read_text("utf-8") == SECRET
    assert os.listdir(root / "a") == ["secret"]


def test_a_file_swapped_for_a_link_in_the_last_moment_is_not_followed(root: Path) -> None:
    (root / "file").write_text("inside", encoding="utf-8")

    class Moment(set[workspace.Identity]):
        """Asked about what was found, right before it is opened."""

        def __contains__(self, _: object) -> bool:
            (root / "file").unlink()
            (root / "file").symlink_to(root.parent / "secret")
            return False

    where = workspace.Workspace([str(root)])
    told = pytest.raises(errors.ToolFailed, match="became a link")
    with where.open_folder(where.resolve(".")) as fd, told, where.open_in(fd, "file", Moment()):
        pass
    assert (root / "file").is_symlink()


# --- off limits ---------------------------------------------------------------------------------------


@pytest.fixture
def own(root: Path) -> list[Path]:
    """The program's own files, inside of the project."""
    (root / "home").mkdir()
    (root / "home" / "config.toml").write_text(SECRET, encoding="utf-8")
    for name in ("holdfast.db", "holdfast.db-wal", "holdfast.db.lock"):
        (root / name).write_text(SECRET, encoding="utf-8")
    return [root / "home", root / "holdfast.db"]


@pytest.mark.parametrize(
    "path",
    [
        "home/config.toml",
        "holdfast.db",
        "holdfast.db-wal",
        "link.toml",
        "hard.db",
        "folder/config.toml",
        "HOME/config.toml",
    ],
)
def test_the_programs_own_files_are_closed_under_any_name(root: Path, own: list[Path], path: str) -> None:
    (root / "link.toml").symlink_to(root / "home" / "config.toml")
    os.link(root / "holdfast.db", root / "hard.db")
    (root / "folder").symlink_to("home")
    do = file_tools.Doing(root, off_limits=own)
    for tool, more in (("read_file", {}), ("edit_file", {"old_text": "secret", "new_text": "changed"})):
        result = do(tool, path=path, **more)
        assert not result.ok
        assert SECRET not in str(result.content)
    assert not do("write_file", path="home/new", content="x").ok
    assert SECRET not in do.text("search_files", text="secret outside")
    assert do.text("find_files", pattern="*", include_ignored=True) == "[No file matches.]"
    assert not do.acts


def test_what_only_begins_like_the_programs_folder_is_open(root: Path, own: list[Path]) -> None:
    (root / "home-page.txt").write_text("hello", encoding="utf-8")
    assert file_tools.Doing(root, off_limits=own).text("read_file", path="home-page.txt") == "1\thello"


# --- names --------------------------------------------------------------------------------------------

NAMES = [
    "a\nb",
    "\x1b[31mred",
    "-rf",
    "x" * 255,
    "é" * 127,
    " space ",
    "a:b",
    "'quoted\"",
    "\u202egnp.exe",
    "*",
    "$(touch x)",
    "~",
]


@pytest.mark.parametrize("name", NAMES)
def test_hostile_names_are_names(root: Path, name: str) -> None:
    do = file_tools.Doing(root)
    path = f"./{name}"
    assert do("write_file", path=path, content="one\n").ok
    assert do.text("read_file", path=path) == "1\tone"
    assert do("edit_file", path=path, old_text="one", new_text="two").ok
    assert os.listdir(root) == [name]
    for told in (do.text("find_files", pattern="*"), do.text("search_files", text="two")):
        assert told.isprintable()
        assert len(told.splitlines()) == 1
    assert all(act.summary.isprintable() for act in do.acts)
    assert do.acts[0].paths == (str(root / name),)


def test_a_name_that_is_no_text_is_shown_and_harms_nothing(root: Path) -> None:
    with open(os.path.join(os.fsencode(root), b"caf\xe9.txt"), "wb") as file:
        file.write(b"coffee\n")
    do = file_tools.Doing(root)
    assert do.text("find_files", pattern="*.txt") == r"'caf\udce9.txt'"
    assert do.text("search_files", text="coffee") == r"'caf\udce9.txt':1: coffee"
    assert do.text("read_file", path="caf\udce9.txt") == "1\tcoffee"


def test_a_name_that_is_too_long_is_told(root: Path) -> None:
    result = file_tools.Doing(root)("write_file", path="x" * 256, content="")
    assert not result.ok
    assert "too long" in str(result.content)


# --- writing ------------------------------------------------------------------------------------------


def test_a_hard_link_to_a_file_outside_is_not_written_through(root: Path) -> None:
    os.link(root.parent / "secret", root / "inside")
    assert file_tools.Doing(root)("write_file", path="inside", content="changed").ok
    assert (root / "inside").read_text("utf-8") == "changed"
    assert (root.parent / "secret").read_text("utf-8") == SECRET


def test_a_mode_is_kept_and_a_new_file_has_the_usual_one(root: Path) -> None:
    (root / "run.sh").write_text("one", encoding="utf-8")
    (root / "run.sh").chmod(0o4751)
    do = file_tools.Doing(root)
    before = os.umask(0o027)
    try:
        assert do("edit_file", path="run.sh", old_text="one", new_text="two").ok
        assert do("write_file", path="deep/er/new", content="x").ok
    finally:
        os.umask(before)
    assert stat.S_IMODE((root / "run.sh").stat().st_mode) == 0o751
    assert stat.S_IMODE((root / "deep" / "er" / "new").stat().st_mode) == 0o640
    assert sorted(os.listdir(root)) == ["deep", "run.sh"]


def test_a_write_that_fails_leaves_the_old_file_and_no_draft(root: Path) -> None:
    where = workspace.Workspace([str(root)])
    (root / "a").write_text("old", encoding="utf-8")
    with pytest.raises(errors.ToolFailed, match="changed by another"):
        where.write(where.resolve("a"), b"new", None)
    (root / "folder").mkdir()
    with pytest.raises(errors.ToolFailed):
        where.write(where.resolve("folder"), b"new", None)
    assert sorted(os.listdir(root)) == ["a", "folder"]
    assert (root / "a").read_text("utf-8") == "old"


def test_no_descriptor_is_left_open(root: Path) -> None:
    (root / "a").mkdir()
    (root / "a" / "b").write_text("x", encoding="utf-8")
    do = file_tools.Doing(root)
    before = len(os.listdir("/dev/fd"))
    for _ in range(5):
        do("read_file", path="a/b")
        do("read_file", path="a/nothing/b")
        do("write_file", path="c/d", content="x")
        do("search_files", text="x", regex=True)
        do("find_files", pattern="*")
    assert len(os.listdir("/dev/fd")) == before
