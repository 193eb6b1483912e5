"""What a server offers, as values: its tools and its prompts, by the names it gives them."""

from __future__ import annotations

import msgspec

from holdfast import types


class Listed(msgspec.Struct, frozen=True):
    """A tool, and what a model is told of it."""

    name: str
    spec: types.ToolSpec


class Prompt(msgspec.Struct, frozen=True):
    """A prompt."""

    name: str
    help: str
    arguments: tuple[tuple[str, bool], ...] = ()
    """Each with whether it must be given."""


class Listing(msgspec.Struct, frozen=True):
    """All a server offers."""

    tools: tuple[Listed, ...] = ()
    """In the order of their names to a model, so that the same tools are the same bytes."""
    prompts: tuple[Prompt, ...] = ()
    left_out: tuple[str, ...] = ()
    """The tools that cannot be used, each with the reason."""
