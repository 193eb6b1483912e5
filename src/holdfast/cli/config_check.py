"""Every mistake in a file of settings, each with its place. Pure, but for reading the file.

A file is refused at its first mistake; whoever mends one wants to see them all. So what is wrong is taken out of a
copy, and the rest is looked at again, until nothing wrong is left.
"""

from __future__ import annotations

import copy
import os
import re
import typing
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from holdfast import config, errors
from holdfast.model import local_server_kinds
from holdfast.tools.permissions import rules

# The model that needs no provider, by its short name and by the one it is shown with.
OFFLINE = "offline"
BUILT_IN = (OFFLINE, f"holdfast/{OFFLINE}")
_WRONG = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<where>.*)`)?", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_HEADER = re.compile(r"\s*\[+\s*([^\[\]#]+?)\s*\]+\s*(?:#.*)?")
_KEY = re.compile(r"\s*([^=#\[\]]+?)\s*=")


class Mistake(NamedTuple):
    """Something a file may not say."""

    file: str
    line: int | None
    """Where it stands, if that can be told."""
    place: str
    """The setting, as `table.name`."""
    what: str

    def __str__(self) -> str:
        line = f":{self.line}" if self.line else ""
        return f"{self.file}{line}: {f'`{self.place}`: ' if self.place else ''}{self.what}"


def files() -> list[str]:
    """The files of settings that count here: the user's, which need not be there, and that of the project."""
    mine, theirs = config.user_file(), config.project_file(None)
    return [mine, *([theirs] if theirs and os.path.realpath(theirs) != os.path.realpath(mine) else [])]


def everywhere() -> list[Mistake]:
    """All that is wrong with them, or with them together: a profile that is chosen elsewhere, and is not there."""
    mine = config.user_file()
    if wrong := [each for path in files() for each in found(path, project=path != mine)]:
        return wrong
    try:
        config.load()
    except errors.SettingInvalid as error:
        return [Mistake("HOLDFAST_PROFILE", None, "", str(error))]
    return []


def found(path: str, *, project: bool = False) -> list[Mistake]:
    """All that is wrong with this file; nothing when there is none."""
    try:
        said = config.parsed(path) if project else config.user_settings(path)
    except errors.SettingInvalid as error:
        told = str(error).removeprefix(f"{path} ").rstrip(".")
        line = re.search(r"\(at line (\d+),", told)
        return [Mistake(path, int(line[1]) if line else None, "", f"It {told}.")]
    if said is None:
        return []
    wrong = list(_of_project(said) if project else _of_user(said))
    with open(path, encoding="utf-8") as file:
        lines = _lines(file.read())
    return [Mistake(path, _line(lines, place), _dotted(place), what) for place, what in wrong]


Place = tuple[str, ...]


def _of_project(said: dict[str, Any]) -> Iterator[tuple[Place, str]]:
    for key in said:
        if key not in config.OF_PROJECT:
            yield (key,), "a project's file may not set this; set it in your own."
    yield from _of_user({key: value for key, value in said.items() if key in config.OF_PROJECT})


def _of_user(said: dict[str, Any]) -> Iterator[tuple[Place, str]]:
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(config.File)}
    named = said["providers"] if isinstance(said.get("providers"), dict) else {}
    known = list(dict.fromkeys([*config.PROVIDERS, *(kind.name for kind in local_server_kinds.KINDS), *named]))
    for key, value in said.items():
        if key not in fields:
            yield (key,), "there is no such setting."
        elif typing.get_origin(fields[key]) is dict and isinstance(value, dict):
            # Of a table of tables, the library does not tell which one it means.
            for name, inner in value.items():
                yield from _of_table(inner, typing.get_args(fields[key])[1], (key, name), known)
        else:
            yield from _of_table({key: value}, config.File, (), known)


def _of_table(said: object, kind: Any, at: Place, known: list[str]) -> Iterator[tuple[Place, str]]:
    rest = copy.deepcopy(said)
    rest = config.with_platforms(rest) if kind is config.File and isinstance(rest, dict) else rest
    while True:
        try:
            right = msgspec.convert(rest, kind)
            break
        except msgspec.ValidationError as error:
            place, what = _told(str(error))
            yield (*at, *place), what
            if not _taken_out(rest, place):
                return
    if isinstance(right, config.File | config.Profile):
        yield from (((*at, *place), what) for place, what in _of_meaning(right, known))


def _of_meaning(right: config.File | config.Profile, known: list[str]) -> Iterator[tuple[Place, str]]:
    """What has the right form and cannot be meant all the same."""
    named = [(("model",), right.model), (("compaction", "model"), right.compaction.model)]
    for place, name in [*named, *((("fallback",), name) for name in right.fallback)]:
        provider, slash, bare = (name or OFFLINE).partition("/")
        if name is not None and name not in BUILT_IN and not (slash and bare and provider in known):
            yield place, f"{errors.shown(name)} names no model. Providers: {', '.join(known)}; or `{OFFLINE}`."
    says: tuple[rules.Say, ...] = ("allow", "ask", "deny")
    for say in says:
        for rule in getattr(right.permissions, say):
            try:
                rules.rule(say, rule)
            except errors.SettingInvalid as error:
                yield ("permissions", say), str(error)
    if isinstance(right, config.File) and right.retention.max_size is not None:
        try:
            config.size(right.retention.max_size)
        except errors.SettingInvalid as error:
            yield ("retention", "max_size"), str(error)
    if isinstance(right, config.File) and (wrong := right.gateway.find_problem()) is not None:
        yield ("gateway", *wrong[0]), wrong[1]


def _told(said: str) -> tuple[Place, str]:
    """The place and the words of what the library says."""
    parts = _WRONG.fullmatch(said)
    what, where = (parts["what"], parts["where"] or "") if parts else (said, "")
    place = tuple(part for part in where.partition("[")[0].split(".") if part)
    unknown = _UNKNOWN.fullmatch(what)
    if unknown:
        return (*place, unknown[1]), "there is no such setting."
    return place, f"{what[:1].lower()}{what[1:].rstrip('.')}."


def _taken_out(said: object, place: Place) -> bool:
    """Whether what was wrong could be removed, so that there is something else to look at."""
    for key in place[:-1]:
        said = said.get(key) if isinstance(said, dict) else None
    return isinstance(said, dict) and bool(place) and said.pop(place[-1], said) is not said


# --- where it stands -----------------------------------------------------------------------------------


def _lines(text: str) -> dict[str, int]:
    """The line of each table and setting that begins one."""
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
    """That of the setting, else that of the table it is in."""
    for length in range(len(place), 0, -1):
        if (line := lines.get(".".join(place[:length]))) is not None:
            return line
    return None


def _plain(key: str) -> str:
    return re.sub(r"[\"'\s]", "", key)


def _dotted(place: Place) -> str:
    return ".".join(part if re.fullmatch(r"[\w-]+", part) else f'"{part}"' for part in place)
