"""The command that adds an optional part to this installation of Holdfast."""

from __future__ import annotations

import os
import shlex
import sys
from typing import Any
from urllib import parse

import msgspec


def install_command(extra: str) -> str:
    """Return the shell command that installs an extra such as `tui` with the tool that installed Holdfast."""
    source = _source()
    requirement = _requirement(source, extra)
    folders = sys.prefix.split(os.sep)
    if "uv" in folders and "tools" in folders:
        return shlex.join(["uv", "tool", "install", requirement])
    if "pipx" in folders:
        return shlex.join(["pipx", "install", "--force", requirement])
    editable = ["--editable"] if source.get("dir_info", {}).get("editable") else []
    return shlex.join([sys.executable, "-m", "pip", "install", *editable, requirement])


def _requirement(source: dict[str, Any], extra: str) -> str:
    address = source.get("url", "")
    if address.startswith("file:"):
        return f"{parse.unquote(parse.urlsplit(address).path)}[{extra}]"
    if "vcs_info" in source:
        address = f"{source['vcs_info']['vcs']}+{address}"
    return f"holdfast[{extra}] @ {address}" if address else f"holdfast[{extra}]"


def _source() -> dict[str, Any]:
    """Return where Holdfast was installed from, as pip and uv record it; empty if from an index."""
    from importlib import metadata  # noqa: PLC0415 -- on demand: the import takes long

    try:
        text = metadata.distribution("holdfast").read_text("direct_url.json")
        return msgspec.json.decode(text, type=dict[str, Any]) if text else {}
    except (metadata.PackageNotFoundError, msgspec.DecodeError):
        return {}
