"""Tools of other packages: what is installed beside Holdfast and says so by an entry point.

An entry point of the group `holdfast.tools` names a tool, or a function that returns one or several. It is code of
whoever installed it, and runs with all our rights. Whatever is wrong with one is said, and keeps nobody from working.
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


class Found(msgspec.Struct, frozen=True):
    """The tools of all packages, and a sentence for each thing that is wrong with one."""

    tools: tuple[base.Tool, ...] = ()
    problems: tuple[str, ...] = ()


def load(taken: Collection[str] = (), disabled: Iterable[str] = ()) -> Found:
    """The tools of what is installed, in the order of packages and names; those of `disabled` packages are left out.

    A name that is `taken`, by us or by a package before it, is refused. Nothing is raised.
    """
    unwanted = set(map(_plain, disabled))
    owners = dict.fromkeys(taken, "Holdfast itself")
    tools: list[base.Tool] = []
    problems: list[str] = []
    for entry in _entries():
        package = entry.dist.name if entry.dist else entry.value
        if _plain(package) in unwanted:
            continue
        try:
            given = _given(entry)
        except (Exception, SystemExit) as error:
            # It is anybody's code: whatever it does, the agent starts.
            logger.exception("the plug-in %s of %s failed", entry.name, package)
            problems.append(f"The plug-in {package} ({entry.name}) could not be loaded: {_sentence(error)}")
            continue
        for tool in given:
            problem = _problem(tool, owners, package)
            if problem:
                problems.append(problem)
            elif isinstance(tool, base.Tool):
                owners[tool.spec.name] = package
                tools.append(known(tool))
    return Found(tuple(tools), tuple(problems))


def _entries() -> list[metadata.EntryPoint]:
    found = metadata.entry_points(group=GROUP)
    return sorted(found, key=lambda entry: (entry.dist.name if entry.dist else "", entry.name, entry.value))


def _given(entry: metadata.EntryPoint) -> list[object]:
    made = entry.load()
    if callable(made) and not isinstance(made, base.Tool):
        made = made()
    if isinstance(made, Iterable) and not isinstance(made, str | bytes | dict):
        return list(made)
    return [made]


def _problem(tool: object, owners: dict[str, str], package: str) -> str:
    if not isinstance(tool, base.Tool):
        return f"The plug-in {package} gave {type(tool).__name__} instead of a tool."
    name = tool.spec.name
    if not decorator.NAME.fullmatch(name):
        return f"The plug-in {package} has a tool with an impossible name, {errors.quote(name)}; it is left out."
    if name in owners:
        return f"The plug-in {package} has a tool called {name}, which is the name of one of {owners[name]}; left out."
    return ""


def known(tool: base.Tool) -> base.Tool:
    """What nobody knows to change nothing is taken to change something."""
    return tool if tool.parallel else msgspec.structs.replace(tool, alters=lambda _: True)


def _plain(package: str) -> str:
    """The name of a package, as all spellings of it are one."""
    return re.sub(r"[-_.]+", "-", package).lower()


def _sentence(error: BaseException) -> str:
    said = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {said}." if said else f"{type(error).__name__}."
