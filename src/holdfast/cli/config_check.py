"""Find all mistakes in a settings file, with their lines.

msgspec stops at the first invalid value. To find all, each invalid value is removed from a copy, which is then
validated again.
"""

from __future__ import annotations

import copy
import os
import re
import typing
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import msgspec

from holdfast import config, errors
from holdfast.model import providers

_HEADER = re.compile(r"\s*\[+\s*([^\[\]#]+?)\s*\]+\s*(?:#.*)?")
_KEY = re.compile(r"\s*([^=#\[\]]+?)\s*=")


class Mistake(NamedTuple):
    """An invalid setting in a file."""

    file: str
    line: int | None
    """None if it is unknown."""
    place: str
    """The setting, as `table.name`."""
    what: str

    def __str__(self) -> str:
        line = f":{self.line}" if self.line else ""
        return f"{self.file}{line}: {f'`{self.place}`: ' if self.place else ''}{self.what}"


def files() -> list[str]:
    """Return the path of the user's settings file, which may not exist, and of the project's, if there is one."""
    mine, project = config.user_file(), config.project_file(None)
    return [mine, *([project] if project and os.path.realpath(project) != os.path.realpath(mine) else [])]


def check_all() -> list[Mistake]:
    """Return the mistakes in all settings files, or the one in HOLDFAST_PROFILE."""
    mine = config.user_file()
    if mistakes := [each for path in files() for each in check_file(path, project=path != mine)]:
        return mistakes
    try:
        config.load()
    except errors.SettingInvalid as error:
        return [Mistake("HOLDFAST_PROFILE", None, "", str(error))]
    return []


def check_file(path: str, *, project: bool = False) -> list[Mistake]:
    """Return all mistakes in a file; none if it does not exist."""
    try:
        values = config.parse_file(path) if project else config.read_user_file(path)
    except errors.SettingInvalid as error:
        message = str(error).removeprefix(f"{path} ").rstrip(".")
        line = re.search(r"\(at line (\d+),", message)
        return [Mistake(path, int(line[1]) if line else None, "", f"The file {message}.")]
    if values is None:
        return []
    wrong = list(_check_project(values) if project else _check_user(values))
    with open(path, encoding="utf-8") as file:
        lines = _lines(file.read())
    return [Mistake(path, _line(lines, place), _dotted(place), what) for place, what in wrong]


Place = tuple[str, ...]


def _check_project(values: dict[str, Any]) -> Iterator[tuple[Place, str]]:
    for key in values.keys() - config.PROJECT_KEYS:
        yield (key,), "a project's file may not set this; set it in your own file."
    yield from _check_user({key: value for key, value in values.items() if key in config.PROJECT_KEYS})


def _check_user(values: dict[str, Any]) -> Iterator[tuple[Place, str]]:
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(config.SettingsFile)}
    named = values["providers"] if isinstance(values.get("providers"), dict) else {}
    for key, value in values.items():
        if typing.get_origin(fields.get(key)) is dict and isinstance(value, dict):
            # msgspec does not report the key of a table within a table.
            for name, inner in value.items():
                yield from _check_table(inner, typing.get_args(fields[key])[1], (key, name), named)
        else:
            yield from _check_table({key: value}, config.SettingsFile, (), named)


def _check_table(values: object, kind: Any, at: Place, named: Collection[str]) -> Iterator[tuple[Place, str]]:
    rest = copy.deepcopy(values)
    rest = config.with_platforms(rest) if kind is config.SettingsFile and isinstance(rest, dict) else rest
    while True:
        try:
            valid = msgspec.convert(rest, kind)
            break
        except msgspec.ValidationError as error:
            place, what = config.parse_error(str(error))
            yield (*at, *place), what
            # If a table's name is not known, all tables of this kind are removed.
            if not _remove(rest, place[: place.index("*")] if "*" in place else place):
                return
    if isinstance(valid, config.ProfileSection):
        problems = (*_check_models(valid, named), *config.find_problems(valid))
        yield from (((*at, *place), what) for place, what in problems)


def _check_models(valid: config.ProfileSection, named: Collection[str]) -> Iterator[tuple[Place, str]]:
    models = [(("model",), valid.model), (("compaction", "model"), valid.compaction.model)]
    for place, name in [*models, *((("fallback",), name) for name in valid.fallback)]:
        provider, _, bare = (name or "").partition("/")
        is_known = provider in providers.PROVIDERS or provider in named
        if name not in (None, providers.OFFLINE, providers.OFFLINE_NAME) and not (bare and is_known):
            known = ", ".join(dict.fromkeys([*providers.PROVIDERS, *named]))
            yield place, f"{errors.quote(name)} is not a model. Use PROVIDER/MODEL ({known}) or `offline`."


def _remove(values: object, place: Place) -> bool:
    """Remove a value; returns whether it was there."""
    for key in place[:-1]:
        values = values.get(key) if isinstance(values, dict) else None
    return isinstance(values, dict) and bool(place) and values.pop(place[-1], values) is not values


# --- lines -----------------------------------------------------------------------------------


def _lines(text: str) -> dict[str, int]:
    """Return the line number of each table and setting."""
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.fullmatch(line):
            table = _plain(header[1])
            lines.setdefault(table, number)
        elif key := _KEY.match(line):
            lines.setdefault(f"{table}.{_plain(key[1])}".lstrip("."), number)
    return lines


def _line(lines: dict[str, int], place: Place) -> int | None:
    """Return the line of a setting, or of its table."""
    for length in range(len(place), 0, -1):
        if (line := lines.get(".".join(place[:length]))) is not None:
            return line
    return None


def _plain(key: str) -> str:
    return re.sub(r"[\"'\s]", "", key)


def _dotted(place: Place) -> str:
    return ".".join(part if re.fullmatch(r"[\w-]+|\*", part) else f'"{part}"' for part in place)
