"""Tools of other installed packages, found by their entry points.

An entry point of the group `holdfast.tools` names a tool, or a function that returns one or several. Its code has all
rights of this program. A faulty package is reported, and does not prevent the program from starting.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable
from importlib import metadata

import msgspec

from holdfast import errors
from holdfast.tools import base, decorator

logger = logging.getLogger("holdfast.tools")

GROUP = "holdfast.tools"


class PluginTools(msgspec.Struct, frozen=True):
    """The tools of all packages, and a sentence for each problem."""

    tools: tuple[base.Tool, ...] = ()
    problems: tuple[str, ...] = ()


def load(taken: Collection[str] = (), disabled: Iterable[str] = ()) -> PluginTools:
    """Return the tools of installed packages in the order of packages and names, without `disabled` packages.

    A tool whose name is `taken`, or is that of an earlier package, is left out. Raises nothing.
    """
    unwanted = set(map(_normalize, disabled))
    owners = dict.fromkeys(taken, "Holdfast itself")
    tools: list[base.Tool] = []
    problems: list[str] = []
    for entry in _entry_points():
        package = entry.dist.name if entry.dist else entry.value
        if _normalize(package) in unwanted:
            continue
        try:
            given = _load_tools(entry)
        except (Exception, SystemExit) as error:
            # A border: the code of a plug-in may raise anything.
            logger.exception("the plug-in %s of %s failed", entry.name, package)
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}".rstrip(": ")
            problems.append(f"The plug-in {package} ({entry.name}) could not be loaded: {reason}.")
            continue
        for tool in given:
            if problem := _find_problem(tool, owners, package):
                problems.append(problem)
            elif isinstance(tool, base.Tool):
                owners[tool.spec.name] = package
                tools.append(assume_changes(tool))
    return PluginTools(tuple(tools), tuple(problems))


def _entry_points() -> list[metadata.EntryPoint]:
    found = metadata.entry_points(group=GROUP)
    return sorted(found, key=lambda entry: (entry.dist.name if entry.dist else "", entry.name, entry.value))


def _load_tools(entry: metadata.EntryPoint) -> list[object]:
    loaded = entry.load()
    if callable(loaded) and not isinstance(loaded, base.Tool):
        loaded = loaded()
    if isinstance(loaded, Iterable) and not isinstance(loaded, str | bytes | dict):
        return list(loaded)
    return [loaded]


def _find_problem(tool: object, owners: dict[str, str], package: str) -> str:
    if not isinstance(tool, base.Tool):
        return f"The plug-in {package} returned {type(tool).__name__} instead of a tool."
    name = tool.spec.name
    if not decorator.NAME.fullmatch(name):
        return f"The plug-in {package} has a tool with an invalid name, {errors.quote(name)}; it is left out."
    if name in owners:
        return f"The plug-in {package} has a tool {name}, a name that {owners[name]} uses already; it is left out."
    return ""


def assume_changes(tool: base.Tool) -> base.Tool:
    """Mark a tool as one that changes something, unless it may run in parallel."""
    return tool if tool.parallel else msgspec.structs.replace(tool, alters=lambda _: True)


def _normalize(package: str) -> str:
    """Return the normalized name of a package."""
    return re.sub(r"[-_.]+", "-", package).lower()
