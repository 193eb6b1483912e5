"""`holdfast config`: what is set and by whom, what is wrong with it, and a way to change it.

These work with files that are wrong, too: that is when they are needed.
"""

from __future__ import annotations

import json
import os

import click

from holdfast import config, errors, safe_text
from holdfast.cli import config_check, config_edit, config_origins, console, lazy_group

COMMANDS = {
    "show": ("holdfast.cli.config_commands:show", "Every setting, its value, and where that comes from."),
    "path": ("holdfast.cli.config_commands:path", "Where the files of settings are, or would be."),
    "check": ("holdfast.cli.config_commands:check", "Name every mistake in them, with its place."),
    "edit": (
        "holdfast.cli.config_commands:edit",
        "Open your file in an editor; it is put back if nothing is wrong with it.",
    ),
}


@click.group(cls=lazy_group.LazyGroup, commands_in=COMMANDS)
@click.pass_context
def command(context: click.Context) -> None:
    """Look at settings, and change them."""
    lazy_group.help_when_alone(context)


@click.command()
@lazy_group.profile
@lazy_group.as_json
@click.pass_obj
def show(out: console.Console, settings: config.Settings | None, as_json: bool) -> int:
    """Every setting, its value, and where that comes from. Secrets are not shown."""
    flags = {"profile": "--profile"} if settings else {}
    try:
        found = config_origins.listed(settings or config.load(), config.environment(), flags)
    except errors.SettingInvalid as error:
        out.note(lazy_group.wrong_file(error))
        return 2
    if as_json:
        out.json({"settings": {each.key: {"value": each.value, "source": each.source} for each in found}})
        return 0
    widths = [max(safe_text.cells(safe_text.safe(each[place])) for each in found) for place in (0, 2)]
    for each in found:
        key, source = safe_text.safe(each.key), safe_text.safe(each.source)
        said = f"{safe_text.padded(key, widths[0])}  {safe_text.padded(source, widths[1])}"
        value = "-" if each.value is None else json.dumps(each.value, ensure_ascii=False)
        out.print(out.clipped(f"{said}  {safe_text.safe(value)}", out.width))
    return 0


@click.command()
@lazy_group.as_json
@click.pass_obj
def path(out: console.Console, as_json: bool) -> None:
    """Your file of settings. Whether it is there, and whether a project has one, is said beside it."""
    mine, theirs = config.user_file(), config.project_file(None)
    if as_json:
        out.json({"user": mine, "exists": os.path.exists(mine), "project": theirs})
        return
    out.print(safe_text.safe(mine))
    if not os.path.exists(mine):
        out.note("It is not there yet; `holdfast config edit` makes it.")
    if theirs:
        out.note(f"This project has settings of its own: {theirs}")


@click.command()
@lazy_group.as_json
@click.pass_obj
def check(out: console.Console, as_json: bool) -> int:
    """Name every mistake in the files of settings, with its place; exit code 1 if there is one."""
    wrong = config_check.everywhere()
    if as_json:
        files = [path for path in config_check.files() if os.path.exists(path)]
        out.json({"files": files, "mistakes": [each._asdict() for each in wrong]})
    else:
        for each in wrong:
            out.print(safe_text.safe(each))
        if not wrong:
            out.print("No mistakes found.")
    return 1 if wrong else 0


@click.command()
@click.pass_obj
def edit(out: console.Console) -> int:
    """Open a copy of your file in $VISUAL or $EDITOR. It is put back unless there is a mistake in it."""
    environ = config.environment()
    opened = config_edit.command(environ.get("VISUAL") or environ.get("EDITOR"))
    done = config_edit.edited(config.user_file(), opened)
    for each in done.mistakes:
        out.note(each)
    out.note(done.told)
    return 0 if done.put_back or done.unchanged else 1
