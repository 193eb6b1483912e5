"""Packages with tools, written as an installer leaves them in a folder."""

from __future__ import annotations

from pathlib import Path

from holdfast.tools import plugins

TOOL_SOURCE = '''
from holdfast import tool


@tool
def {name}(city: str) -> str:
    """Tells the weather."""
    return "Rain in " + city
'''


def install_package(folder: Path, package: str, points: dict[str, str], source: str) -> None:
    """Write a package with one module."""
    module = f"plug_{package.replace('-', '_')}_{folder.name.replace('-', '_')}"
    (folder / f"{module}.py").write_text(source, "utf-8")
    info = folder / f"{package.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", "utf-8")
    lines = "".join(f"{name} = {module}{target}\n" for name, target in points.items())
    (info / "entry_points.txt").write_text(f"[{plugins.GROUP}]\n{lines}", "utf-8")
