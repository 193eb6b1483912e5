"""Completion of the input: commands while typing, their arguments and paths with Tab."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from holdfast.agent import commands
from holdfast.terminal import input_completion

CONVERSATIONS = [commands.Candidate("/resume Trip to Rome", "2 messages"), commands.Candidate("/resume Tax")]


def complete(typed: str, *, tab: bool = True) -> list[str]:
    """Return the line that each completion results in."""
    event = CompleteEvent(completion_requested=tab, text_inserted=not tab)
    found = input_completion.InputCompleter().get_completions(Document(typed), event)
    return [typed[: len(typed) + each.start_position] + each.text for each in found]


async def complete_argument(line: str) -> Sequence[commands.Candidate]:
    return [each for each in CONVERSATIONS if each.value.startswith(line)]


async def complete_async(typed: str, *, tab: bool = True) -> list[str]:
    """Return the same with a completer that knows the arguments of /resume."""
    event = CompleteEvent(completion_requested=tab, text_inserted=not tab)
    completer = input_completion.InputCompleter(complete_argument=complete_argument)
    found = completer.get_completions_async(Document(typed), event)
    return [typed[: len(typed) + each.start_position] + each.text async for each in found]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").touch()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "may.md").touch()
    (tmp_path / ".hidden").touch()
    return tmp_path


def test_commands_are_offered_while_typing() -> None:
    assert [line.split()[0] for line in complete("/", tab=False)] == [f"/{name}" for name in commands.COMMANDS]
    assert complete("/st", tab=False) == ["/status", "/stop", "/steer "]
    assert complete("/ti", tab=False) == ["/title "]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("typed", ["hello", "say /st", "//st", "/title x", "/st\n/st", ""])
def test_other_text_offers_nothing_without_tab(typed: str) -> None:
    assert complete(typed, tab=False) == []


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("typed", "lines"),
    [
        ("see no", ["see notes/", "see notes.txt"]),
        ("see notes/m", ["see notes/may.md"]),
        ("see ./notes.", ["see ./notes.txt"]),
        ("first\nsecond no", ["first\nsecond notes/", "first\nsecond notes.txt"]),
        ("see ", ["see notes/", "see notes.txt"]),
        ("see .h", ["see .hidden"]),
        ("see nothing/x", []),
        ("see \x00", []),
    ],
)
def test_tab_completes_paths_of_the_working_directory(typed: str, lines: list[str]) -> None:
    assert complete(typed) == lines


def test_tab_completes_absolute_paths(folder: Path) -> None:
    assert complete(f"see {folder}/notes.") == [f"see {folder}/notes.txt"]


@pytest.mark.usefixtures("folder")
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
async def test_tab_completes_arguments_or_else_paths(typed: str, lines: list[str]) -> None:
    assert await complete_async(typed) == lines


async def test_arguments_are_not_looked_up_without_tab() -> None:
    assert await complete_async("/resume ", tab=False) == []
