"""Finding and searching: bounded, whatever is looked for and wherever."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path

import pytest

from holdfast.tools import worker_thread
from holdfast.tools.files import file_search
from tests.support import file_tools

EVIL = "(a|aa)+$"


# --- by name ------------------------------------------------------------------------------------------


def test_files_are_found_by_pattern_newest_first(tmp_path: Path) -> None:
    for age, path in enumerate(["src/a.py", "b.py", "src/deep/c.py", "d.txt"]):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
        os.utime(tmp_path / path, (1_000 - age, 1_000 - age))
    do = file_tools.Doing(tmp_path)
    assert do.text("find_files", pattern="*.py") == "src/a.py\nb.py\nsrc/deep/c.py"
    assert do.text("find_files", pattern="src/*.py") == "src/a.py"
    assert do.text("find_files", pattern="src/**/*.{py,txt}") == "src/a.py\nsrc/deep/c.py"
    assert do.text("find_files", pattern="*.py", folder="src") == "src/a.py\nsrc/deep/c.py"
    assert do.text("find_files", pattern="*.rs") == "[No file matches.]"
    assert not do("find_files", pattern="*", folder="..").ok
    assert not do("find_files", pattern="*", folder="nothing").ok
    assert not do("find_files", pattern="*", folder="b.py").ok


def test_more_files_than_are_shown_are_counted(tmp_path: Path) -> None:
    for number in range(file_search.MAX_FILES_SHOWN + 7):
        (tmp_path / f"{number}").touch()
        os.utime(tmp_path / f"{number}", (number, number))
    lines = file_tools.Doing(tmp_path).text("find_files", pattern="*").split("\n")
    assert len(lines) == file_search.MAX_FILES_SHOWN + 1
    assert lines[0] == "106"
    assert lines[-1] == "[… and 7 more, older files …]"


def test_links_are_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "project"
    root.mkdir()
    (tmp_path / "secret").write_text("needle", encoding="utf-8")
    (root / "out").symlink_to(tmp_path)
    (root / "file").symlink_to(tmp_path / "secret")
    (root / "round").symlink_to(root)
    do = file_tools.Doing(root)
    assert do.text("find_files", pattern="*") == "[No file matches.]"
    assert do.text("search_files", text="needle") == "[No line matches.]"


def test_a_walk_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        (tmp_path / f"{number}").write_text("needle", encoding="utf-8")
    do = file_tools.Doing(tmp_path)
    monkeypatch.setattr(file_search, "MAX_FILES_VISITED", 10)
    assert "[The search is incomplete: there are more than 10 files.]" in do.text("find_files", pattern="*")
    monkeypatch.setattr(file_search, "TIMEOUT_SECONDS", -1.0)
    assert "the time limit was reached" in do.text("search_files", text="needle")


def test_folders_in_each_other_without_end_are_passed_over(tmp_path: Path) -> None:
    deep = tmp_path
    for _ in range(file_search.MAX_DEPTH + 5):
        deep = deep / "d"
        deep.mkdir()
    (deep / "needle").touch()
    told = file_tools.Doing(tmp_path).text("find_files", pattern="needle")
    assert told == f"[The search is incomplete: folders are nested more than {file_search.MAX_DEPTH} levels deep.]"


# --- by content ---------------------------------------------------------------------------------------


def test_lines_are_found_with_their_places(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"one\r\ntwo (x)\r\nTWO\r\n")
    (tmp_path / "b.txt").write_bytes(b"two \xff\n\n\nlast two")
    (tmp_path / "c.bin").write_bytes(b"two\0two")
    do = file_tools.Doing(tmp_path)

    def found(**more: object) -> list[str]:
        return sorted(do.text("search_files", **more).split("\n"))

    assert found(text="two") == ["a.py:2: two (x)", "b.txt:1: two \ufffd", "b.txt:4: last two"]
    assert found(text="(x)") == ["a.py:2: two (x)"]
    assert found(text="two", any_case=True, files="*.py") == ["a.py:2: two (x)", "a.py:3: TWO"]
    assert found(text=r"^t\w+ \(", regex=True) == ["a.py:2: two (x)"]
    assert found(text=r"^TWO$", regex=True, any_case=True) == ["a.py:3: TWO"]
    assert found(text="two$", regex=True) == ["b.txt:4: last two"]
    assert found(text="^$", regex=True) == ["b.txt:2: ", "b.txt:3: "]
    assert found(text="nothing") == ["[No line matches.]"]


@pytest.mark.parametrize("regex", [False, True])
def test_numbers_are_right_across_pieces_and_endless_lines_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, regex: bool
) -> None:
    monkeypatch.setattr(file_search, "BLOCK_BYTES", 64)
    (tmp_path / "a").write_text("\n".join(f"line {number}" for number in range(1, 401)), encoding="utf-8")
    do = file_tools.Doing(tmp_path)
    for number in (1, 7, 100, 255, 400):
        told = do.text("search_files", text=f"line {number}" + ("$" if regex else ""), regex=regex)
        assert f"a:{number}: line {number}" in told.split("\n")
    (tmp_path / "a").write_bytes(b"x" * 100_000 + b" needle\nnext needle\n")
    told = do.text("search_files", text="needle", regex=regex).split("\n")
    assert told[-1] == "a:2: next needle"
    assert all(len(line) < file_search.MAX_LINE_WIDTH + 20 for line in told)


def test_more_lines_than_are_shown_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("needle\n" * 5_000, encoding="utf-8")
    lines = file_tools.Doing(tmp_path).text("search_files", text="needle").split("\n")
    assert len(lines) == file_search.MAX_LINES_SHOWN + 1
    assert lines[-1] == "[… and 4,900 more lines; 1 files match …]"


@pytest.mark.parametrize(
    ("text", "told"),
    [("(", "Invalid regular expression"), ("a\nb", "one line"), ("", "one line"), ("x" * 1_001, "one line")],
)
def test_what_cannot_be_looked_for_is_told(tmp_path: Path, text: str, told: str) -> None:
    result = file_tools.Doing(tmp_path)("search_files", text=text, regex=True)
    assert not result.ok
    assert told in str(result.content)


# --- expressions that take forever --------------------------------------------------------------------


def test_an_expression_that_takes_forever_is_ended_and_the_rest_is_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: None
) -> None:
    (tmp_path / "evil").write_text("a" * 40 + "!\n", encoding="utf-8")
    (tmp_path / "good").write_text("aaa\n", encoding="utf-8")
    told = file_tools.Doing(tmp_path).text("search_files", text=EVIL, regex=True)
    assert told == "good:1: aaa\n[The expression took too long in 1 files, which were searched in part.]"


def test_an_expression_that_always_takes_forever_ends_the_search(tmp_path: Path, slow: None) -> None:
    for number in range(20):
        (tmp_path / f"evil{number}").write_text("a" * 40 + "!\n", encoding="utf-8")
    told = file_tools.Doing(tmp_path).text("search_files", text=EVIL, regex=True)
    assert "the expression takes too long; use a simpler one" in told


def test_the_program_goes_on_while_an_expression_takes_forever(tmp_path: Path) -> None:
    (tmp_path / "evil").write_text("a" * 40 + "!\n", encoding="utf-8")
    do = file_tools.Doing(tmp_path)

    async def both() -> float:
        task = asyncio.create_task(do.awaited("search_files", text=EVIL, regex=True))
        longest, last = 0.0, time.monotonic()
        while not task.done():
            await asyncio.sleep(0.01)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        assert "took too long in 1 files" in str((await task).content)
        return longest

    assert asyncio.run(both()) < file_search.LineMatcher.timeout_seconds / 2


async def test_a_search_for_an_expression_that_takes_forever_can_be_cancelled(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"evil{number}").write_text("a" * 40 + "!\n", encoding="utf-8")
    do = file_tools.Doing(tmp_path)
    task = asyncio.create_task(do.awaited("search_files", text=EVIL, regex=True))
    await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


@pytest.mark.parametrize("text", ["^two$", r"two\Z", r"\Atwo", "two(?!\\s)", r"\btwo\b"])
def test_an_expression_sees_one_line_at_a_time(tmp_path: Path, text: str) -> None:
    (tmp_path / "a").write_bytes(b"one\r\ntwo\r\nthree\n")
    assert file_tools.Doing(tmp_path).text("search_files", text=text, regex=True) == "a:2: two"


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forever is sooner in tests."""
    monkeypatch.setattr(file_search.LineMatcher, "timeout_seconds", 0.3)


# --- threads ------------------------------------------------------------------------------------------


async def test_whoever_cancels_waits_until_the_work_has_stopped() -> None:
    begun, ended = threading.Event(), threading.Event()

    def work(stop: worker_thread.Stop) -> None:
        begun.set()
        while not stop():
            pass
        ended.set()

    task = asyncio.create_task(worker_thread.run_in_thread(work))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert ended.is_set()


async def test_a_search_that_is_cancelled_stops_walking(tmp_path: Path) -> None:
    for number in range(200):
        (tmp_path / f"{number}").write_text("x\n" * 100, encoding="utf-8")
    do = file_tools.Doing(tmp_path)
    task = asyncio.create_task(do.awaited("search_files", text="needle"))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert threading.active_count() < 50
