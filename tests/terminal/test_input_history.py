"""The input history: kept in a file that only its owner can read, or in memory without one."""

from __future__ import annotations

from pathlib import Path

from holdfast.terminal import input_history


async def test_history_is_loaded_newest_first_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "home" / "history"
    for line in ("one", "two\nlines", "a\udcffb"):
        input_history.open_history(str(path)).append_string(line)
    assert [line async for line in input_history.open_history(str(path)).load()] == ["a?b", "two\nlines", "one"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    path.chmod(0o644)
    input_history.open_history(str(path))
    assert path.stat().st_mode & 0o777 == 0o600


def test_history_without_a_file_is_kept_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = input_history.open_history(str(tmp_path / "file" / "history"))
    found.append_string("one")
    assert found.get_strings() == ["one"]
