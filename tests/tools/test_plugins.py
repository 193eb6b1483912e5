"""Tools of other packages: found by their entry points, and whatever is wrong with one stops nobody."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import types
from holdfast.tools import plugins, registry

TOOL = '''
from holdfast import tool


@tool
def {name}(city: str) -> str:
    """Tells the weather."""
    return "Rain in " + city
'''


def installed(folder: Path, package: str, points: dict[str, str], source: str) -> str:
    """A package with one module, as an installer would have left it there; the name of its module."""
    module = f"plug_{package.replace('-', '_')}_{folder.name.replace('-', '_')}"
    (folder / f"{module}.py").write_text(source, "utf-8")
    info = folder / f"{package.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", "utf-8")
    lines = "".join(f"{name} = {module}{target}\n" for name, target in points.items())
    (info / "entry_points.txt").write_text(f"[{plugins.GROUP}]\n{lines}", "utf-8")
    return module


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("plug_"):
            del sys.modules[name]


def names(found: plugins.PluginTools) -> list[str]:
    return [tool.spec.name for tool in found.tools]


def test_a_wheel_that_was_installed_brings_its_tool(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    installed(source, "holdfast-weather", {"weather": ":weather"}, TOOL.format(name="weather"))
    info = "holdfast_weather-1.0.dist-info"
    wheel = tmp_path / "holdfast_weather-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        for path in sorted(source.rglob("*")):
            if path.is_file():
                packed.write(path, path.relative_to(source).as_posix())
        packed.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr(f"{info}/RECORD", "")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--target", target, wheel], check=True, timeout=60)
    script = (
        "import asyncio; from holdfast import types; from holdfast.tools import plugins, registry\n"
        "found = plugins.load()\n"
        "call = types.ToolCall('x', 'weather', {'city': 'Oslo'})\n"
        "print(found.problems, asyncio.run(registry.Registry(found.tools).run(call)).content)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.append({str(target)!r})\n{script}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert ran.stdout == "() Rain in Oslo\n"


def test_a_function_may_give_several_tools(site: Path) -> None:
    source = TOOL.format(name="one") + TOOL.format(name="two") + "\n\ndef every():\n    yield one\n    yield two\n"
    installed(site, "several", {"a": ":every"}, source)
    found = plugins.load()
    assert (names(found), found.problems) == (["one", "two"], ())
    tools = registry.Registry(found.tools)
    assert asyncio.run(tools.run(types.ToolCall("x", "two", {"city": "Rome"}))).content == "Rain in Rome"


@pytest.mark.parametrize(
    ("source", "target", "told"),
    [
        ("raise RuntimeError('no luck')", ":weather", "RuntimeError: no luck"),
        ("import sys; sys.exit(3)", ":weather", "SystemExit: 3"),
        ("x = (", ":weather", "SyntaxError"),
        ("", ":weather", "AttributeError"),
        ("import nowhere_to_be_found", "", "ModuleNotFoundError"),
        ("def weather():\n    raise ValueError('later')", ":weather", "ValueError: later"),
        ("def weather():\n    yield 1\n    raise ValueError('in the midst')", ":weather", "in the midst"),
        ("weather = 'a text'", ":weather", "returned str instead of a tool"),
        ("def weather():\n    return None", ":weather", "returned NoneType instead of a tool"),
        ("def weather(needed):\n    return needed", ":weather", "TypeError"),
    ],
)
def test_a_package_that_fails_is_named_and_the_others_are_there(
    site: Path, source: str, target: str, told: str
) -> None:
    installed(site, "broken-one", {"weather": target}, source)
    installed(site, "whole", {"b": ":fine"}, TOOL.format(name="fine"))
    found = plugins.load()
    assert names(found) == ["fine"]
    (problem,) = found.problems
    assert "broken-one" in problem
    assert told in problem


def test_a_name_that_is_taken_is_refused_with_the_package(site: Path) -> None:
    installed(site, "early", {"a": ":weather"}, TOOL.format(name="weather"))
    installed(site, "late", {"a": ":weather"}, TOOL.format(name="weather"))
    installed(site, "sly", {"a": ":shell"}, TOOL.format(name="shell"))
    found = plugins.load(taken=["shell"])
    assert names(found) == ["weather"]
    late, sly = found.problems
    assert "plug-in late" in late
    assert "that early uses already" in late
    assert "plug-in sly" in sly
    assert "Holdfast itself" in sly


def test_a_name_no_provider_takes_is_refused(site: Path) -> None:
    made = "odd = base.Tool(types.ToolSpec('a b', '', {}), None)"
    source = f"from holdfast import types\nfrom holdfast.tools import base\n{made}"
    installed(site, "odd", {"a": ":odd"}, source)
    found = plugins.load()
    assert found.tools == ()
    assert "'a b'" in found.problems[0]


@pytest.mark.parametrize("spelled", ["my-plug", "My_Plug", "my.plug"])
def test_a_disabled_package_is_not_even_loaded(site: Path, spelled: str) -> None:
    installed(site, "my-plug", {"a": ":weather"}, "raise RuntimeError")
    assert plugins.load(disabled=[spelled]) == plugins.PluginTools()


def test_without_packages_there_is_nothing_to_say() -> None:
    assert plugins.load() == plugins.PluginTools()


def test_who_only_asks_for_the_version_loads_none(tmp_path: Path) -> None:
    installed(tmp_path, "loud", {"a": ":weather"}, f"open({str(tmp_path / 'loaded')!r}, 'w').close()")
    for code, loaded in (("import holdfast.cli, sys; sys.argv[1:] = ['--version']; holdfast.cli.main()", False),
                         ("from holdfast.tools import plugins; plugins.load()", True)):  # fmt: skip
        script = f"import sys; sys.path.append({str(tmp_path)!r})\n{code}"
        subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=60)
        assert (tmp_path / "loaded").exists() == loaded
