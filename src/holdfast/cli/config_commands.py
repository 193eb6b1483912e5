"""`holdfast config`: show, check and edit settings. These commands work with invalid settings files, too."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from typing import NamedTuple

import click

from holdfast import config, errors, safe_text
from holdfast.cli import config_check, config_origins, console, lazy_group

COMMANDS = {
    "show": ("holdfast.cli.config_commands:show", "Show every setting, its value and its source."),
    "path": ("holdfast.cli.config_commands:path", "Print the paths of the settings files."),
    "check": ("holdfast.cli.config_commands:check", "List all mistakes in the settings files."),
    "edit": ("holdfast.cli.config_commands:edit", "Edit your settings file; it is saved only if it is valid."),
}
EDITORS = ("nano", "vim", "vi")
TEMPLATE = """\
# Settings of Holdfast. `holdfast config show` lists all settings with their defaults.

# model = "anthropic/claude-sonnet-4-5"
# fallback = ["offline"]

# [limits]
# steps = 50

# [profiles.careful]
# limits = { steps = 10, cost = 0.5 }
"""


@click.group(cls=lazy_group.LazyGroup, commands_in=COMMANDS)
@click.pass_context
def command(context: click.Context) -> None:
    """Show, check and edit settings."""
    lazy_group.help_when_alone(context)


@click.command()
@lazy_group.profile
@lazy_group.as_json
@click.pass_obj
def show(out: console.Console, settings: config.Settings | None, as_json: bool) -> int:
    """Show every setting, its source and its value. Secrets are hidden."""
    flags = {"profile": "--profile"} if settings else {}
    try:
        found = config_origins.list_settings(settings or config.load(), config.environment(), flags)
    except errors.SettingInvalid as error:
        out.note(lazy_group.settings_message(error))
        return 2
    if as_json:
        out.json({"settings": {each.key: {"value": each.value, "source": each.source} for each in found}})
        return 0
    values = ["-" if each.value is None else json.dumps(each.value, ensure_ascii=False) for each in found]
    out.table(
        [tuple(map(safe_text.safe, (each.key, each.source, value))) for each, value in zip(found, values, strict=True)]
    )
    return 0


@click.command()
@lazy_group.as_json
@click.pass_obj
def path(out: console.Console, as_json: bool) -> None:
    """Print the path of your settings file, and of the project's, if there is one."""
    mine, project = config.user_file(), config.project_file(None)
    if as_json:
        out.json({"user": mine, "exists": os.path.exists(mine), "project": project})
        return
    out.print(safe_text.safe(mine))
    if not os.path.exists(mine):
        out.note("The file does not exist yet. Run `holdfast config edit` to create it.")
    if project:
        out.note(f"This project has its own settings: {project}")


@click.command()
@lazy_group.as_json
@click.pass_obj
def check(out: console.Console, as_json: bool) -> int:
    """List all mistakes in the settings files, with their lines. Exits with 1 if there are any."""
    mistakes = config_check.check_all()
    if as_json:
        files = [path for path in config_check.files() if os.path.exists(path)]
        out.json({"files": files, "mistakes": [each._asdict() for each in mistakes]})
    else:
        for each in mistakes:
            out.print(safe_text.safe(each))
        if not mistakes:
            out.print("No mistakes found.")
    return 1 if mistakes else 0


# --- edit ----------------------------------------------------------------------------------------------


@click.command()
@click.pass_obj
def edit(out: console.Console) -> int:
    """Edit a copy of your settings file with $VISUAL or $EDITOR. It is saved only if it is valid."""
    environ = config.environment()
    editor = _editor_command(environ.get("VISUAL") or environ.get("EDITOR"))
    result = _edit_file(config.user_file(), editor)
    for each in result.mistakes:
        out.note(each)
    out.note(result.message)
    return 0 if result.ok else 1


class EditResult(NamedTuple):
    message: str
    ok: bool = False
    mistakes: tuple[config_check.Mistake, ...] = ()


def _editor_command(text: str | None) -> list[str]:
    """Return the editor and its options, split without a shell. Raises SettingInvalid."""
    try:
        words = shlex.split(text or "")
    except ValueError as error:
        raise errors.SettingInvalid(f"The editor {errors.quote(text)} is invalid: {error}.") from None
    words = words or [name for name in EDITORS if shutil.which(name)][:1]
    if not words:
        raise errors.SettingInvalid(
            "No editor was found. Set EDITOR, or edit the file that `holdfast config path` prints."
        )
    return words


def _edit_file(path: str, editor: Sequence[str]) -> EditResult:
    """Let the user edit a copy, and save it if it is valid. An invalid copy is kept, so that no input is lost."""
    path = os.path.realpath(path)  # The target of a link is edited.
    before = _read(path)
    folder = tempfile.mkdtemp(prefix="holdfast-config-")
    copy = os.path.join(folder, os.path.basename(path))
    original = TEMPLATE.encode() if before is None else before
    _write(copy, original, 0o600)
    keep_copy = False
    try:
        problem = _run_editor(editor, copy)
        after = _read(copy)
        if problem is None and (after is None or after == original):
            return EditResult("Nothing was changed.", ok=True)
        keep_copy = after is not None and after != original
        kept = f" Your changes are in {copy}." if keep_copy else ""
        if problem is not None:
            return EditResult(f"{problem} {path} was not changed.{kept}")
        if mistakes := config_check.check_file(copy):
            return EditResult(f"{path} was not changed.{kept}", mistakes=tuple(mistakes))
        if _read(path) != before:
            return EditResult(f"Another process changed {path} meanwhile; it was not overwritten.{kept}")
        _replace(path, after or b"", kept)
        keep_copy = False
        return EditResult(f"Saved {path}.", ok=True)
    finally:
        if not keep_copy:
            shutil.rmtree(folder, ignore_errors=True)


def _run_editor(editor: Sequence[str], copy: str) -> str | None:
    """Run the editor; returns an error message if it failed."""
    try:
        code = subprocess.run([*editor, copy], check=False).returncode
    except OSError as error:
        return f"The editor {errors.quote(editor[0])} cannot be started: {error.strerror or error}."
    return f"The editor exited with {code}." if code else None


def _replace(path: str, data: bytes, kept: str) -> None:
    """Replace a file atomically."""
    temporary = f"{path}.{os.getpid()}"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        _write(temporary, data, os.stat(path).st_mode & 0o777 if os.path.exists(path) else 0o600)
        os.replace(temporary, path)
    except OSError as error:
        raise errors.SettingInvalid(f"{path} cannot be written: {error.strerror or error}.{kept}") from None


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise errors.SettingInvalid(f"{path} cannot be read: {error.strerror or error}.") from None


def _write(path: str, data: bytes, mode: int) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
