"""What was typed is remembered, by its owner only, and never at the cost of the chat."""

from __future__ import annotations

import asyncio
from pathlib import Path

from holdfast.terminal import input_history


def lines(path: Path) -> list[str]:
    async def load() -> list[str]:
        return [line async for line in input_history.open_history(str(path)).load()]

    return asyncio.run(load())


def test_lines_are_there_in_the_next_chat_newest_first(tmp_path: Path) -> None:
    path = tmp_path / "home" / "history"
    input_history.open_history(str(path)).append_string("one")
    input_history.open_history(str(path)).append_string("two\nlines")
    assert lines(path) == ["two\nlines", "one"]


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "home" / "history"
    input_history.open_history(str(path)).append_string("one")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    path.chmod(0o644)
    input_history.open_history(str(path))
    assert path.stat().st_mode & 0o777 == 0o600


def test_where_there_can_be_no_file_a_chat_still_remembers_its_own(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = input_history.open_history(str(tmp_path / "file" / "history"))
    found.append_string("one")
    assert found.get_strings() == ["one"]


def test_a_file_that_goes_away_disturbs_nobody(tmp_path: Path) -> None:
    path = tmp_path / "home" / "history"
    found = input_history.open_history(str(path))
    path.unlink()
    path.parent.rmdir()
    found.append_string("one")
    assert found.get_strings() == ["one"]


def test_keys_that_are_no_text_are_stored_as_text(tmp_path: Path) -> None:
    path = tmp_path / "history"
    input_history.open_history(str(path)).append_string("a\udcffb")
    assert lines(path) == ["a?b"]
