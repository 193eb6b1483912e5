"""Asking before anything is removed.

What would go is shown first. Then a person is asked; a script has said --yes, or nothing happens.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from holdfast.cli import console

F = TypeVar("F", bound=Callable[..., Any])


def yes(function: F) -> F:
    """--yes, for commands that remove something."""
    return click.option("--yes", "-y", is_flag=True, help="Do it without asking.")(function)


def preview(out: console.Console, as_json: bool, yes: bool) -> Callable[[str], None] | None:
    """How to say what would go: as data for people, beside JSON as notes for who is about to be asked, or not."""
    if not as_json:
        return out.print
    return out.note if not yes and _somebody_is_there() else None


def given(out: console.Console, yes: bool, question: str) -> bool:
    """Whether to go on; when nobody can be asked, say how."""
    if yes:
        return True
    if not _somebody_is_there():
        out.note("Nothing was changed. Repeat with --yes to do it.")
        return False
    out.out.flush()
    if click.confirm(question, default=False, err=True):
        return True
    out.note("Nothing was changed.")
    return False


def _somebody_is_there() -> bool:
    try:
        return sys.stdin is not None and sys.stdin.isatty()
    except ValueError:
        return False
