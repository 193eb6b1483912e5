"""The guides: commands print what the pages show, and commands, options and settings exist."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from holdfast import config
from holdfast.agent import commands
from tests.support import cli_process, documents

NAMES = (
    "get-started.md",
    "operations/troubleshooting.md",
    "guides/chat.md",
    "guides/compaction.md",
    "guides/custom-clients.md",
    "guides/editors.md",
    "guides/full-screen.md",
    "guides/gateway.md",
    "guides/settings.md",
)
PAGES = [pytest.param(documents.ROOT / "docs" / name, id=name) for name in NAMES]
CHAT_COMMAND = re.compile(r"`/([a-z]+)(?: [^`]*)?`")


@pytest.mark.parametrize("page", PAGES)
def test_command_prints_the_documented_output(page: Path, tmp_path: Path) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    env = {**cli_process.OFFLINE, "PATH": path, "HOME": str(home), "HOLDFAST_HOME": str(home / "my"), "LANG": "C.UTF-8"}
    for command, shown in documents.session(page):
        ran = cli_process.run(work, env=env, command=["sh", "-c", f"({command}) 2>&1"])
        session = f"$ {command}\n{ran.out}[exit {ran.code}]"
        assert ran.code == 0, session
        assert documents.output_pattern(shown).fullmatch(ran.out), session


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_settings_of_a_page_exist(page: Path, tmp_path: Path) -> None:
    documents.check_commands(page)
    assert set(CHAT_COMMAND.findall(page.read_text("utf-8"))) <= set(commands.COMMANDS)
    for number, text in enumerate(documents.blocks(page, "toml")):
        home = tmp_path / str(number)
        home.mkdir()
        (home / "config.toml").write_text(text, "utf-8")
        config.load(environ={"HOLDFAST_HOME": str(home)}, folder=str(home))


def test_settings_of_editors_start_the_program() -> None:
    for text in documents.blocks(documents.ROOT / "docs" / "guides" / "editors.md", "json"):
        ((place, agents),) = json.loads(text).items()
        assert place in ("agent_servers", "acp.agents")
        assert agents["Holdfast"]["command"].endswith("holdfast")
        assert agents["Holdfast"]["args"] == ["acp"]


def test_chat_page_lists_every_command() -> None:
    guide = (documents.ROOT / "docs" / "guides" / "chat.md").read_text("utf-8")
    section = guide.partition("\n## Commands\n")[2].partition("\n## ")[0]
    assert set(CHAT_COMMAND.findall(section)) == set(commands.COMMANDS)
