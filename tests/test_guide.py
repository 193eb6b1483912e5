"""The guide, played: what stands behind a `$` is run in order, and prints what stands below it.

A console block of the guide is a stretch of one session in a shell, in a folder and a home of its own, on the offline
model. `…` in a line is any text, `…` alone is any lines. What cannot be run here is checked: commands and options of
the program, commands of the chat, and files of settings.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from holdfast import config
from holdfast.agent import commands
from holdfast.cli import program

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "docs" / name for name in ("guide.md", "troubleshooting.md", "gateway.md", "rpc.md", "tui.md")]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, kind: str) -> Iterator[str]:
    return (text for found, text in BLOCK.findall(page.read_text("utf-8")) if found == kind)


def session(page: Path) -> Iterator[tuple[str, str]]:
    """Each command of a page with what it is to print."""
    for block in blocks(page, "console"):
        _, *pieces = re.split(r"^\$ (.*)\n", block, flags=re.MULTILINE)
        yield from zip(pieces[::2], pieces[1::2], strict=True)


def pattern(shown: str) -> re.Pattern[str]:
    lines = (
        r"(?:.*\n)*?" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + r"\n"
        for line in shown.splitlines()
    )
    return re.compile("".join(lines))


def environment(home: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {"PATH": path, "HOME": str(home), "HOLDFAST_HOME": str(home / "own"), "HOLDFAST_MODEL": "offline"} | {
        "LANG": "C.UTF-8"
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_stands_behind_a_dollar_prints_what_stands_below_it(page: Path, tmp_path: Path) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    for command, shown in session(page):
        ran = subprocess.run(
            ["sh", "-c", command],
            cwd=work,
            env=environment(home),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        told = f"$ {command}\n{ran.stdout}[exit {ran.returncode}]"
        assert ran.returncode == 0, told
        assert pattern(shown).fullmatch(ran.stdout), told


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_the_program_that_is_shown_exists_with_its_options(page: Path) -> None:
    shown = [command for command, _ in session(page)]
    shown += [line for block in blocks(page, "sh") for line in block.splitlines()]
    shown += re.findall(r"`(holdfast [^`]+)`", page.read_text("utf-8"))
    called = [part for line in shown for part in re.split(r"[|>;]|&&", line) if re.match(r"\s*holdfast\b", part)]
    assert called
    for part in called:
        words = shlex.split(part, comments=True)[1:]
        check(words)


def check(words: list[str]) -> None:
    """Whether the program knows these words: its commands by name, and the options of the command they end at."""
    command: click.Command = program.program
    context = click.Context(command)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words.pop(0))
        assert found is not None, words
        command = found
    if isinstance(command, click.Group) and words[:1] not in (["--version"], ["--help"]):
        talk = command.get_command(context, getattr(command, "_default", "chat"))
        assert talk is not None
        command = talk
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {"--help", "--version"}
    given = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    assert given <= known, (command.name, given - known)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_the_chat_that_is_shown_exists(page: Path) -> None:
    shown = re.findall(r"`/([a-z]+)(?: [^`]*)?`", page.read_text("utf-8"))
    assert shown
    assert [name for name in shown if name not in commands.COMMANDS] == []


def test_every_command_of_the_chat_is_in_the_guide() -> None:
    section = PAGES[0].read_text("utf-8").partition("\n## Commands of the chat\n")[2].partition("\n## ")[0]
    shown = set(re.findall(r"`/([a-z]+)(?: [^`]*)?`", section))
    assert shown == set(commands.COMMANDS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_settings_file_that_is_shown_is_accepted(page: Path, tmp_path: Path) -> None:
    for number, text in enumerate(blocks(page, "toml")):
        home = tmp_path / str(number)
        home.mkdir()
        (home / "config.toml").write_text(text, "utf-8")
        config.load(environ={"HOLDFAST_HOME": str(home)}, folder=str(home))
