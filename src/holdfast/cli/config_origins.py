"""Every setting with its value, and where that comes from. What may be secret is never among the values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from holdfast import config, redaction
from holdfast.store.driver import hide_password

HIDDEN = "***"
DEFAULT = "default"
VARIABLES = {"database": "HOLDFAST_DB", "model": "HOLDFAST_MODEL"}
_REFERENCE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")
_NAMES_SECRET = re.compile(r"(?i)--?[\w-]*(?:token|key|secret|passw|auth|credential)[\w-]*")

Place = tuple[str, ...]


class Value(NamedTuple):
    """A setting."""

    key: str
    value: Any
    source: str


def listed(settings: config.Settings, environ: Mapping[str, str], flags: Mapping[str, str]) -> list[Value]:
    """All of them; `flags` are the settings that a flag gave, and its name."""
    read = config.read(settings.user_file, config.project_file(None), settings.profile)
    found = [
        Value("home", settings.home, "HOLDFAST_HOME" if environ.get("HOLDFAST_HOME") else DEFAULT),
        Value("profile", settings.profile, flags.get("profile") or _of("HOLDFAST_PROFILE", environ)),
        *_of_file(settings, read, environ),
    ]
    keys = ((name, settings.providers[name].key_env or DEFAULT) for name in settings.keys)
    return [*found, *(Value(f"keys.{_quoted(name)}", HIDDEN, variable) for name, variable in keys)]


def _of_file(settings: config.Settings, read: config.LoadedFiles, environ: Mapping[str, str]) -> Iterator[Value]:
    said = msgspec.to_builtins(read.file)
    said |= {"database": settings.database, "model": settings.model}
    counted = ("backup", "retention", "gateway", "providers")
    said |= {name: msgspec.to_builtins(getattr(settings, name)) for name in counted}
    said.pop("profiles")
    for place, value in _leaves(said, ()):
        yield Value(".".join(map(_quoted, place)), _shown(place, value), _source(place, read.layers, environ))
    for name in read.file.profiles:
        yield Value(f"profiles.{_quoted(name)}", "chosen" if name == settings.profile else "not chosen", read.files[0])


def _leaves(value: Any, at: Place) -> Iterator[tuple[Place, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*at, key))
    else:
        yield at, value


def _source(place: Place, layers: tuple[config.Layer, ...], environ: Mapping[str, str]) -> str:
    variable = VARIABLES.get(".".join(place), "")
    if place[0] == "providers" and place[2:] == ("base_url",):
        variable = config.ADDRESSES.get(place[1], "")
    if environ.get(variable):
        return variable
    saying = [layer.name for layer in layers if _says(layer.said, place)]
    # Permissions add up; of all else, the first that says it counts.
    return (" and ".join(saying) if place[0] == "permissions" else saying[0]) if saying else DEFAULT


def _says(said: Any, place: Place) -> bool:
    for key in place:
        if not isinstance(said, dict) or key not in said:
            return False
        said = said[key]
    return True


def _of(variable: str, environ: Mapping[str, str]) -> str:
    return variable if environ.get(variable) else DEFAULT


# --- what may be shown ---------------------------------------------------------------------------------


def _shown(place: Place, value: Any) -> Any:
    if place == ("database",):
        return hide_password(str(value))
    if place[0] == "mcpServers" and len(place) > 3 and place[2] in ("env", "headers"):
        return value if isinstance(value, str) and _REFERENCE.fullmatch(value) else HIDDEN
    if isinstance(value, list):
        return [_argument(value, number) for number in range(len(value))]
    return redaction.redact(value, HIDDEN) if isinstance(value, str) else value


def _argument(values: list[Any], number: int) -> Any:
    """One of a list; what stands behind the name of a secret is one."""
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
