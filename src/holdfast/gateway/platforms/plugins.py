"""Load platforms of other packages: entry points of the group `holdfast.platforms`.

The name of the entry point is the name of the platform and of its settings table `[gateway.NAME]`. It refers to a
function that takes a `platform.PlatformContext` and returns a `platform.Platform`. The code is trusted: it runs with
all rights of the gateway. A platform that cannot be loaded stops the start, because its users would wait for replies.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Any

import msgspec

from holdfast import errors
from holdfast.gateway import platform, settings


def load(tables: Mapping[str, Mapping[str, Any]], secrets: Mapping[str, str]) -> list[platform.Platform]:
    """Return the platforms of these settings tables. Raises SettingInvalid."""
    return [_load(name, table, secrets) for name, table in tables.items()]


def _load(name: str, table: Mapping[str, Any], secrets: Mapping[str, str]) -> platform.Platform:
    entries = list(metadata.entry_points(group=settings.PLUGIN_GROUP, name=name))
    if len(entries) != 1:
        packages = ", ".join(sorted(entry.dist.name if entry.dist else entry.value for entry in entries)) or "none"
        raise errors.SettingInvalid(
            f"gateway.{name}: exactly one package must provide this platform; found {packages}."
        )
    variables = [value for key, value in table.items() if key.endswith("_env")]
    for variable in variables:
        if variable not in secrets:
            raise errors.SettingInvalid(f"gateway.{name}: the environment variable {variable} is not set.")
    context = platform.PlatformContext(name, table, {each: secrets[each] for each in variables})
    try:
        made = entries[0].load()(context)
    except (errors.SettingInvalid, msgspec.ValidationError) as error:
        raise errors.SettingInvalid(f"gateway.{name}: {error}") from None
    except Exception as error:
        # The border to code of another package.
        raise errors.SettingInvalid(f"gateway.{name}: could not be loaded: {type(error).__name__}: {error}") from error
    if getattr(made, "name", None) != name or not callable(getattr(made, "send", None)):
        raise errors.SettingInvalid(f"gateway.{name}: {entries[0].value} did not return a platform of this name.")
    found: platform.Platform = made
    return found
