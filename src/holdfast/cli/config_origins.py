"""List every setting with its value and its source. Values that may be secret are hidden."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from holdfast import config, redaction
from holdfast.model import providers
from holdfast.store.driver import hide_password

HIDDEN = "***"
DEFAULT = "default"
VARIABLES = {"database": "HOLDFAST_DB", "model": "HOLDFAST_MODEL"}
_REFERENCE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")
_NAMES_SECRET = re.compile(r"(?i)--?[\w-]*(?:token|key|secret|passw|auth|credential)[\w-]*")

Place = tuple[str, ...]


class Value(NamedTuple):
    """A setting, its value and its source."""

    key: str
    value: Any
    source: str


def list_settings(settings: config.Settings, environ: Mapping[str, str], flags: Mapping[str, str]) -> list[Value]:
    """Return all settings. `flags` maps settings that were given on the command line to the name of the flag."""
    read = config.read(settings.user_file, config.project_file(None), settings.profile)
    found = [
        Value("home", settings.home, _variable_or_default("HOLDFAST_HOME", environ)),
        Value("profile", settings.profile, flags.get("profile") or _variable_or_default("HOLDFAST_PROFILE", environ)),
        *_list_file_settings(settings, read, environ),
    ]
    keys = ((name, settings.providers[name].key_env or DEFAULT) for name in settings.keys)
    return [*found, *(Value(f"keys.{_quoted(name)}", HIDDEN, variable) for name, variable in keys)]


def _list_file_settings(
    settings: config.Settings, read: config.LoadedFiles, environ: Mapping[str, str]
) -> Iterator[Value]:
    values = msgspec.to_builtins(read.file)
    values |= {"database": settings.database, "model": settings.model}
    values |= {name: msgspec.to_builtins(getattr(settings, name)) for name in ("backup", "retention", "gateway")}
    values["providers"] = {
        name: {"kind": each.api, "base_url": each.base_url, "key_env": each.key_env, "window": each.window}
        for name, each in settings.providers.items()
    }
    values.pop("profiles")
    for place, value in _leaves(values, ()):
        yield Value(".".join(map(_quoted, place)), _hide_secrets(place, value), _source(place, read.layers, environ))
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
