"""Finding and searching: bounded, whatever is looked for and wherever."""

from __future__ import annotations

import asyncio
import os
import select
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holdfast.tools import worker_thread
from holdfast.tools.files import regex_process, search, text_search, walk
from tests.tools import doing

EVIL = "(a+)+$"


def matchers() -> list[str]:
    """The processes of expressions that there are, by their command lines."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path("/proc", pid, "cmdline").read_bytes().decode("utf-8", "replace")
            parent = Path("/proc", pid, "stat").read_text("utf-8").rsplit(")", 1)[1].split()[1]
        except OSError:
            continue
        if "regex_process.py" in line and int(parent) == os.getpid():
            found.append(line)
    return found


# --- by name ------------------------------------------------------------------------------------------


def test_files_are_found_by_pattern_newest_first(tmp_path: Path) -> None:
    for age, path in enumerate(["src/a.py", "b.py", "src/deep/c.py", "d.txt"]):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
        os.utime(tmp_path / path, (1_000 - age, 1_000 - age))
    do = doing.Doing(tmp_path)
    assert do.text("find_files", pattern="*.py") == "src/a.py\nb.py\nsrc/deep/c.py"
    assert do.text("find_files", pattern="src/*.py") == "src/a.py"
    assert do.text("find_files", pattern="src/**/*.{py,txt}") == "src/a.py\nsrc/deep/c.py"
    assert do.text("find_files", pattern="*.py", folder="src") == "src/a.py\nsrc/deep/c.py"
    assert do.text("find_files", pattern="*.rs") == "[No file fits.]"
    assert not do("find_files", pattern="*", folder="..").ok
    assert not do("find_files", pattern="*", folder="nothing").ok
    assert not do("find_files", pattern="*", folder="b.py").ok


def test_more_files_than_are_shown_are_counted(tmp_path: Path) -> None:
    for number in range(search.FILES + 7):
        (tmp_path / f"{number}").touch()
        os.utime(tmp_path / f"{number}", (number, number))
    lines = doing.Doing(tmp_path).text("find_files", pattern="*").split("\n")
    assert len(lines) == search.FILES + 1
    assert lines[0] == "106"
    assert lines[-1] == "[… and 7 more, older ones …]"


def test_links_are_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "project"
    root.mkdir()
    (tmp_path / "secret").write_text("needle", encoding="utf-8")
    (root / "out").symlink_to(tmp_path)
    (root / "file").symlink_to(tmp_path / "secret")
    (root / "round").symlink_to(root)
    do = doing.Doing(root)
    assert do.text("find_files", pattern="*") == "[No file fits.]"
    assert do.text("search_files", text="needle") == "[No line fits.]"


def test_a_walk_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        (tmp_path / f"{number}").write_text("needle", encoding="utf-8")
    do = doing.Doing(tmp_path)
    monkeypatch.setattr(walk, "MOST", 10)
    assert "[Not everything was looked at: there are more than 10 files.]" in do.text("find_files", pattern="*")
    monkeypatch.setattr(search, "SECONDS", -1.0)
    assert "there was no more time" in do.text("search_files", text="needle")


def test_folders_in_each_other_without_end_are_passed_over(tmp_path: Path) -> None:
    deep = tmp_path
    for _ in range(walk.DEPTH + 5):
        deep = deep / "d"
        deep.mkdir()
    (deep / "needle").touch()
    told = doing.Doing(tmp_path).text("find_files", pattern="needle")
    assert told == f"[Not everything was looked at: there are more than {walk.DEPTH} folders in each other.]"


# --- by content ---------------------------------------------------------------------------------------


def test_lines_are_found_with_their_places(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"one\r\ntwo (x)\r\nTWO\r\n")
    (tmp_path / "b.txt").write_bytes(b"two \xff\n\n\nlast two")
    (tmp_path / "c.bin").write_bytes(b"two\0two")
    do = doing.Doing(tmp_path)

    def found(**more: object) -> list[str]:
        return sorted(do.text("search_files", **more).split("\n"))

    assert found(text="two") == ["a.py:2: two (x)", "b.txt:1: two \ufffd", "b.txt:4: last two"]
    assert found(text="(x)") == ["a.py:2: two (x)"]
    assert found(text="two", any_case=True, files="*.py") == ["a.py:2: two (x)", "a.py:3: TWO"]
    assert found(text=r"^t\w+ \(", regex=True) == ["a.py:2: two (x)"]
    assert found(text=r"^TWO$", regex=True, any_case=True) == ["a.py:3: TWO"]
    assert found(text="two$", regex=True) == ["b.txt:4: last two"]
    assert found(text="^$", regex=True) == ["b.txt:2: ", "b.txt:3: "]
    assert found(text="nothing") == ["[No line fits.]"]


@pytest.mark.parametrize("regex", [False, True])
def test_numbers_are_right_across_pieces_and_endless_lines_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, regex: bool
) -> None:
    monkeypatch.setattr(search, "PIECE", 64)
    (tmp_path / "a").write_text("\n".join(f"line {number}" for number in range(1, 401)), encoding="utf-8")
    do = doing.Doing(tmp_path)
    for number in (1, 7, 100, 255, 400):
        told = do.text("search_files", text=f"line {number}" + ("$" if regex else ""), regex=regex)
        assert f"a:{number}: line {number}" in told.split("\n")
    (tmp_path / "a").write_bytes(b"x" * 100_000 + b" needle\nnext needle\n")
    told = do.text("search_files", text="needle", regex=regex).split("\n")
    assert told[-1] == "a:2: next needle"
    assert all(len(line) < search.WIDTH + 20 for line in told)


def test_more_lines_than_are_shown_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("needle\n" * 5_000, encoding="utf-8")
    lines = doing.Doing(tmp_path).text("search_files", text="needle").split("\n")
    assert len(lines) == search.LINES + 1
    assert lines[-1] == "[… and 4,900 more lines, in 1 files in all …]"


@pytest.mark.parametrize(
    ("text", "told"),
    [("(", "not a regular expression"), ("a\nb", "one line"), ("", "one line"), ("x" * 1_001, "one line")],
)
def test_what_cannot_be_looked_for_is_told(tmp_path: Path, text: str, told: str) -> None:
    result = doing.Doing(tmp_path)("search_files", text=text, regex=True)
    assert not result.ok
    assert told in str(result.content)


# --- expressions that take forever --------------------------------------------------------------------


def test_an_expression_that_takes_forever_is_ended_and_the_rest_is_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: None
) -> None:
    (tmp_path / "evil").write_text("a" * 40 + "!\n", encoding="utf-8")
    (tmp_path / "good").write_text("aaa\n", encoding="utf-8")
    told = doing.Doing(tmp_path).text("search_files", text=EVIL, regex=True)
    assert told == "good:1: aaa\n[The expression took too long in 1 files; the rest of them was left out.]"
    assert not matchers()


def test_an_expression_that_always_takes_forever_ends_the_search(tmp_path: Path, slow: None) -> None:
    for number in range(20):
        (tmp_path / f"evil{number}").write_text("a" * 40 + "!\n", encoding="utf-8")
    told = doing.Doing(tmp_path).text("search_files", text=EVIL, regex=True)
    assert "the expression takes too long; use a simpler one" in told
    assert not matchers()


def test_the_program_goes_on_while_an_expression_takes_forever(tmp_path: Path) -> None:
    (tmp_path / "evil").write_text("a" * 40 + "!\n", encoding="utf-8")
    do = doing.Doing(tmp_path)

    async def both() -> int:
        search = asyncio.create_task(do.awaited("search_files", text=EVIL, regex=True))
        ticks = 0
        while not matchers():
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
            ticks += not search.done()
        search.cancel()
        await asyncio.wait([search])
        assert search.cancelled()
        return ticks

    assert asyncio.run(both()) == 100
    assert not matchers()


def test_an_expression_whose_owner_is_gone_ends_by_itself(slow: None) -> None:
    program = f"""
