"""Tools of other packages are found by their entry points, and a broken package stops no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import types
from holdfast.tools import plugins, registry
from tests.support.plugin_packages import TOOL_SOURCE, install_package


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def names(found: plugins.PluginTools) -> list[str]:
    return [tool.spec.name for tool in found.tools]


async def test_function_may_return_several_tools(site: Path) -> None:
    source = TOOL_SOURCE.format(name="one") + TOOL_SOURCE.format(name="two")
    install_package(site, "several", {"a": ":every"}, source + "\n\ndef every():\n    yield one\n    yield two\n")
    found = plugins.load()
    assert (names(found), found.problems) == (["one", "two"], ())
    result = await registry.Registry(found.tools).run(types.ToolCall("x", "two", {"city": "Rome"}))
    assert result.content == "Rain in Rome"


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        ("raise RuntimeError('no luck')", ":weather", "RuntimeError: no luck"),
        ("import sys; sys.exit(3)", ":weather", "SystemExit: 3"),
        ("def weather():\n    yield 1\n    raise ValueError('in the midst')", ":weather", "in the midst"),
        ("def weather():\n    return None", ":weather", "returned NoneType instead of a tool"),
    ],
)
def test_broken_package_is_named_and_the_others_are_loaded(site: Path, source: str, target: str, reason: str) -> None:
    install_package(site, "broken-one", {"weather": target}, source)
    install_package(site, "whole", {"b": ":fine"}, TOOL_SOURCE.format(name="fine"))
    install_package(site, "sly", {"a": ":shell"}, TOOL_SOURCE.format(name="shell"))
    found = plugins.load(taken=["shell"])
    assert names(found) == ["fine"]
    problem, taken = found.problems
    assert "plug-in sly" in taken
    assert "Holdfast itself" in taken
    assert "broken-one" in problem
    assert reason in problem


@pytest.mark.parametrize("spelled", ["my-plug", "My_Plug"])
def test_disabled_package_is_not_imported(site: Path, spelled: str) -> None:
    assert plugins.load() == plugins.PluginTools()
    install_package(site, "my-plug", {"a": ":weather"}, "raise RuntimeError")
    assert plugins.load(disabled=[spelled]) == plugins.PluginTools()
