"""`holdfast config`: show, check and edit settings. These commands work with invalid settings files, too."""

from __future__ import annotations

import json
import os
import pathlib
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import click
import msgspec

from holdfast import config, errors, redaction, safe_text
from holdfast.cli import config_check, console, lazy_group
from holdfast.model import providers
from holdfast.store.driver import hide_password

HIDDEN = "***"
DEFAULT = "default"
VARIABLES = {"database": "HOLDFAST_DB", "model": "HOLDFAST_MODEL"}
_REFERENCE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")
_NAMES_SECRET = re.compile(r"(?i)--?[\w-]*(?:token|key|secret|passw|auth|credential)[\w-]*")

Place = tuple[str, ...]
COMMANDS = {
    "show": ("holdfast.cli.config_commands:show", "Show every setting, its value and its source."),
    "path": ("holdfast.cli.config_commands:path", "Print the paths of the settings files."),
    "check": ("holdfast.cli.config_commands:check", "List all mistakes in the settings files."),
    "edit": ("holdfast.cli.config_commands:edit", "Edit your settings file; it is saved only if it is valid."),
}
TEMPLATE = """\
# Settings of Holdfast. `holdfast config show` lists all settings with their defaults.

# model = "anthropic/claude-sonnet-4-5"
# fallback = ["offline"]

# [limits]
# steps = 50

# [profiles.careful]
# limits = { steps = 10, cost = 0.5 }
"""
command = lazy_group.group("Show, check and edit settings.", COMMANDS)


@click.command()
@lazy_group.profile
@lazy_group.as_json
@click.pass_obj
def show(out: console.Console, settings: config.Settings | None, as_json: bool) -> int:
    """Show every setting, its source and its value. Secrets are hidden."""
    flags = {"profile": "--profile"} if settings else {}
    try:
        found = _list_settings(settings or config.load(), config.environment(), flags)
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
    path = pathlib.Path(config.user_file()).resolve()  # The target of a link is edited.
    draft, base = path.with_suffix(".draft.toml"), path.with_suffix(".draft.base")
    try:
        before = path.read_bytes() if path.exists() else None
        original = TEMPLATE.encode() if before is None else before
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A draft is continued only if it was made from the current content of the file.
        if draft.exists() and not (base.exists() and base.read_bytes() == original):
            out.note(f"{path} has changed since the draft was made. The draft was renamed to {_rename_dated(draft)}.")
        if not draft.exists():
            write_private(base, original)
            write_private(draft, original)
        problem = _run_editor(str(draft))
        if not draft.exists() or draft.read_bytes() == original:
            draft.unlink(missing_ok=True)
            base.unlink(missing_ok=True)
            out.note(f"{problem} {path} was not changed." if problem else "Nothing was changed.")
            return 1 if problem else 0
        mistakes = [] if problem else config_check.check_file(str(draft))
        if before != (path.read_bytes() if path.exists() else None):
            kept = _rename_dated(draft)
            out.note(f"Another process changed {path}, so it was not overwritten. Your changes are in {kept}.")
            return 1
        if not problem and not mistakes:
            draft.chmod(0o600 if before is None else path.stat().st_mode & 0o777)
            draft.replace(path)
            base.unlink(missing_ok=True)
            out.note(f"Saved {path}.")
            return 0
    except OSError as error:
        raise errors.SettingInvalid(f"{path} cannot be edited: {error.strerror or error}.") from None
    for mistake in mistakes:
        out.note(mistake)
    reason = f"{problem} " if problem else ""
    out.note(f"{reason}{path} was not changed. Your changes are in {draft}: `holdfast config edit` continues them.")
    return 1


