"""The command that adds an optional part to this installation of Holdfast."""

from __future__ import annotations

import os
import shlex
import sys
from importlib import util
from typing import Any
from urllib import parse

import msgspec

EXTRAS = {
    "acp": "acp",
    "discord": "discord",
    "email": "imapclient",
    "matrix": "nio",
    "mcp": "mcp",
    "otel": "opentelemetry",
    "pg": "psycopg",
    "slack": "slack_sdk",
    "telegram": "telegram",
    "tui": "textual",
}
"""A module of each extra."""


def install_command(extra: str) -> str:
    """Return the shell command that installs an extra such as `tui` with the tool that installed Holdfast."""
    source, folders = _source(), sys.prefix.split(os.sep)
    requirement = _requirement(source, extra)
    if {"uv", "pipx"}.intersection(folders):
        # These tools replace the extras of an earlier installation.
        installed = {name for name, module in EXTRAS.items() if util.find_spec(module) is not None}
        requirement = _requirement(source, ",".join(sorted({extra, *installed})))
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
        vcs = source["vcs_info"]
        revision = vcs.get("requested_revision")
        address = f"{vcs['vcs']}+{address}" + (f"@{revision}" if revision else "")
    return f"holdfast[{extra}] @ {address}" if address else f"holdfast[{extra}]"


def _source() -> dict[str, Any]:
    """Return where Holdfast was installed from, as pip and uv record it; empty if from an index."""
    from importlib import metadata  # noqa: PLC0415 -- on demand: the import takes long

    try:
        text = metadata.distribution("holdfast").read_text("direct_url.json")
        return msgspec.json.decode(text, type=dict[str, Any]) if text else {}
    except (metadata.PackageNotFoundError, msgspec.DecodeError):
        return {}
