"""Context files: found in the project, confined to it, and announced to the user."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import AsyncSessionDB, SessionDB, events
from holdfast.agent import context_files
from holdfast.model import ScriptedModel
from tests.support import agents

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----"


def texts(folder: Path) -> list[str]:
    return [each.text for each in context_files.read(str(folder))]


def test_file_is_found_up_to_the_root_of_the_repository(tmp_path: Path) -> None:
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


def test_huge_file_is_cut_and_the_notice_says_so(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_bytes(b"\xff\xfe" + b"x" * 1_000_000)
    (found,) = context_files.read(str(tmp_path))
    assert len(found.text) < context_files.MAX_CHARACTERS + 100
    assert found.text.endswith("[The file goes on.]")
    assert "1,000,002 bytes, the first 32,000 characters" in found.notice.text


def link_out(path: Path, outside: Path) -> None:
    path.symlink_to(outside / ".ssh" / "id_rsa")


def link_through_folder(path: Path, outside: Path) -> None:
    (path.parent / "docs").symlink_to(outside / ".ssh")
    path.symlink_to("docs/id_rsa")


def link_to_secret_inside(path: Path, outside: Path) -> None:
    (path.parent / ".env").write_text(KEY, encoding="utf-8")
    path.symlink_to(".env")


def link_to_kernel(path: Path, outside: Path) -> None:
    path.symlink_to("/proc/self/environ")


def pipe(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def listener(path: Path, outside: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the path of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


@pytest.mark.parametrize(
    "make", [link_out, link_through_folder, link_to_secret_inside, link_to_kernel, pipe, listener, Path.mkdir]
)
async def test_file_that_leads_elsewhere_is_refused_and_announced(
    tmp_path: Path, make: Callable[..., None], db: AsyncSessionDB
) -> None:
    repository, outside = tmp_path / "clone", tmp_path / "home"
    (repository / ".git").mkdir(parents=True)
    (outside / ".ssh").mkdir(parents=True)
    (outside / ".ssh" / "id_rsa").write_text(KEY, encoding="utf-8")
    make(repository / "AGENTS.md", *([outside] if make is not Path.mkdir else []))

    model, seen = ScriptedModel(["ok"]), list[events.AnyEvent]()
    agent = agents.agent(db, model, folder=str(repository), context_files=True)
    assert (await agent.run_conversation("Hello", emit=seen.append)).completed
    assert KEY not in model.requests[0].system
    (told,) = [each for each in seen if isinstance(each, events.Notice)]
    assert told.level == "warning"
    assert told.text.startswith(f"{repository}/AGENTS.md is not used: ")
    assert KEY not in told.text


def test_store_in_the_project_is_never_opened_as_a_context_file(tmp_path: Path) -> None:
    """To close any descriptor of the file would cancel SQLite's locks."""
    (tmp_path / "AGENTS.md").symlink_to("notes.sqlite")
    with SessionDB(tmp_path / "notes.sqlite") as db:
        (found,) = agents.agent(db, ScriptedModel([]), folder=str(tmp_path), context_files=True).context_files
    assert (found.text, "off limits" in found.problem) == ("", True)


async def test_file_is_announced_once_and_again_when_it_changed(tmp_path: Path, db: AsyncSessionDB) -> None:
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
