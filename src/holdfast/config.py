"""Settings from the environment. No other file reads it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

import platformdirs


class Settings(NamedTuple):
    """What the program runs by; a variable that is set but empty counts as not set."""

    home: str
    """Where Holdfast keeps its data: HOLDFAST_HOME, else the place the system has for data of programs."""
    database: str
    """The store: HOLDFAST_DB, else holdfast.db in the home."""
    colour: bool
    """Whether a terminal may be coloured: not with NO_COLOR, nor on a terminal that calls itself dumb."""
    columns: int | None
    """The width COLUMNS asks for; None leaves it to the terminal."""


def load(environ: Mapping[str, str] | None = None) -> Settings:
    """The settings of this process, or those a given environment would make."""
    given = os.environ if environ is None else environ
    home = given.get("HOLDFAST_HOME")
    home = os.path.abspath(os.path.expanduser(home)) if home else platformdirs.user_data_dir("holdfast", False)
    return Settings(
        home=home,
        database=given.get("HOLDFAST_DB") or os.path.join(home, "holdfast.db"),
        colour=not given.get("NO_COLOR") and given.get("TERM") != "dumb",
        columns=_columns(given.get("COLUMNS", "")),
    )


def _columns(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and 0 < int(text) < 10_000 else None
