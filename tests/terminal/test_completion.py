"""Tab completes commands and paths; typing alone offers commands only."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from holdfast.agent import commands
from holdfast.terminal import input_completion


def offered(typed: str, *, tab: bool = True) -> list[str]:
    """What the line would be, for each input_completion."""
    event = CompleteEvent(completion_requested=tab, text_inserted=not tab)
    found = input_completion.InputCompleter().get_completions(Document(typed), event)
    return [typed[: len(typed) + each.start_position] + each.text for each in found]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").touch()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "may.md").touch()
    (tmp_path / ".hidden").touch()
    return tmp_path


def test_every_command_is_offered_while_it_is_typed() -> None:
    assert [line.split()[0] for line in offered("/", tab=False)] == [f"/{name}" for name in commands.COMMANDS]
    assert offered("/st", tab=False) == ["/status", "/stop", "/steer "]


def test_a_command_that_takes_something_leaves_room_for_it() -> None:
    assert offered("/ti", tab=False) == ["/title "]


@pytest.mark.parametrize("typed", ["hello", "say /st", "//st", "/title x", "/st\n/st", ""])
def test_other_words_offer_nothing_until_tab_asks(typed: str, folder: Path) -> None:
    assert offered(typed, tab=False) == []


@pytest.mark.parametrize(
    ("typed", "lines"),
    [
        ("see no", ["see notes/", "see notes.txt"]),
        ("see notes/m", ["see notes/may.md"]),
        ("see ./notes.", ["see ./notes.txt"]),
        ("first\nsecond no", ["first\nsecond notes/", "first\nsecond notes.txt"]),
        ("see .h", ["see .hidden"]),
        ("see nothing/x", []),
        ("see \x00", []),
    ],
)
def test_tab_completes_paths_from_the_working_folder(typed: str, lines: list[str], folder: Path) -> None:
    assert offered(typed) == lines


def test_hidden_files_are_not_offered_unasked(folder: Path) -> None:
    assert offered("see ") == ["see notes/", "see notes.txt"]


def test_whole_paths_are_completed(folder: Path) -> None:
    assert offered(f"see {folder}/notes.") == [f"see {folder}/notes.txt"]


def offered_behind(typed: str, *, tab: bool = True) -> list[str]:
    """What the line would be, where what commands take can be asked for."""

    async def takes(line: str) -> Sequence[commands.Candidate]:
        every = [commands.Candidate("/resume Trip to Rome", "2 messages"), commands.Candidate("/resume Tax")]
        return [each for each in every if each.value.startswith(line)]

    async def found() -> list[str]:
        event = CompleteEvent(completion_requested=tab, text_inserted=not tab)
        every = input_completion.InputCompleter(complete_argument=takes).get_completions_async(Document(typed), event)
        return [typed[: len(typed) + each.start_position] + each.text async for each in every]

    return asyncio.run(found())


@pytest.mark.parametrize(
    ("typed", "lines"),
    [
        ("/resume ", ["/resume Trip to Rome", "/resume Tax"]),
        ("/resume Trip t", ["/resume Trip to Rome"]),
        ("/resume no", []),
        ("/title no", ["/title notes/", "/title notes.txt"]),
        ("see no", ["see notes/", "see notes.txt"]),
        ("/st", ["/status", "/stop", "/steer "]),
    ],
)
def test_tab_completes_what_a_command_takes_and_paths_where_nothing_is_known(
    typed: str, lines: list[str], folder: Path
) -> None:
    assert offered_behind(typed) == lines


def test_what_a_command_takes_is_not_looked_up_unasked() -> None:
    assert offered_behind("/resume ", tab=False) == []
