"""The system prompt, and the context files in it: confined to the project and announced to the user."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import AsyncSessionDB, SessionDB, events
from holdfast.agent import context_files, memory, system_prompt
from holdfast.model import ScriptedModel
from tests.support import agents

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----"


def prompt(folder: Path, instructions: system_prompt.Instructions = "") -> system_prompt.SystemPrompt:
    files = context_files.read(str(folder))
    return system_prompt.SystemPrompt(instructions, files, "likes tea", memory.AgentMemory())


async def test_instructions_replace_the_identity_and_a_function_is_called_every_turn(tmp_path: Path) -> None:
    texts = iter(["Be brief.", "Be kind."])

    async def instructions() -> str:
        return next(texts)

    (tmp_path / "AGENTS.md").write_text("Use tabs.", encoding="utf-8")
    made = prompt(tmp_path, instructions)
    one, two = [await made.build("head", "extra") for _ in range(2)]
    assert one.startswith("Be brief.\n")
    assert two == one.replace("Be brief.", "Be kind.")  # and nothing else changes
    assert one.index("Use tabs.") < one.index("likes tea") < one.index("extra")
    assert system_prompt.IDENTITY not in made.text


def texts(folder: Path) -> list[str]:
    return [each.text for each in context_files.read(str(folder))]


def test_context_file_is_found_up_to_the_root_of_the_repository(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("outside", encoding="utf-8")
    repository = tmp_path / "repository"
    deep = repository / "a" / "b"
    deep.mkdir(parents=True)
    assert texts(deep) == []  # without a repository, only the folder itself counts
    assert texts(tmp_path) == ["outside"]
    (repository / ".git").mkdir()
    assert texts(deep) == []
    (repository / "AGENTS.md").write_text("Use tabs.", encoding="utf-8")
    assert texts(deep) == ["Use tabs."]
    (deep / "AGENTS.md").symlink_to("../../AGENTS.md")
    assert texts(deep) == ["Use tabs."]
    (deep / "AGENTS.md").unlink()
    (deep / "AGENTS.md").write_text("Use spaces.", encoding="utf-8")
    assert texts(deep) == ["Use spaces."]


def test_huge_context_file_is_cut_and_the_notice_says_so(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_bytes(b"\xff\xfe" + b"x" * 1_000_000)
    (found,) = context_files.read(str(tmp_path))
    assert len(found.text) < context_files.MAX_CHARACTERS + 100
    assert found.text.endswith("[The file goes on.]")
    assert "1,000,002 bytes, the first 32,000 characters" in found.notice.text


def link_through_folder(path: Path) -> None:
    (path.parent / "docs").symlink_to("../home/.ssh")
    path.symlink_to("docs/id_rsa")


def link_to_secret(path: Path) -> None:
    (path.parent / ".env").write_text(KEY, encoding="utf-8")
    path.symlink_to(".env")


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.symlink_to("../home/.ssh/id_rsa"),
        link_through_folder,
        link_to_secret,
        lambda path: path.symlink_to("/proc/self/environ"),
        os.mkfifo,
        Path.mkdir,
    ],
    ids=["link", "link through a folder", "link to a secret", "link to the kernel", "pipe", "folder"],
)
async def test_context_file_link_is_refused(tmp_path: Path, make: Callable[[Path], None], db: AsyncSessionDB) -> None:
    repository, secret = tmp_path / "clone", tmp_path / "home" / ".ssh" / "id_rsa"
    (repository / ".git").mkdir(parents=True)
    secret.parent.mkdir(parents=True)
    secret.write_text(KEY, encoding="utf-8")
    make(repository / "AGENTS.md")
    model, seen = ScriptedModel(["ok"]), list[events.AnyEvent]()
    agent = agents.agent(db, model, folder=str(repository), context_files=True)
    assert (await agent.run_conversation("Hello", emit=seen.append)).completed
    assert KEY not in model.requests[0].system
    (notice,) = [each for each in seen if isinstance(each, events.Notice)]
    assert notice.level == "warning"
    assert notice.text.startswith(f"{repository}/AGENTS.md is not used: ")
    assert KEY not in notice.text


def test_store_is_never_opened_as_a_context_file(tmp_path: Path) -> None:
    """SQLite drops its POSIX locks when any descriptor of the file is closed."""
    (tmp_path / "AGENTS.md").symlink_to("notes.sqlite")
    with SessionDB(tmp_path / "notes.sqlite") as db:
        (found,) = agents.agent(db, ScriptedModel([]), folder=str(tmp_path), context_files=True).context_files
    assert (found.text, "off limits" in found.problem) == ("", True)


async def test_context_file_is_announced_once_and_again_when_it_changed(tmp_path: Path, db: AsyncSessionDB) -> None:
    file = tmp_path / "AGENTS.md"

    async def announced(**given: bool) -> list[str]:
        seen = list[events.AnyEvent]()
        agent = agents.agent(db, ScriptedModel(["ok", "ok"]), folder=str(tmp_path), **{"context_files": True, **given})
        for _ in range(2):
            assert (await agent.run_conversation("Hello", emit=seen.append)).completed
        return [each.text for each in seen if isinstance(each, events.Notice)]

    assert await announced() == []
    file.write_text("Use tabs.", encoding="utf-8")
    assert await announced(quiet=True) == []
    assert await announced() == [f"Project instructions in use: {file} (9 bytes)."]
    assert await announced() == []
    file.write_text("Use dots.", encoding="utf-8")
    assert await announced(context_files=False) == []
    assert await announced() == [f"Project instructions in use: {file} (9 bytes)."]
