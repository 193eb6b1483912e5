"""The tools and prompts that a server offers, as values."""

from __future__ import annotations

import msgspec

from holdfast import types


class ServerTool(msgspec.Struct, frozen=True):
    """A tool by the name that the server uses, and its specification for the model."""

    name: str
    spec: types.ToolSpec


class ServerPrompt(msgspec.Struct, frozen=True):
    """A prompt of a server."""

    name: str
    help: str
    arguments: tuple[tuple[str, bool], ...] = ()
    """Names, each with whether it is required."""


class Inventory(msgspec.Struct, frozen=True):
    """Everything that a server offers."""

    tools: tuple[ServerTool, ...] = ()
    """Sorted by their names for the model, so that the same tools give the same bytes."""
    prompts: tuple[ServerPrompt, ...] = ()
    left_out: tuple[str, ...] = ()
    """The tools that cannot be used, each with the reason."""