def write_private(path: pathlib.Path, data: bytes) -> None:
    """Write a file with mode 0600, completely or not at all."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise


def _rename_dated(draft: pathlib.Path) -> pathlib.Path:
    """Rename a draft to config.draft-DATE.toml, so that nothing overwrites it; return the new path."""
    kept = draft.with_stem(f"{draft.stem}-{time.strftime('%Y%m%d-%H%M%S')}")
    while kept.exists():
        kept = kept.with_stem(f"{kept.stem}-2")
    return draft.rename(kept)


def _run_editor(path: str) -> str | None:
    """Let the user edit the file; returns an error message if the editor failed."""
    environ = config.environment()
    name = environ.get("VISUAL") or environ.get("EDITOR")
    try:
        click.edit(filename=path)
    except (click.ClickException, ValueError) as error:
        if not name and isinstance(error.__cause__, OSError):
            return "No editor was found. Set EDITOR, or edit the file that `holdfast config path` prints."
        return f"The editor {name} failed." if name else "The editor failed."
    return None


# --- settings and their sources ------------------------------------------------------------------------


class SettingOrigin(NamedTuple):
    """A setting, its value and its source."""

    key: str
    value: Any
    source: str


def _list_settings(
    settings: config.Settings, environ: Mapping[str, str], flags: Mapping[str, str]
) -> list[SettingOrigin]:
    """Return all settings. `flags` maps settings that were given on the command line to the name of the flag."""
    read = config.read(settings.user_file, config.project_file(None), settings.profile)
    found = [
        SettingOrigin("home", settings.home, _variable_or_default("HOLDFAST_HOME", environ)),
        SettingOrigin(
            "profile", settings.profile, flags.get("profile") or _variable_or_default("HOLDFAST_PROFILE", environ)
        ),
        *_list_file_settings(settings, read, environ),
    ]
    keys = ((name, settings.providers[name].key_env or DEFAULT) for name in settings.keys)
    return [*found, *(SettingOrigin(f"keys.{_quoted(name)}", HIDDEN, variable) for name, variable in keys)]


def _list_file_settings(
    settings: config.Settings, read: config.LoadedFiles, environ: Mapping[str, str]
) -> Iterator[SettingOrigin]:
    values = msgspec.to_builtins(read.file)
    values |= {"database": settings.database, "model": settings.model}
    values |= {name: msgspec.to_builtins(getattr(settings, name)) for name in ("backup", "retention", "gateway")}
    values["providers"] = {
        name: {"kind": each.api, "base_url": each.base_url, "key_env": each.key_env or None, "window": each.window}
        for name, each in settings.providers.items()
    }
    values.pop("profiles")
    for place, value in _leaves(values, ()):
        yield SettingOrigin(
            ".".join(map(_quoted, place)), _hide_secrets(place, value), _source(place, read.layers, environ)
        )
    for name in read.file.profiles:
        yield SettingOrigin(
            f"profiles.{_quoted(name)}", "chosen" if name == settings.profile else "not chosen", read.files[0]
        )


def _leaves(value: Any, at: Place) -> Iterator[tuple[Place, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*at, key))
    else:
        yield at, value


def _source(place: Place, layers: tuple[config.Layer, ...], environ: Mapping[str, str]) -> str:
    variable = VARIABLES.get(".".join(place), "")
    if place[0] == "providers" and place[2:] == ("base_url",):
        known = providers.PROVIDERS.get(place[1])
        variable = known.base_url_env if known else ""
    if environ.get(variable):
        return variable
    names = [layer.name for layer in layers if _has(layer.values, place)]
    # Permissions of all layers apply; of other settings, that of the first layer.
    return (" and ".join(names) if place[0] == "permissions" else names[0]) if names else DEFAULT


def _has(values: Any, place: Place) -> bool:
    for key in place:
        if not isinstance(values, dict) or key not in values:
            return False
        values = values[key]
    return True


def _variable_or_default(variable: str, environ: Mapping[str, str]) -> str:
    return variable if environ.get(variable) else DEFAULT


# --- secrets ---------------------------------------------------------------------------------


def _hide_secrets(place: Place, value: Any) -> Any:
    if place == ("database",):
        return hide_password(str(value))
    if place[0] == "mcpServers" and len(place) > 3 and place[2] in ("env", "headers"):
        return value if isinstance(value, str) and _REFERENCE.fullmatch(value) else HIDDEN
    if isinstance(value, list):
        return [_hide_argument(value, number) for number in range(len(value))]
    return redaction.redact(value, HIDDEN) if isinstance(value, str) else value


def _hide_argument(values: list[Any], number: int) -> Any:
    """Return an item of a list, hidden if it follows the name of a secret."""
    value, before = values[number], values[number - 1] if number else ""
    if not isinstance(value, str) or _REFERENCE.fullmatch(value):
        return value
    if isinstance(before, str) and _NAMES_SECRET.fullmatch(before):
        return HIDDEN
    name, sign, _ = value.partition("=")
    if sign and _NAMES_SECRET.fullmatch(name):
        return f"{name}={HIDDEN}"
    return redaction.redact(value, HIDDEN)


def _quoted(key: str) -> str:
    return key if re.fullmatch(r"[\w-]+", key) else f'"{key}"'
