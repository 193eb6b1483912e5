"""`holdfast config`: what is set and by whom, what is wrong with it, and a way to change it.

These work with files that are wrong, too: that is when they are needed.
"""

from __future__ import annotations

import json
import os

import click

from holdfast import config, errors
from holdfast.cli import console, editing, lazy, mistakes, origins
from holdfast.terminal import text

COMMANDS = {
    "show": ("holdfast.cli.configuring:show", "Every setting, its value, and where that comes from."),
    "path": ("holdfast.cli.configuring:path", "Where the files of settings are, or would be."),
    "check": ("holdfast.cli.configuring:check", "Name every mistake in them, with its place."),
    "edit": (
        "holdfast.cli.configuring:edit",
        "Open your file in an editor; it is put back if nothing is wrong with it.",
    ),
}


@click.group(cls=lazy.LazyGroup, commands_in=COMMANDS)
@click.pass_context
def command(context: click.Context) -> None:
    """Look at settings, and change them."""
    lazy.help_when_alone(context)


@click.command()
@lazy.profile
@lazy.as_json
@click.pass_obj
def show(out: console.Console, settings: config.Settings | None, as_json: bool) -> int:
    """Every setting, its value, and where that comes from. Secrets are not shown."""
    flags = {"profile": "--profile"} if settings else {}
    try:
        found = origins.listed(settings or config.load(), config.environment(), flags)
    except errors.SettingInvalid as error:
        out.note(lazy.wrong_file(error))
        return 2
    if as_json:
        out.json({"settings": {each.key: {"value": each.value, "source": each.source} for each in found}})
        return 0
    widths = [max(text.cells(text.safe(each[place])) for each in found) for place in (0, 2)]
    for each in found:
        said = f"{text.padded(text.safe(each.key), widths[0])}  {text.padded(text.safe(each.source), widths[1])}"
        value = "-" if each.value is None else json.dumps(each.value, ensure_ascii=False)
        out.print(out.clipped(f"{said}  {text.safe(value)}", out.width))
    return 0


@click.command()
@lazy.as_json
@click.pass_obj
def path(out: console.Console, as_json: bool) -> None:
    """Your file of settings. Whether it is there, and whether a project has one, is said beside it."""
    mine, theirs = config.user_file(), config.project_file(None)
    if as_json:
        out.json({"user": mine, "exists": os.path.exists(mine), "project": theirs})
        return
    out.print(text.safe(mine))
    if not os.path.exists(mine):
        out.note("It is not there yet; `holdfast config edit` makes it.")
    if theirs:
        out.note(f"This project has settings of its own: {theirs}")


@click.command()
@lazy.as_json
@click.pass_obj
def check(out: console.Console, as_json: bool) -> int:
    """Name every mistake in the files of settings, with its place; exit code 1 if there is one."""
    wrong = mistakes.everywhere()
    if as_json:
        files = [path for path in mistakes.files() if os.path.exists(path)]
        out.json({"files": files, "mistakes": [each._asdict() for each in wrong]})
    else:
        for each in wrong:
            out.print(text.safe(each))
        if not wrong:
            out.print("No mistakes found.")
    return 1 if wrong else 0


@click.command()
@click.pass_obj
def edit(out: console.Console) -> int:
    """Open a copy of your file in $VISUAL or $EDITOR. It is put back unless there is a mistake in it."""
    environ = config.environment()
    opened = editing.command(environ.get("VISUAL") or environ.get("EDITOR"))
    done = editing.edited(config.user_file(), opened)
    for each in done.mistakes:
        out.note(each)
    out.note(done.told)
    return 0 if done.put_back or done.unchanged else 1
