"""Load platforms of other packages: entry points of the group `holdfast.platforms`.

The name of the entry point is the name of the platform and of its settings table `[gateway.NAME]`. It refers to a
function that takes a `platform.PlatformContext` and returns a `platform.Platform`. The code is trusted: it runs with
all rights of the gateway. A platform that cannot be loaded stops the start, because its users would wait for replies.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from importlib import metadata, util
from typing import Any

import msgspec

from holdfast import errors, installation
from holdfast.gateway import platform, settings

BUILT_IN = {
    "http": platform.SetupGuide(
        [
            platform.SetupField(
                "tokens.me",
                "Token",
                "Clients send this token as their API key. It needs at least 16 characters.",
                variable="HOLDFAST_HTTP_TOKEN",
                generated=True,
            )
        ],
        test_message=False,
        last_step="Point an OpenAI-compatible client at the address that it prints, with the token as the API key.",
    ),
    "loopback": platform.SetupGuide(
        [
            platform.SetupField(
                "socket", "Socket", "The path of a Unix socket, relative to the settings file.", default="gateway.sock"
            )
        ],
        test_message=False,
        last_step='Write {"text": "Hello"} to the socket.',
    ),
}
"""The setup guides of platforms that are not plug-ins."""


def list_platforms() -> dict[str, str]:
    """Return the names of all platforms, each with the command that installs its missing extra, or an empty text."""
    entries = metadata.entry_points(group=settings.PLUGIN_GROUP)
    return dict.fromkeys(BUILT_IN, "") | {
        name: installation.install_command(name) if _lacks_extra(name) else "" for name in sorted(entries.names)
    }


def load_guide(name: str) -> platform.SetupGuide:
    """Return the setup guide of a platform. Raises SettingInvalid."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    entry = _find_entry(name)
    if _lacks_extra(name):
        raise errors.SettingInvalid(
            f"The support for {name} is not installed. Run: {installation.install_command(name)}"
        )
    try:
        entry.load()
    except Exception as error:
        # The border to code of another package.
        raise errors.SettingInvalid(f"{name} could not be loaded: {type(error).__name__}: {error}") from error
    found = getattr(sys.modules[entry.module], "SETUP", None)
    if not isinstance(found, platform.SetupGuide):
        raise errors.SettingInvalid(f"{name} has no setup guide. Follow the documentation of its package.")
    return found


def _lacks_extra(name: str) -> bool:
    return name in installation.EXTRAS and util.find_spec(installation.EXTRAS[name]) is None


def _find_entry(name: str) -> metadata.EntryPoint:
    entries = list(metadata.entry_points(group=settings.PLUGIN_GROUP, name=name))
    if len(entries) != 1:
        packages = ", ".join(sorted(entry.dist.name if entry.dist else entry.value for entry in entries)) or "none"
        raise errors.SettingInvalid(
            f"gateway.{name}: exactly one package must provide this platform; found {packages}."
        )
    return entries[0]


def load(tables: Mapping[str, Mapping[str, Any]], secrets: Mapping[str, str]) -> list[platform.Platform]:
    """Return the platforms of these settings tables. Raises SettingInvalid."""
    return [_load(name, table, secrets) for name, table in tables.items()]


def _load(name: str, table: Mapping[str, Any], secrets: Mapping[str, str]) -> platform.Platform:
    entry = _find_entry(name)
    variables = {key: value for key, value in table.items() if key.endswith("_env")}
    for key, variable in variables.items():
        if not isinstance(variable, str) or not settings.VARIABLE.fullmatch(variable):
            raise errors.SettingInvalid(
                f"gateway.{name}: `{key}` must be the name of an environment variable, not the secret."
            )
        if variable not in secrets:
            # A value that is not in capitals may be a secret, too.
            named = variable if variable.isupper() else f"that `{key}` names"
            raise errors.SettingInvalid(
                f"gateway.{name}: the environment variable {named} is not set. Add it to gateway.env next to "
                f"the settings file, or run: holdfast gateway setup {name}"
            )
    context = platform.PlatformContext(name, table, {each: secrets[each] for each in variables.values()})
    try:
        made = entry.load()(context)
    except (errors.SettingInvalid, msgspec.ValidationError) as error:
        what = re.sub(r"Object missing required field (`\w+`)", r"\1 is required.", str(error))
        raise errors.SettingInvalid(f"gateway.{name}: {what}") from None
    except Exception as error:
        # The border to code of another package.
        raise errors.SettingInvalid(f"gateway.{name}: could not be loaded: {type(error).__name__}: {error}") from error
    if getattr(made, "name", None) != name or not callable(getattr(made, "send", None)):
        raise errors.SettingInvalid(f"gateway.{name}: {entry.value} did not return a platform of this name.")
    found: platform.Platform = made
    return found