import os, sys
sys.path.insert(0, {str(Path(text_search.__file__).parents[3])!r})
from pathlib import Path
from holdfast.tools.files import text_search
text_search._PROGRAM = Path({str(text_search._PROGRAM)!r})
made = text_search.Expression({EVIL!r}, False, lambda: False)
print(made._process.pid, flush=True)
made.lines(b"a" * 40 + b"!")
"""
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    owner.kill()
    owner.wait()
    owner.stdout.close()
    pidfd = None
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([pidfd], [], [], 60)[0]
    finally:
        os.close(pidfd)


@pytest.fixture
def slow(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forever is sooner in tests."""
    source = Path(regex_process.__file__).read_text("utf-8")
    assert "SECONDS = 3.0" in source
    path = tmp_path_factory.mktemp("program") / "regex_process.py"
    path.write_text(source.replace("SECONDS = 3.0", "SECONDS = 0.5"), encoding="utf-8")
    monkeypatch.setattr(text_search, "_PROGRAM", path)


# --- threads ------------------------------------------------------------------------------------------


def test_whoever_cancels_waits_until_the_work_has_stopped() -> None:
    begun, ended = threading.Event(), threading.Event()

    def work(stop: worker_thread.Stop) -> None:
        begun.set()
        while not stop():
            pass
        ended.set()

    async def both() -> None:
        task = asyncio.create_task(worker_thread.stoppable(work))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert ended.is_set()

    asyncio.run(both())


def test_a_search_that_is_cancelled_stops_walking(tmp_path: Path) -> None:
    for number in range(200):
        (tmp_path / f"{number}").write_text("x\n" * 100, encoding="utf-8")
    do = doing.Doing(tmp_path)

    async def stopped() -> None:
        task = asyncio.create_task(do.awaited("search_files", text="needle"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(stopped())
    assert threading.active_count() < 50
