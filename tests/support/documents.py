"""Commands of the program, and commands and blocks of the documentation.

A console block is a part of one shell session: the lines after a `$` are commands, the others their output. `…` in a
line stands for any text, `…` alone for any lines.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click

from holdfast.cli import program

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(
    group: click.Group = program.program, prefix: tuple[str, ...] = ()
) -> dict[tuple[str, ...], click.Command]:
    """Return each command by its words, such as `sessions list`, without groups."""
    context, found = click.Context(group), dict[tuple[str, ...], click.Command]()
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        path = (*prefix, name)
        found |= commands(command, path) if isinstance(command, click.Group) else {path: command}
    return found


def blocks(page: Path, kind: str) -> Iterator[str]:
    return (text for found, text in BLOCK.findall(page.read_text("utf-8")) if found == kind)


def session(page: Path) -> Iterator[tuple[str, str]]:
    """Yield each command of a page with its output."""
    for block in blocks(page, "console"):
        _, *pieces = re.split(r"^\$ (.*)\n", block, flags=re.MULTILINE)
        yield from zip(pieces[::2], pieces[1::2], strict=True)


def output_pattern(shown: str) -> re.Pattern[str]:
    lines = (
        r"(?:.*\n)*?" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + r"\n"
        for line in shown.splitlines()
    )
    return re.compile("".join(lines))


def check_commands(page: Path) -> None:
    """Check that every command of the program on a page exists with its options."""
    shown = [command for command, _ in session(page)]
    shown += [line for block in blocks(page, "sh") for line in block.splitlines()]
    shown += re.findall(r"`(holdfast [^`]+)`", page.read_text("utf-8"))
    calls = [part for line in shown for part in re.split(r"[|>;]|&&", line) if re.match(r"\s*holdfast\b", part)]
    assert calls
    for part in calls:
        check_command(shlex.split(part, comments=True)[1:])


def check_command(words: list[str]) -> None:
    """Check that the program knows these words: commands, and the options of the last one."""
    command: click.Command = program.program
    context = click.Context(command)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words.pop(0))
        assert found is not None, words
        command = found
    if isinstance(command, click.Group) and words[:1] not in (["--version"], ["--help"]):
        default = command.get_command(context, getattr(command, "_default", "chat"))
        assert default is not None
        command = default
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {"--help", "--version"}
    given = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    assert given <= known, (command.name, given - known)
