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


async def complete_argument(line: str) -> Sequence[commands.Candidate]:
    return [each for each in CONVERSATIONS if each.value.startswith(line)]


async def complete(typed: str, *, tab: bool = True) -> list[str]:
    """Return the line that each completion results in."""
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


async def test_commands_are_offered_while_typing() -> None:
    offered = await complete("/", tab=False)
    assert [line.split()[0] for line in offered] == [f"/{name}" for name in commands.COMMANDS]
    assert await complete("/st", tab=False) == ["/status", "/stop", "/steer "]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("typed", ["hello", "say /st", "//st", "/title x", "/st\n/st", "", "/resume "])
async def test_other_text_offers_nothing_without_tab(typed: str) -> None:
    assert await complete(typed, tab=False) == []


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("typed", "lines"),
    [
        ("see no", ["see notes/", "see notes.txt"]),
        ("see notes/m", ["see notes/may.md"]),
        ("first\nsecond no", ["first\nsecond notes/", "first\nsecond notes.txt"]),
        ("see .h", ["see .hidden"]),
        ("see \x00", []),
        ("/resume Trip t", ["/resume Trip to Rome"]),
        ("/title no", ["/title notes/", "/title notes.txt"]),
    ],
)
async def test_tab_completes_arguments_and_paths(typed: str, lines: list[str]) -> None:
    assert await complete(typed) == lines


def test_completer_without_arguments_completes_absolute_paths(folder: Path) -> None:
    event = CompleteEvent(completion_requested=True)
    (found,) = input_completion.InputCompleter().get_completions(Document(f"see {folder}/notes."), event)
    assert found.text == "txt"
