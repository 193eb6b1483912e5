"""Files are found by name and by content, within limits of time and size."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from holdfast.tools import worker_thread
from holdfast.tools.files import file_search
from tests.support import polling
from tests.support.file_tools import FileTools

SLOW = "(a|aa)+$"
"""An expression that takes exponential time on the files of `write_slow_files`."""


def write_slow_files(folder: Path, count: int) -> None:
    for number in range(count):
        (folder / f"slow{number}").write_text("a" * 40 + "!\n", encoding="utf-8")


def test_files_are_found_by_pattern_newest_first(tmp_path: Path) -> None:
    for age, path in enumerate(["src/a.py", "b.py", "src/deep/c.py", "d.txt"]):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
        os.utime(tmp_path / path, (1_000 - age, 1_000 - age))
    tools = FileTools(tmp_path)
    assert tools.text("find_files", pattern="*.py") == "src/a.py\nb.py\nsrc/deep/c.py"
    assert tools.text("find_files", pattern="src/*.py") == "src/a.py"
    assert tools.text("find_files", pattern="src/**/*.{py,txt}") == "src/a.py\nsrc/deep/c.py"
    assert tools.text("find_files", pattern="*.py", folder="src") == "src/a.py\nsrc/deep/c.py"
    assert tools.text("find_files", pattern="*.rs") == "[No file matches.]"
    for folder in ("..", "nothing", "b.py"):
        assert not tools("find_files", pattern="*", folder=folder).ok


def test_files_and_lines_beyond_the_limit_are_counted(tmp_path: Path) -> None:
    for number in range(file_search.MAX_FILES_SHOWN + 7):
        (tmp_path / f"{number}").touch()
        os.utime(tmp_path / f"{number}", (number, number))
    lines = FileTools(tmp_path).text("find_files", pattern="*").split("\n")
    assert len(lines) == file_search.MAX_FILES_SHOWN + 1
    assert (lines[0], lines[-1]) == ("106", "[… and 7 more, older files …]")
    (tmp_path / "a").write_text("needle\n" * 5_000, encoding="utf-8")
    lines = FileTools(tmp_path).text("search_files", text="needle").split("\n")
    assert len(lines) == file_search.MAX_LINES_SHOWN + 1
    assert lines[-1] == "[… and 4,900 more lines; 1 files match …]"


def test_links_are_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "project"
    root.mkdir()
    (tmp_path / "secret").write_text("needle", encoding="utf-8")
    (root / "out").symlink_to(tmp_path)
    (root / "file").symlink_to(tmp_path / "secret")
    (root / "round").symlink_to(root)
    tools = FileTools(root)
    assert tools.text("find_files", pattern="*") == "[No file matches.]"
    assert tools.text("search_files", text="needle") == "[No line matches.]"


def test_search_ends_at_the_limits_of_files_time_and_depth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path
    for _ in range(file_search.MAX_DEPTH + 5):
        deep = deep / "d"
        deep.mkdir()
    (deep / "needle").touch()
    found = FileTools(tmp_path).text("find_files", pattern="needle")
    assert found == f"[The search is incomplete: folders are nested more than {file_search.MAX_DEPTH} levels deep.]"
    for number in range(30):
        (tmp_path / f"{number}").write_text("needle", encoding="utf-8")
    tools = FileTools(tmp_path)
    monkeypatch.setattr(file_search, "MAX_FILES_VISITED", 10)
    assert "[The search is incomplete: there are more than 10 files.]" in tools.text("find_files", pattern="*")
    monkeypatch.setattr(file_search, "TIMEOUT_SECONDS", -1.0)
    assert "the time limit was reached" in tools.text("search_files", text="needle")


def test_lines_are_found_with_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"one\r\ntwo (x)\r\nTWO\r\n")
    (tmp_path / "b.txt").write_bytes(b"two \xff\n\n\nlast two")
    (tmp_path / "c.bin").write_bytes(b"two\0two")
    tools = FileTools(tmp_path)

    def search(**more: object) -> list[str]:
        return sorted(tools.text("search_files", **more).split("\n"))

    assert search(text="two") == ["a.py:2: two (x)", "b.txt:1: two \ufffd", "b.txt:4: last two"]
    assert search(text="(x)") == ["a.py:2: two (x)"]
    assert search(text="two", any_case=True, files="*.py") == ["a.py:2: two (x)", "a.py:3: TWO"]
    assert search(text=r"^t\w+ \(", regex=True) == ["a.py:2: two (x)"]
    assert search(text=r"^TWO$", regex=True, any_case=True) == ["a.py:3: TWO"]
    assert search(text=r"two\Z", regex=True) == search(text="two$", regex=True) == ["b.txt:4: last two"]
    assert search(text="^$", regex=True) == ["b.txt:2: ", "b.txt:3: "]
    assert search(text="nothing") == ["[No line matches.]"]
    for invalid in ("(", "a\nb", "x" * 1_001):
        assert not tools("search_files", text=invalid, regex=True).ok


@pytest.mark.parametrize("regex", [False, True])
def test_line_numbers_are_right_across_blocks_and_long_lines_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, regex: bool
) -> None:
    monkeypatch.setattr(file_search, "BLOCK_BYTES", 64)
    (tmp_path / "a").write_text("\n".join(f"line {number}" for number in range(1, 401)), encoding="utf-8")
    tools = FileTools(tmp_path)
    for number in (1, 7, 255, 400):
        found = tools.text("search_files", text=f"line {number}" + ("$" if regex else ""), regex=regex)
        assert f"a:{number}: line {number}" in found.split("\n")
    (tmp_path / "a").write_bytes(b"x" * 100_000 + b" needle\nnext needle\n")
    lines = tools.text("search_files", text="needle", regex=regex).split("\n")
    assert lines[-1] == "a:2: next needle"
    assert all(len(line) < file_search.MAX_LINE_WIDTH + 20 for line in lines)


async def test_slow_expression_ends_and_never_blocks_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_search.LineMatcher, "timeout_seconds", 0.2)
    write_slow_files(tmp_path, 1)
    (tmp_path / "good").write_text("aaa\n", encoding="utf-8")
    search = asyncio.create_task(FileTools(tmp_path).awaited("search_files", text=SLOW, regex=True))
    iterations = 0
    while not search.done():
        await asyncio.sleep(0.005)
        iterations += 1
    found = (await search).content
    assert found == "good:1: aaa\n[The expression took too long in 1 files, which were searched in part.]"
    assert iterations > 1
    write_slow_files(tmp_path, 20)
    found = (await FileTools(tmp_path).awaited("search_files", text=SLOW, regex=True)).content
    assert "the expression takes too long; use a simpler one" in str(found)


async def test_cancelled_work_in_a_thread_has_stopped_when_the_caller_continues() -> None:
    begun, ended = threading.Event(), threading.Event()

    def work(stop: worker_thread.Stop) -> None:
        begun.set()
        while not stop():
            pass
        ended.set()

    await polling.cancel(await polling.start(worker_thread.run_in_thread(work), begun.is_set))
    assert ended.is_set()
