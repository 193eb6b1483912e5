"""What lies over the screen: the list, the palette, an opened mark. What is beneath waits until it is gone."""

from __future__ import annotations

from typing import Any

from textual.app import App
from textual.screen import ModalScreen
from textual.widgets import Input

BENEATH = {"walk", "done", "conversations", "write", "command_palette"}
"""Keys of the screen, which do nothing while another lies over it."""


def step_back(app: App[Any]) -> None:
    """Take back what is written to find something; where nothing is, close what lies over the screen."""
    if isinstance(app.focused, Input) and app.focused.value:
        app.focused.value = ""
    elif isinstance(app.screen, ModalScreen):
        app.screen.dismiss(None)
