"""Change single values in the user's settings file and in `gateway.env`. Everything else stays as it is."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

import tomlkit
from tomlkit import exceptions

from holdfast import config, errors

Place = tuple[str, ...]


def set_values(text: str, values: Mapping[Place, Any]) -> str:
    """Return a TOML text with these values; None removes one. New settings follow the header of their table.

    Raises SettingInvalid.
    """
    document = tomlkit.parse(text)
    wanted: dict[str, Any] = document.unwrap()
    added: dict[Place, dict[str, Any]] = {}
    try:
        for place, value in values.items():
            table, key = _find_table(document, place[:-1]), place[-1]
            if value is None:
                for each in (table, _find_table(wanted, place[:-1])):
                    each.pop(key, None)
                continue
            if key not in table:
                added.setdefault(place[:-1], {})[key] = value
            elif isinstance(table[key], list) and value[: len(table[key])] == table[key]:
                table[key].extend(value[len(table[key]) :])  # This keeps comments within the list.
            elif table[key] != value:
                table[key] = value
            _set(wanted, place, value)
        changed = tomlkit.dumps(document)
        for place, table in added.items():
            changed = _add_values(changed, place, tomlkit.dumps(table))
        is_right = tomlkit.parse(changed).unwrap() == wanted
    except (exceptions.TOMLKitError, TypeError, ValueError):
        is_right = False
    if not is_right:
        raise errors.SettingInvalid("The tables of the file cannot be changed automatically.")
    config.validate(wanted)
    return changed


def _find_table(document: Any, place: Place) -> Any:
    for key in place:
        document = document.get(key, {})
    return document


def _add_values(text: str, place: Place, lines: str) -> str:
    """Add settings to a table, or a new table to the end of the text."""
    # tomlkit would add them after the comments that precede the next table.
    name = r"\s*\.\s*".join(map(re.escape, place))
    header = re.compile(rf"^[ \t]*\[\s*{name}\s*\][^\n]*\n?", re.MULTILINE)
    if found := header.search(text):
        before = found[0] if found[0].endswith("\n") else f"{found[0]}\n"
        return f"{text[: found.start()]}{before}{lines}{text[found.end() :]}"
    before = f"{text.rstrip()}\n\n" if text.strip() else ""
    return f"{before}[{'.'.join(place)}]\n{lines}"


def _set(values: dict[str, Any], place: Place, value: Any) -> None:
    for key in place[:-1]:
        values = values.setdefault(key, {})
    values[place[-1]] = value


def set_variables(text: str, values: Mapping[str, str]) -> str:
    """Return the text of a file of variables with these values."""
    lines = text.splitlines()
    for name, value in values.items():
        found = re.compile(rf"\s*(export\s+)?{re.escape(name)}\s*=")
        lines = [each for each in lines if not found.match(each)] + [f"{name}={shlex.quote(value)}"]
    return "\n".join(lines) + "\n"
